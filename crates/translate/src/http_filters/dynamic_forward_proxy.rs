//! The dynamic forward proxy: resolves the host of each request. Used for wildcard hosts without endpoints and, if the
//! mesh allows it, for hosts of no service.

use api::any;
use api::envoy::extensions::filters::http::dynamic_forward_proxy::v3::{FilterConfig, filter_config};
use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter as EnvoyFilter;

use super::{FilterPlan, HttpFilter, HttpFilterInput, named};
use crate::dns_cache::{self, DnsCache};
use crate::listener_side::ListenerSide;

#[derive(Debug, Hash)]
struct DynamicForwardProxy(DnsCache);

pub(super) fn add(input: &HttpFilterInput<'_>, filters: &mut Vec<HttpFilter>) {
    if input.side != ListenerSide::SidecarOutbound {
        return;
    }
    let of_host = input.resolved_by.cloned();
    // Every route table may end in a route for unknown hosts.
    let of_any = input.view.resolves_any_outbound().then(|| DnsCache::for_any_name(input.view));
    filters.extend(of_host.into_iter().chain(of_any).map(|cache| HttpFilter::new(DynamicForwardProxy(cache))));
}

impl FilterPlan for DynamicForwardProxy {
    fn render(&self) -> EnvoyFilter {
        let specifier = filter_config::ImplementationSpecifier::DnsCacheConfig(dns_cache::render(&self.0));
        let config = FilterConfig { implementation_specifier: Some(specifier), ..FilterConfig::default() };
        named("envoy.filters.http.dynamic_forward_proxy", any(&config))
    }
}
