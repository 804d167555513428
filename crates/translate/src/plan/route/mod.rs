//! Route table plans. Each virtual host has its own fingerprint, so that a table can be joined from cached encodings.

pub(super) mod destination;
pub(in crate::plan) mod domains;
pub(crate) mod gateway;
mod headers;
mod host_index;
mod rules;
pub(crate) mod sidecar;
mod virtual_hosts;

use api::istio::networking::v1alpha3::load_balancer_settings::ConsistentHashLb;
use api::istio::networking::v1alpha3::{HttpMatchRequest, HttpRetry, HttpRoute, VirtualService};
use model::hashed::Hashed;
use model::names::{Namespace, Str};
use model::snapshot::routing::Semantics;

use crate::names::{self, OutboundCluster};

/// One route table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RoutePlan {
    pub name: Str,
    /// In output order.
    pub virtual_hosts: Vec<Hashed<VirtualHostPlan>>,
    pub purpose: TablePurpose,
}

/// Whether a table serves a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TablePurpose {
    Listener,
    /// Unknown name. It gets an empty table, because Envoy waits for a requested table until it gets one.
    Unknown,
}

/// One virtual host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VirtualHostPlan {
    pub name: Str,
    pub domains: Vec<Str>,
    /// In matching order. Hosts of one VirtualService share them.
    pub routes: Hashed<Vec<RouteEntry>>,
    /// Send x-envoy-attempt-count.
    pub attempt_count: bool,
    pub session: Option<SessionState>,
    /// Redirect plaintext requests to HTTPS.
    pub require_tls: bool,
}

/// One route of a virtual host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RouteEntry {
    /// The default route of a service without a VirtualService.
    Default(DefaultRoute),
    /// One match of one route of a VirtualService.
    Rule(Box<RuleRoute>),
    /// Unknown hosts pass through.
    Passthrough { name: &'static str, cluster: Str, forwarded_host: bool },
    /// Unknown hosts are rejected.
    BlackHole,
    /// Hosts of another server of the port, which has its own connections.
    Misdirected,
}

/// Routes all requests to one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DefaultRoute {
    pub cluster: Str,
    /// The operation name in traces.
    pub operation: Str,
    pub hash: Option<Hashing>,
    pub mesh_retries: Option<Hashed<HttpRetry>>,
}

/// Consistent hashing settings.
pub type Hashing = Hashed<ConsistentHashLb>;

/// A route of a VirtualService with one of its matches, and everything that the VirtualService does not contain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RuleRoute {
    pub spec: Hashed<VirtualService>,
    /// Index in `spec.http`.
    pub index: usize,
    /// Index in the route's `match`; `None` for a route without matches.
    pub condition: Option<usize>,
    /// Namespace and name of the VirtualService.
    pub namespace: Namespace,
    pub object: Str,
    pub semantics: Semantics,
    /// The listener's port.
    pub port: u16,
    /// The route's destinations, in order.
    pub destinations: Vec<DestinationPlan>,
    /// The cluster of `mirror`.
    pub mirror: Option<Str>,
    /// The clusters of `mirrors`; `None` for one without a destination.
    pub mirrors: Vec<Option<Str>>,
    pub mesh_retries: Option<Hashed<HttpRetry>>,
    pub session: Option<SessionState>,
    pub flags: RouteFlags,
}

/// Settings of the client and the mesh that affect the rendering of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RouteFlags {
    /// The listener terminates TLS.
    pub tls: bool,
    /// Send an alt-svc header that offers HTTP/3.
    pub advertise_http3: bool,
    /// Preserve a rewritten host in x-forwarded-host.
    pub forwarded_host: bool,
    /// Do not append `-shadow` to the host of mirrored requests.
    pub plain_mirror_host: bool,
}

/// One destination of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DestinationPlan {
    /// `None` if the destination has no host.
    pub cluster: Option<OutboundCluster>,
    pub hash: Option<Hashing>,
}

/// Where a persistent session stores its endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SessionState {
    Cookie { name: Str, path: Str },
    Header(Str),
}

impl DestinationPlan {
    pub fn cluster_name(&self) -> String {
        self.cluster.as_ref().map_or_else(|| names::UNKNOWN_SERVICE.to_owned(), ToString::to_string)
    }
}

impl RuleRoute {
    /// The route. `index` is always in range, because it comes from the same VirtualService.
    pub fn route(&self) -> &HttpRoute {
        &self.spec.http[self.index]
    }

    pub fn condition(&self) -> Option<&HttpMatchRequest> {
        self.condition.map(|index| &self.route().r#match[index])
    }
}

impl RoutePlan {
    /// The empty table of an unknown name.
    pub fn unknown(name: &str) -> RoutePlan {
        RoutePlan { name: name.into(), virtual_hosts: Vec::new(), purpose: TablePurpose::Unknown }
    }
}
