//! The dynamic forward proxy for TLS: resolves the SNI of each connection.

use api::Any;
use api::envoy::config::listener::v3::Filter;
use api::envoy::extensions::common::dynamic_forward_proxy::v3::DnsCacheConfig;
use prost::Message;

use super::named;
use crate::dns_cache::{self, DnsCache};

/// `envoy.extensions.filters.network.sni_dynamic_forward_proxy.v3.FilterConfig`, reduced to the fields set here.
#[derive(Clone, PartialEq, Message)]
struct SniForwardProxyConfig {
    #[prost(message, optional, tag = "1")]
    dns_cache_config: Option<DnsCacheConfig>,
    /// In a oneof, so it is encoded even if 0.
    #[prost(uint32, optional, tag = "2")]
    port_value: Option<u32>,
}

pub(super) fn render(cache: &DnsCache, port: u32) -> Filter {
    let config = SniForwardProxyConfig { dns_cache_config: Some(dns_cache::render(cache)), port_value: Some(port) };
    let type_url = "type.googleapis.com/envoy.extensions.filters.network.sni_dynamic_forward_proxy.v3.FilterConfig";
    named(
        "envoy.extensions.filters.network.sni_dynamic_forward_proxy",
        Any { type_url: type_url.into(), value: config.encode_to_vec() },
    )
}
