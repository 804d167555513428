//! MongoDB statistics; the TCP proxy forwards the bytes.

use api::any;
use api::envoy::config::listener::v3::Filter;
use api::envoy::extensions::filters::network::mongo_proxy::v3::MongoProxy;

use super::named;

pub(super) fn render(stat_prefix: &str) -> Filter {
    let config = MongoProxy { stat_prefix: stat_prefix.into(), ..MongoProxy::default() };
    named("envoy.filters.network.mongo_proxy", any(&config))
}
