//! A running workload, such as a Kubernetes Pod, reduced to the fields that the mesh uses.
//! The services that it serves are in `endpoint`.

use std::sync::Arc;

use crate::endpoint::{Endpoint, Health, Locality, TlsMode};
use crate::labels::Labels;
use crate::names::{ClusterId, Namespace, NetworkId, Str};

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadKey {
    pub namespace: Namespace,
    pub name: Str,
    pub cluster: ClusterId,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Workload {
    pub key: WorkloadKey,
    /// Its own labels plus topology labels: region, zone, subzone, cluster, node, network.
    pub labels: Labels,
    /// IP addresses, the primary one first.
    pub addresses: Arc<[Str]>,
    /// The named ports of its containers.
    pub ports: Arc<[ContainerPort]>,
    pub locality: Locality,
    pub network: NetworkId,
    /// SPIFFE identity.
    pub service_account: Str,
    pub tls: TlsMode,
    /// The Deployment, StatefulSet … that owns it, or its own name.
    pub workload_name: Str,
    pub node_name: Str,
    /// Few pods have a DNS name, so it is boxed.
    pub own_name: Option<Arc<PodHostname>>,
    pub is_ready: bool,
}

/// The DNS name of one pod: `spec.hostname` and `spec.subdomain`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodHostname {
    pub host: Str,
    pub sub_domain: Str,
}

/// A named container port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ContainerPort {
    pub name: Str,
    pub transport: Transport,
    pub number: u16,
}

/// The transport protocol of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    #[default]
    Tcp,
    Udp,
    Sctp,
}

impl Transport {
    /// Parses the `protocol` of a Kubernetes port; TCP is the default.
    pub fn parse(text: &str) -> Transport {
        match text {
            "UDP" => Transport::Udp,
            "SCTP" => Transport::Sctp,
            _ => Transport::Tcp,
        }
    }
}

impl Workload {
    /// The port of this name and transport.
    pub fn port(&self, name: &str, transport: Transport) -> Option<u16> {
        self.ports.iter().find(|p| *p.name == *name && p.transport == transport).map(|p| p.number)
    }

    /// The workload as an endpoint whose port is still to be set.
    pub fn endpoint(&self) -> Endpoint {
        let (host_name, sub_domain) = match &self.own_name {
            Some(name) => (name.host.clone(), name.sub_domain.clone()),
            None => Default::default(),
        };
        Endpoint {
            addresses: self.addresses.iter().take(1).cloned().collect(),
            port: 0,
            service_port: Str::default(),
            service_port_number: 0,
            labels: self.labels.clone(),
            locality: self.locality.clone(),
            network: self.network.clone(),
            cluster: self.key.cluster.clone(),
            weight: 0,
            service_account: self.service_account.clone(),
            tls: self.tls,
            namespace: self.key.namespace.clone(),
            workload_name: self.workload_name.clone(),
            health: Health::Healthy,
            node_name: self.node_name.clone(),
            host_name,
            sub_domain,
            cluster_local: false,
        }
    }
}
