//! Fault injection. Always present; the faults are in the routes.

use api::any;
use api::envoy::extensions::filters::http::fault::v3::HttpFault;
use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter as EnvoyFilter;

use super::{HttpFilter, HttpFilterInput, named};

pub(super) fn add(_input: &HttpFilterInput<'_>, filters: &mut Vec<HttpFilter>) {
    filters.push(HttpFilter::Fault);
}

pub(super) fn render() -> EnvoyFilter {
    named("envoy.filters.http.fault", any(&HttpFault::default()))
}
