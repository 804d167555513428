//! What every registry produces: a service as the mesh knows it.
//! Its endpoints change far more often and stand apart, in `endpoint`.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::labels::Labels;
use crate::names::{ClusterId, Hostname, Namespace, ServiceKey, Str};
use crate::port::{Port, Protocol};
use crate::workload::Transport;

/// The address of a service that has none of its own.
pub const UNSPECIFIED: &str = "0.0.0.0";

/// A service. One ServiceEntry host with several addresses gives several services of one host name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Service {
    pub hostname: Hostname,
    pub namespace: Namespace,
    /// The short name: of the Kubernetes Service, or the host itself for a ServiceEntry.
    pub name: Str,
    /// The name of the object it came from.
    pub object_name: Str,
    pub registry: Registry,
    pub ports: Vec<Port>,
    pub resolution: Resolution,
    /// Outside the mesh: no sidecar answers there.
    pub mesh_external: bool,
    /// The virtual address, a CIDR block, or `UNSPECIFIED`.
    pub address: Str,
    /// Further virtual addresses per cluster, the first equal to `address` in its own cluster.
    pub cluster_addresses: Vec<(ClusterId, Vec<Str>)>,
    /// Addresses allocated by the mesh for a name without one.
    pub auto_ipv4: Option<Str>,
    pub auto_ipv6: Option<Str>,
    pub export_to: ExportTo,
    pub labels: Labels,
    /// Which workloads serve it; empty where endpoints are listed.
    pub selector: Labels,
    /// Accounts its endpoints are expected to run as, or subject names for external services.
    pub service_accounts: Vec<Str>,
    /// With resolution `Passthrough`: service port to the port really dialled.
    pub passthrough_ports: Vec<(u16, u16)>,
    pub traffic_distribution: TrafficDistribution,
    /// Seconds since 1970; older services win conflicts.
    pub created: i64,
    /// Services that are other names of this one; joins fill it in.
    pub aliases: Vec<ServiceKey>,
    /// What only a Kubernetes Service says.
    pub kubernetes: Option<Arc<KubernetesService>>,
}

/// The parts of a Service that have meaning in Kubernetes only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct KubernetesService {
    /// Of an ExternalName: the host that it is another name of.
    pub alias_of: Option<Hostname>,
    /// What each of the service's ports is called in a pod, in the order of the ports.
    pub targets: Vec<TargetPort>,
    /// Clients may use endpoints of their own node only.
    pub node_local: bool,
    /// Names of single pods are told before the pods are ready.
    pub publish_not_ready: bool,
    /// A load balancer is to answer for it.
    pub load_balanced: bool,
    /// Where load balancers and nodes answer for it, per cluster.
    pub external_addresses: Vec<(ClusterId, Vec<Str>)>,
    /// Of a service reached through nodes: service port to node port.
    pub node_ports: Vec<(u16, u16)>,
}

/// The port of a pod that a service port leads to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TargetPort {
    pub target: Target,
    pub transport: Transport,
}

/// A pod's port by number, or by the name that a container gives it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    Number(u16),
    Name(Str),
}

impl Service {
    /// A service of the mesh with endpoints, no address of its own and nothing else said about it.
    pub fn new(
        registry: Registry,
        hostname: Hostname,
        namespace: Namespace,
        name: impl Into<Str>,
        ports: Vec<Port>,
    ) -> Service {
        let name = name.into();
        Service {
            hostname,
            namespace,
            object_name: name.clone(),
            name,
            registry,
            ports,
            resolution: Resolution::ClientSide,
            mesh_external: false,
            address: UNSPECIFIED.into(),
            cluster_addresses: Vec::new(),
            auto_ipv4: None,
            auto_ipv6: None,
            export_to: ExportTo::default(),
            labels: Labels::default(),
            selector: Labels::default(),
            service_accounts: Vec::new(),
            passthrough_ports: Vec::new(),
            traffic_distribution: TrafficDistribution::Any,
            created: 0,
            aliases: Vec::new(),
            kubernetes: None,
        }
    }

