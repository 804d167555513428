//! MySQL statistics; the TCP proxy forwards the bytes.

use api::any;
use api::envoy::config::listener::v3::Filter;
use api::envoy::extensions::filters::network::mysql_proxy::v3::MySqlProxy;

use super::named;

pub(super) fn render(stat_prefix: &str) -> Filter {
    let config = MySqlProxy { stat_prefix: stat_prefix.into(), ..MySqlProxy::default() };
    named("envoy.filters.network.mysql_proxy", any(&config))
}
