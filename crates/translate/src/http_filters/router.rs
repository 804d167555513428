//! The router: the last filter of every connection manager.

use api::any;
use api::envoy::extensions::filters::http::router::v3::Router as EnvoyRouter;
use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter as EnvoyFilter;

use super::{FilterPlan, HttpFilter, HttpFilterInput, named};

#[derive(Debug, Hash)]
struct RouterFilter {
    suppress_debug_headers: bool,
}

pub(super) fn add(input: &HttpFilterInput<'_>, filters: &mut Vec<HttpFilter>) {
    filters.push(HttpFilter::new(RouterFilter { suppress_debug_headers: input.suppress_debug_headers }));
}

impl FilterPlan for RouterFilter {
    fn render(&self) -> EnvoyFilter {
        let config = EnvoyRouter { suppress_envoy_headers: self.suppress_debug_headers, ..EnvoyRouter::default() };
        named("envoy.filters.http.router", any(&config))
    }
}
