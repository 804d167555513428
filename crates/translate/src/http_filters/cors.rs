//! CORS. Always present; the policy is in the routes.

use api::any;
use api::envoy::extensions::filters::http::cors::v3::Cors;
use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter as EnvoyFilter;

use super::{FilterPlan, HttpFilter, HttpFilterInput, named};

#[derive(Debug, Hash)]
struct CorsFilter;

pub(super) fn add(_input: &HttpFilterInput<'_>, filters: &mut Vec<HttpFilter>) {
    filters.push(HttpFilter::new(CorsFilter));
}

impl FilterPlan for CorsFilter {
    fn render(&self) -> EnvoyFilter {
        named("envoy.filters.http.cors", any(&Cors {}))
    }
}
