//! A service of the mesh, as every registry provides it.
//! Its endpoints change far more often and are kept apart, see `endpoint`.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::labels::Labels;
use crate::names::{ClusterId, Hostname, Namespace, ServiceKey, Str};
use crate::port::{Port, Protocol};
use crate::workload::Transport;

/// The address of a service without a virtual address.
pub const UNSPECIFIED: &str = "0.0.0.0";

/// A service. A ServiceEntry host with several addresses becomes several services of one host name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Service {
    pub hostname: Hostname,
    pub namespace: Namespace,
    /// The short name: of the Kubernetes Service, or the host itself for a ServiceEntry.
    pub name: Str,
    /// The name of the object that defines it.
    pub object_name: Str,
    pub registry: Registry,
    pub ports: Vec<Port>,
    pub resolution: Resolution,
    /// Outside the mesh: its endpoints have no sidecar.
    pub mesh_external: bool,
    /// The virtual address, a CIDR block, or `UNSPECIFIED`.
    pub address: Str,
    /// All virtual addresses by cluster. In its own cluster the first one is `address`.
    pub cluster_addresses: Vec<(ClusterId, Vec<Str>)>,
    /// Automatic addresses of a host without one, see `snapshot::auto_address`.
    pub auto_ipv4: Option<Str>,
    pub auto_ipv6: Option<Str>,
    pub export_to: ExportTo,
    pub labels: Labels,
    /// Selects its workloads; empty if its endpoints are listed.
    pub selector: Labels,
    /// Expected service accounts of its endpoints, or subject alternative names of an external service.
    pub service_accounts: Vec<Str>,
    /// With resolution `Passthrough`: service port to target port.
    pub passthrough_ports: Vec<(u16, u16)>,
    pub traffic_distribution: TrafficDistribution,
    /// Seconds since 1970; older services win conflicts.
    pub created: i64,
    /// Services that are aliases of this one; set by the snapshot.
    pub aliases: Vec<ServiceKey>,
    pub kubernetes: Option<Arc<KubernetesService>>,
}

/// Fields that only Kubernetes Services have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct KubernetesService {
    /// The external name of an ExternalName Service.
    pub alias_of: Option<Hostname>,
    /// The target port of each service port, in the order of the ports.
    pub targets: Vec<TargetPort>,
    /// `internalTrafficPolicy: Local`: clients use only endpoints of their own node.
    pub node_local: bool,
    /// `publishNotReadyAddresses`: DNS names of pods are published before the pods are ready.
    pub publish_not_ready: bool,
    /// The Service has type LoadBalancer.
    pub load_balanced: bool,
    /// Addresses of its load balancers and nodes, by cluster.
    pub external_addresses: Vec<ExternalAddresses>,
}

/// Addresses of the load balancers and nodes of a Service in one cluster. Services of the same name in other clusters may be
/// gateways of other networks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ExternalAddresses {
    pub cluster: ClusterId,
    pub addresses: Vec<Str>,
    /// The network whose gateway the Service is by its label.
    pub gateway_of: Option<LabelledNetwork>,
    /// Service port to node port.
    pub node_ports: Vec<(u16, u16)>,
}

/// The network in the label of a gateway's Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LabelledNetwork {
    pub network: Str,
    /// The port for requests from other networks; `None` if the Service does not have it.
    pub port: Option<u16>,
}

/// The target port of a service port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TargetPort {
    pub target: Target,
    pub transport: Transport,
}

/// A container port by number or by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    Number(u16),
    Name(Str),
}

impl Service {
    /// A service in the mesh with endpoints; all other fields have their defaults.
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

    /// Whether it is a Kubernetes Service without a cluster IP.
    pub fn is_headless(&self) -> bool {
        self.registry == Registry::Kubernetes && self.resolution == Resolution::Passthrough
    }

    /// All ports but UDP, which is not proxied.
    pub fn proxied_ports(&self) -> impl Iterator<Item = &Port> {
        self.ports.iter().filter(|p| p.protocol != Protocol::Udp)
    }
}

/// The registry that a service comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Registry {
    Kubernetes,
    /// ServiceEntry.
    External,
    /// A registry with an adapter in `sources::registry`. Lower ranks come first where several registries have one host.
    Adapter {
        rank: u8,
        name: &'static str,
    },
}

impl Registry {
    /// Upstream's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Registry::Kubernetes => "Kubernetes",
            Registry::External => "External",
            Registry::Adapter { name, .. } => name,
        }
    }
}

/// How a proxy discovers the endpoints of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resolution {
    /// EDS: the endpoints that we send.
    ClientSide,
    /// STRICT_DNS: all addresses of a DNS answer.
    Dns,
    /// LOGICAL_DNS: one address at a time.
    DnsRoundRobin,
    /// Dynamic forward proxy: DNS by the host of each request.
    DynamicDns,
    /// ORIGINAL_DST: the original destination of the connection.
    Passthrough,
    /// An alias of another service.
    Alias,
}

impl Resolution {
    pub fn is_dns(self) -> bool {
        matches!(self, Resolution::Dns | Resolution::DnsRoundRobin)
    }
}

/// Locality preference, as in Kubernetes' `trafficDistribution`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TrafficDistribution {
    #[default]
    Any,
    PreferSameZone,
    PreferSameNode,
}

/// The namespaces that may see an object. Empty means the default of the mesh.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ExportTo(BTreeSet<Visibility>);

/// One item of exportTo.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Visibility {
    /// `*`
    Public,
    /// `.`: the object's own namespace.
    Private,
    /// `~`: no namespace.
    None,
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

    /// This list, or `default` if it is unset.
    pub fn or<'a>(&'a self, default: &'a ExportTo) -> &'a ExportTo {
        if self.is_unset() { default } else { self }
    }

    /// Whether all namespaces may see the object.
    pub fn is_public(&self) -> bool {
        self.is_unset() || self.0.contains(&Visibility::Public)
    }

    /// Whether a client in `client` may see an object of namespace `owner`.
    pub fn admits(&self, owner: &Namespace, client: &Namespace) -> bool {
        if self.is_public() {
            return true;
        }
        if self.0.contains(&Visibility::None) {
            return false;
        }
        self.0.iter().any(|v| match v {
            Visibility::Private => owner == client,
            Visibility::Namespace(ns) => ns == client,
            Visibility::Public | Visibility::None => false,
        })
    }
}

impl Visibility {
    pub fn parse(text: &str) -> Visibility {
        match text {
            "*" => Visibility::Public,
            "." => Visibility::Private,
            "~" => Visibility::None,
            other => Visibility::Namespace(other.into()),
        }
    }
}
