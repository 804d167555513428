//! One running copy of a program as a platform names it: a Kubernetes Pod, reduced to what the mesh reads.
//! Where it serves which service stands in `endpoint`.

use std::sync::Arc;

use crate::endpoint::{Endpoint, Health, Locality, TlsMode};
use crate::labels::Labels;
use crate::names::{ClusterId, Namespace, NetworkId, Str};

/// Which workload.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadKey {
    pub namespace: Namespace,
    pub name: Str,
    pub cluster: ClusterId,
}

/// A workload.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Workload {
    pub key: WorkloadKey,
    /// Its own labels, and where it stands: region, zone, subzone, cluster, node, network.
    pub labels: Labels,
    /// IP addresses, the first one first told by the platform.
    pub addresses: Arc<[Str]>,
    /// The named ports of its containers.
    pub ports: Arc<[ContainerPort]>,
    pub locality: Locality,
    pub network: NetworkId,
    /// SPIFFE identity.
    pub service_account: Str,
    pub tls: TlsMode,
    /// The Deployment, StatefulSet … that made it, or its own name.
    pub workload_name: Str,
    pub node_name: Str,
    /// For names of single pods, which few have.
    pub own_name: Option<Arc<PodHostname>>,
    /// It runs and says that it is ready.
    pub is_ready: bool,
}

/// The name of a single pod: its host name below a subdomain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodHostname {
    pub host: Str,
    pub sub_domain: Str,
}

/// A port that a container gave a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ContainerPort {
    pub name: Str,
    pub transport: Transport,
    pub number: u16,
}

/// What carries a port's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    #[default]
    Tcp,
    Udp,
    Sctp,
}

impl Transport {
    /// Reads Kubernetes' spelling; nothing said means TCP.
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

    /// The workload as an endpoint of no port yet.
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
