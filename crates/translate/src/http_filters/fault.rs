//! Fault injection. Always present; the faults are in the routes.

use api::any;
use api::envoy::extensions::filters::http::fault::v3::HttpFault;
use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter as EnvoyFilter;

use super::{FilterPlan, HttpFilter, HttpFilterInput, named};

#[derive(Debug, Hash)]
struct FaultFilter;

pub(super) fn add(_input: &HttpFilterInput<'_>, filters: &mut Vec<HttpFilter>) {
    filters.push(HttpFilter::new(FaultFilter));
}

impl FilterPlan for FaultFilter {
    fn render(&self) -> EnvoyFilter {
        named("envoy.filters.http.fault", any(&HttpFault::default()))
    }
}
