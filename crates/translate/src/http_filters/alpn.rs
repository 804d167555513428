//! Istio's ALPN filter: announces the HTTP version inside mTLS to the peer. Only Istio's Envoy build has it.

use api::Any;
use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter as EnvoyFilter;
use prost::Message;

use super::{FilterPlan, HttpFilter, HttpFilterInput, named};
use crate::listener_side::ListenerSide;

const NAME: &str = "istio.alpn";

#[derive(Debug, Hash)]
struct AlpnFilter;

pub(super) fn add(input: &HttpFilterInput<'_>, filters: &mut Vec<HttpFilter>) {
    let view = input.view;
    if view.settings.knobs.alpn_filter
        && input.side != ListenerSide::SidecarInbound
        && view.proxy.extensions.contains(NAME)
    {
        filters.push(HttpFilter::new(AlpnFilter));
    }
}

/// `istio.envoy.config.filter.http.alpn.v2alpha1.FilterConfig`, which is in no descriptor set.
#[derive(Clone, PartialEq, Message)]
struct AlpnFilterConfig {
    #[prost(message, repeated, tag = "1")]
    alpn_override: Vec<AlpnOverride>,
}

#[derive(Clone, PartialEq, Message)]
struct AlpnOverride {
    /// 0: HTTP/1.0, 1: HTTP/1.1, 2: HTTP/2.
    #[prost(int32, tag = "1")]
    upstream_protocol: i32,
    #[prost(string, repeated, tag = "2")]
    alpn_override: Vec<String>,
}

impl FilterPlan for AlpnFilter {
    fn render(&self) -> EnvoyFilter {
        let versions = [
            (0, ["istio-http/1.0", "istio", "http/1.0"]),
            (1, ["istio-http/1.1", "istio", "http/1.1"]),
            (2, ["istio-h2", "istio", "h2"]),
        ];
        let overrides = versions.into_iter().map(|(upstream_protocol, alpn)| AlpnOverride {
            upstream_protocol,
            alpn_override: alpn.iter().map(|a| (*a).into()).collect(),
        });
        let config = AlpnFilterConfig { alpn_override: overrides.collect() };
        let type_url = "type.googleapis.com/istio.envoy.config.filter.http.alpn.v2alpha1.FilterConfig";
        named(NAME, Any { type_url: type_url.into(), value: config.encode_to_vec() })
    }
}
