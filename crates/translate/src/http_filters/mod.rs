//! HTTP filters, one file each: when the filter is added, what its plan holds, and how it is rendered.
//! To add a filter: a file with its plan and `add`, and a row in `ORDER` where Envoy runs it.

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

use std::any::type_name;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use api::Any;
use api::envoy::extensions::filters::network::http_connection_manager::v3::{HttpFilter as EnvoyFilter, http_filter};
use model::hashed::{Hashed, fingerprint};
use model::port::Protocol;
use scope::View;

use crate::dns_cache::DnsCache;
use crate::listener_side::ListenerSide;
use crate::security::policies::WorkloadPolicies;
use crate::telemetry::metrics::StatsFilter;

/// One filter of a connection manager: its plan, and the fingerprint that identifies it.
#[derive(Clone)]
pub struct HttpFilter {
    fingerprint: u128,
    plan: Arc<dyn FilterPlan>,
}

/// The plan of one kind of filter.
trait FilterPlan: fmt::Debug + Send + Sync {
    fn render(&self) -> EnvoyFilter;
}

impl HttpFilter {
    fn new<P: FilterPlan + Hash + 'static>(plan: P) -> HttpFilter {
        HttpFilter { fingerprint: fingerprint(&(type_name::<P>(), &plan)), plan: Arc::new(plan) }
    }

    pub(crate) fn render(&self) -> EnvoyFilter {
        self.plan.render()
    }
}

impl PartialEq for HttpFilter {
    fn eq(&self, other: &HttpFilter) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl Eq for HttpFilter {}

impl Hash for HttpFilter {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.fingerprint.hash(state);
    }
}

impl fmt::Debug for HttpFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.plan.fmt(f)
    }
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

fn named(name: &str, config: Any) -> EnvoyFilter {
    EnvoyFilter {
        name: name.into(),
        config_type: Some(http_filter::ConfigType::TypedConfig(config)),
        ..EnvoyFilter::default()
    }
}