    pub fn key(&self) -> ServiceKey {
        ServiceKey { hostname: self.hostname.clone(), namespace: self.namespace.clone() }
    }

    pub fn port(&self, number: u16) -> Option<&Port> {
        self.ports.iter().find(|p| p.number == number)
    }

    pub fn port_by_name(&self, name: &str) -> Option<&Port> {
        self.ports.iter().find(|p| *p.name == *name)
    }

    /// Whether it comes from Kubernetes without a cluster address.
    pub fn is_headless(&self) -> bool {
        self.registry == Registry::Kubernetes && self.resolution == Resolution::Passthrough
    }

    /// Ports a proxy can carry; UDP is left to the network.
    pub fn proxied_ports(&self) -> impl Iterator<Item = &Port> {
        self.ports.iter().filter(|p| p.protocol != Protocol::Udp)
    }
}

/// Where a service was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Registry {
    Kubernetes,
    /// ServiceEntry.
    External,
    Consul,
    Eureka,
    CloudFoundry,
    Mcp,
    /// Names in DNS; upstream never had it.
    Dns,
    Mock,
}

impl Registry {
    /// Upstream's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Registry::Kubernetes => "Kubernetes",
            Registry::External => "External",
            Registry::Consul => "Consul",
            Registry::Eureka => "Eureka",
            Registry::CloudFoundry => "CloudFoundry",
            Registry::Mcp => "MCP",
            Registry::Dns => "DNS",
            Registry::Mock => "Mock",
        }
    }
}

/// How a proxy finds the endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resolution {
    /// From the endpoints we send.
    ClientSide,
    /// From DNS, all addresses (STRICT_DNS).
    Dns,
    /// From DNS, one address at a time (LOGICAL_DNS).
    DnsRoundRobin,
    /// From DNS, by the host of each request.
    DynamicDns,
    /// The original destination of the connection.
    Passthrough,
    /// Another name for another service.
    Alias,
}

impl Resolution {
    pub fn is_dns(self) -> bool {
        matches!(self, Resolution::Dns | Resolution::DnsRoundRobin)
    }
}

/// A wish to stay near, as Kubernetes' trafficDistribution words it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TrafficDistribution {
    #[default]
    Any,
    PreferSameZone,
    PreferSameNode,
}

/// Who may see an object. Empty means "as the mesh's default says".
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ExportTo(BTreeSet<Visibility>);

/// One item of exportTo.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Visibility {
    /// `*`
    Public,
    /// `.`: the object's own namespace.
    Private,
    /// `~`: nobody.
    Nobody,
    Namespace(Namespace),
}

impl ExportTo {
    pub fn parse<S: AsRef<str>>(items: impl IntoIterator<Item = S>) -> ExportTo {
        ExportTo(items.into_iter().map(|item| Visibility::parse(item.as_ref())).collect())
    }

    pub fn is_unset(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Visibility> {
        self.0.iter()
    }

    /// This list, or the mesh's default where it is unset.
    pub fn or<'a>(&'a self, default: &'a ExportTo) -> &'a ExportTo {
        if self.is_unset() { default } else { self }
    }

    /// Whether everybody may see the object.
    pub fn is_public(&self) -> bool {
        self.is_unset() || self.0.contains(&Visibility::Public)
    }

    /// Whether a client in `client` may see an object of namespace `owner`.
    pub fn admits(&self, owner: &Namespace, client: &Namespace) -> bool {
        if self.is_public() {
            return true;
        }
        if self.0.contains(&Visibility::Nobody) {
            return false;
        }
        self.0.iter().any(|v| match v {
            Visibility::Private => owner == client,
            Visibility::Namespace(ns) => ns == client,
            Visibility::Public | Visibility::Nobody => false,
        })
    }
}

impl Visibility {
    pub fn parse(text: &str) -> Visibility {
        match text {
            "*" => Visibility::Public,
            "." => Visibility::Private,
            "~" => Visibility::Nobody,
            other => Visibility::Namespace(other.into()),
        }
    }
}
