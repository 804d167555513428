//! HTTP filters, one file each: when the filter is added, what its plan holds, and how it is rendered.
//! To add a filter: a file, a variant of `HttpFilter`, and a row in `ORDER` where Envoy runs it.

mod alpn;
mod authorization;
mod cors;
mod dynamic_forward_proxy;
mod extension;
mod fault;
mod grpc_stats;
mod grpc_web;
mod jwt_authn;
mod metadata_exchange;
mod router;
mod stateful_session;
mod stats;

use api::Any;
use api::envoy::extensions::filters::network::http_connection_manager::v3::{HttpFilter as EnvoyFilter, http_filter};
use model::hashed::Hashed;
use model::port::Protocol;
use scope::View;

use crate::dns_cache::DnsCache;
use crate::extension::Extension;
use crate::listener_side::ListenerSide;
use crate::security::authorization::AuthorizationFilter;
use crate::security::policies::WorkloadPolicies;
use crate::security::request_authentication::RequestAuthentication;
use crate::telemetry::metrics::StatsFilter;

/// One filter of a connection manager.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HttpFilter {
    MetadataExchange(metadata_exchange::MetadataExchange),
    Authorization(Hashed<AuthorizationFilter>),
    JwtAuthn(Hashed<RequestAuthentication>),
    Extension(Extension),
    GrpcWeb,
    GrpcStats,
    Alpn,
    Fault,
    Cors,
    Stats(Hashed<StatsFilter>),
    StatefulSession,
    DynamicForwardProxy(DnsCache),
    Router(router::Router),
}

/// What a filter's `add` function may look at.
pub(crate) struct HttpFilterInput<'a> {
    pub view: &'a View,
    pub side: ListenerSide,
    pub policies: &'a WorkloadPolicies,
    /// Stats filters of listeners on this side.
    pub stats: &'a [Hashed<StatsFilter>],
    /// The service port; on inbound listeners, the workload's port.
    pub port: u32,
    pub protocol: Protocol,
    /// The DNS cache of a wildcard host whose requests are resolved one by one.
    pub resolved_by: Option<&'a DnsCache>,
    /// Remove Envoy's `x-envoy-*` headers.
    pub suppress_debug_headers: bool,
    /// Do not send peer metadata headers outside the mesh.
    pub hide_metadata: bool,
}

/// Appends a filter if it applies.
type AddHttpFilters = fn(&HttpFilterInput<'_>, &mut Vec<HttpFilter>);

/// Filters in execution order.
const ORDER: &[AddHttpFilters] = &[
    metadata_exchange::add,
    authorization::add_custom,
    extension::add_authn,
    jwt_authn::add,
    extension::add_authz,
    authorization::add,
    extension::add_rest,
    grpc_web::add,
    grpc_stats::add,
    alpn::add,
    fault::add,
    cors::add,
    stats::add,
    stateful_session::add,
    dynamic_forward_proxy::add,
    router::add,
];

/// All filters of a connection manager, in order.
pub(crate) fn chain(input: &HttpFilterInput<'_>) -> Vec<HttpFilter> {
    let mut filters = Vec::with_capacity(ORDER.len());
    for add in ORDER {
        add(input, &mut filters);
    }
    filters
}

pub(crate) fn render(filter: &HttpFilter) -> EnvoyFilter {
    match filter {
        HttpFilter::MetadataExchange(plan) => metadata_exchange::render(plan),
        HttpFilter::Authorization(check) => authorization::render(check),
        HttpFilter::JwtAuthn(plan) => jwt_authn::render(plan),
        HttpFilter::Extension(extension) => extension::render(extension),
        HttpFilter::GrpcWeb => grpc_web::render(),
        HttpFilter::GrpcStats => grpc_stats::render(),
        HttpFilter::Alpn => alpn::render(),
        HttpFilter::Fault => fault::render(),
        HttpFilter::Cors => cors::render(),
        HttpFilter::Stats(plan) => stats::render(plan),
        HttpFilter::StatefulSession => stateful_session::render(),
        HttpFilter::DynamicForwardProxy(cache) => dynamic_forward_proxy::render(cache),
        HttpFilter::Router(plan) => router::render(plan),
    }
}

fn named(name: &str, config: Any) -> EnvoyFilter {
    EnvoyFilter {
        name: name.into(),
        config_type: Some(http_filter::ConfigType::TypedConfig(config)),
        ..EnvoyFilter::default()
    }
}
