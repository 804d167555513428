//! gRPC-Web, for ports of that protocol. On a shared port, only the first service's protocol counts, as upstream.

use api::any;
use api::envoy::extensions::filters::http::grpc_web::v3::GrpcWeb;
use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter as EnvoyFilter;
use model::port::Protocol;

use super::{FilterPlan, HttpFilter, HttpFilterInput, named};

#[derive(Debug, Hash)]
struct GrpcWebFilter;

pub(super) fn add(input: &HttpFilterInput<'_>, filters: &mut Vec<HttpFilter>) {
    if input.protocol == Protocol::GrpcWeb {
        filters.push(HttpFilter::new(GrpcWebFilter));
    }
}

impl FilterPlan for GrpcWebFilter {
    fn render(&self) -> EnvoyFilter {
        named("envoy.filters.http.grpc_web", any(&GrpcWeb {}))
    }
}
