//! One route table, made of virtual hosts that are shared and bear a fingerprint each: a table can be put
//! together from encoded virtual hosts that are already at hand.

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
    /// In the order they are sent.
    pub virtual_hosts: Vec<Hashed<VirtualHostPlan>>,
    pub purpose: TablePurpose,
}

/// Whether a table serves a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TablePurpose {
    Listener,
    /// The client asked for a name that nothing stands behind. It is told so with an empty table, since an
    /// Envoy that gets no answer waits.
    Unknown,
}

/// The routes of some host names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VirtualHostPlan {
    pub name: Str,
    pub domains: Vec<Str>,
    /// In the order they are tried. Hosts of one VirtualService share them.
    pub routes: Hashed<Vec<RouteEntry>>,
    /// Whether retried requests tell how often they were tried.
    pub attempt_count: bool,
    pub session: Option<SessionState>,
    /// Plain-text requests are redirected to HTTPS.
    pub require_tls: bool,
}

/// One entry of a virtual host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RouteEntry {
    /// What a service gets without a VirtualService.
    Default(DefaultRoute),
    /// One condition of one route of a VirtualService.
    Rule(Box<RuleRoute>),
    /// Unknown hosts are let through.
    Passthrough { name: &'static str, cluster: Str, forwarded_host: bool },
    /// Unknown hosts are refused.
    BlackHole,
}

/// All requests to one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DefaultRoute {
    pub cluster: Str,
    /// What the request is called in traces.
    pub operation: Str,
    pub hash: Option<Hashing>,
    pub mesh_retries: Option<Hashed<HttpRetry>>,
}

/// By what requests stick to an endpoint.
pub type Hashing = Hashed<ConsistentHashLb>;

/// A route of a VirtualService under one of its conditions, with all that the VirtualService does not say.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RuleRoute {
    pub spec: Hashed<VirtualService>,
    /// Which of `spec.http`.
    pub index: usize,
    /// Which of its conditions; `None` for a route without any.
    pub condition: Option<usize>,
    /// The object it came from.
    pub namespace: Namespace,
    pub object: Str,
    pub semantics: Semantics,
    /// The port that the client listens on.
    pub port: u16,
    /// For each destination, in the order of the route.
    pub destinations: Vec<DestinationPlan>,
    /// The cluster of `mirror`.
    pub mirror: Option<Str>,
    /// The clusters of `mirrors`; `None` for one that names no destination.
    pub mirrors: Vec<Option<Str>>,
    pub mesh_retries: Option<Hashed<HttpRetry>>,
    pub session: Option<SessionState>,
    pub flags: RouteFlags,
}

/// Settings of the client and the mesh that change how a rule is written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RouteFlags {
    /// The listener terminates TLS.
    pub tls: bool,
    /// Clients are told that HTTP/3 is spoken here.
    pub advertise_http3: bool,
    /// A rewritten host is kept in x-forwarded-host.
    pub forwarded_host: bool,
    /// Mirrored requests keep their host as it is, without `-shadow`.
    pub plain_mirror_host: bool,
}

/// Where one destination of a rule leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DestinationPlan {
    /// `None` if the destination has no host.
    pub cluster: Option<OutboundCluster>,
    pub hash: Option<Hashing>,
}

/// How a session remembers its endpoint.
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
    /// The route; its index was taken from the same VirtualService.
    pub fn route(&self) -> &HttpRoute {
        &self.spec.http[self.index]
    }

    pub fn condition(&self) -> Option<&HttpMatchRequest> {
        self.condition.map(|index| &self.route().r#match[index])
    }
}

impl RoutePlan {
    /// The answer to a name that nothing stands behind.
    pub fn unknown(name: &str) -> RoutePlan {
        RoutePlan { name: name.into(), virtual_hosts: Vec::new(), purpose: TablePurpose::Unknown }
    }
}
