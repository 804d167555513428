//! The upstream filter that exchanges workload metadata over TCP. Only Istio's Envoy build has it.

use api::envoy::config::cluster::v3::Filter;
use api::wire::xds::r#type::v3::TypedStruct;
use api::{Value, any, value};

use crate::render::endpoints::{fields, text};

const NAME: &str = "istio.metadata_exchange";
const TYPE_URL: &str = "type.googleapis.com/envoy.tcp.metadataexchange.config.MetadataExchange";

/// The filter.
pub(super) fn filter() -> Filter {
    let config = TypedStruct {
        type_url: TYPE_URL.to_owned(),
        value: Some(fields([
            ("protocol", text("istio-peer-exchange")),
            ("enable_discovery", Value { kind: Some(value::Kind::BoolValue(true)) }),
        ])),
    };
    Filter { name: NAME.to_owned(), typed_config: Some(any(&config)), ..Filter::default() }
}
