//! Endpoint plans: the endpoints of one cluster by locality, for EDS and for DNS clusters.
//! `select` selects them; `networks` replaces unreachable ones by network gateways.

pub mod locality;
mod networks;
mod reach;
mod select;

use model::endpoint::{Health, Locality};
use model::names::{ClusterId, Namespace, Str};

pub(crate) use select::prescribed_mode;
pub use select::{EndpointSelection, PERSISTENT_SESSION_LABEL, discovered};

/// The endpoints of one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointsPlan {
    pub name: Str,
    pub localities: Vec<LocalityEndpoints>,
}

/// Endpoints of one locality and priority.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LocalityEndpoints {
    pub locality: Locality,
    /// 0 is the highest.
    pub priority: u32,
    pub weight: Option<u32>,
    pub endpoints: Vec<LbEndpoint>,
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LbEndpoint {
    /// An IP address, a DNS name, or a Unix path if the port is 0.
    pub address: Str,
    /// Addresses of the other IP family.
    pub more_addresses: Vec<Str>,
    pub port: u32,
    pub weight: u32,
    pub health: Health,
    /// Whether it is called with mesh mTLS if the cluster uses auto mTLS.
    pub mutual_tls: bool,
    /// For telemetry; `None` if disabled.
    pub workload: Option<WorkloadLabel>,
}

/// The workload of an endpoint in telemetry metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct WorkloadLabel {
    pub name: Str,
    pub namespace: Namespace,
    pub canonical_name: Str,
    pub canonical_revision: Str,
    pub cluster: ClusterId,
}
