//! The endpoints of one cluster, grouped by locality: for EDS, and inlined into clusters that DNS resolves.
//! `select` picks them, `networks` puts gateways in place of those that are out of reach.

mod networks;
mod reach;
mod select;

use model::endpoint::{Health, Locality};
use model::names::{ClusterId, Namespace, Str};

pub use select::{EndpointSelection, PERSISTENT_SESSION_LABEL, discovered};

/// The endpoints of one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointsPlan {
    pub name: Str,
    pub localities: Vec<LocalityEndpoints>,
}

/// Endpoints of one locality that are used together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LocalityEndpoints {
    pub locality: Locality,
    /// 0 is used first.
    pub priority: u32,
    pub weight: Option<u32>,
    pub endpoints: Vec<LbEndpoint>,
}

/// One endpoint as a client sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LbEndpoint {
    /// An IP address, a DNS name, or a path if the port is 0.
    pub address: Str,
    /// Further addresses of the same workload, of the other IP family.
    pub more_addresses: Vec<Str>,
    pub port: u32,
    pub weight: u32,
    pub health: Health,
    /// Whether it is called with the mesh's own certificates where the cluster leaves the choice.
    pub mutual_tls: bool,
    /// For telemetry; `None` where it is switched off.
    pub workload: Option<WorkloadLabel>,
}

/// What telemetry says of the workload behind an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct WorkloadLabel {
    pub name: Str,
    pub namespace: Namespace,
    pub canonical_name: Str,
    pub canonical_revision: Str,
    pub cluster: ClusterId,
}
