//! The Mock registry: two services with known endpoints, the same as upstream had until 1.13.
//! Good for a first look and for tests; it never changes.

use std::net::Ipv4Addr;
use std::sync::Arc;

use model::change::{Change, SourceId};
use model::endpoint::{Endpoint, Health, Locality, TlsMode};
use model::labels::Labels;
use model::names::{ClusterId, Hostname, Namespace, NetworkId, Text};
use model::port::{Port, Protocol};
use model::service::{ExportTo, Registry, Resolution, Service, TrafficDistribution};

use crate::source::{Outlet, Source, Stopped};

/// Name and virtual address; endpoints stand at the address with 1 and the version as last two parts.
const SERVICES: [(&str, Ipv4Addr); 2] = [("hello", Ipv4Addr::new(10, 1, 0, 0)), ("world", Ipv4Addr::new(10, 2, 0, 0))];
const NAMESPACE: &str = "default";
const VERSIONS: u8 = 2;
const PORTS: [(&str, u16, Protocol); 6] = [
    ("http", 80, Protocol::Http),
    ("http-status", 81, Protocol::Http),
    ("custom", 90, Protocol::Tcp),
    ("mongo", 100, Protocol::Mongo),
    ("redis", 110, Protocol::Redis),
    ("mysql", 120, Protocol::MySql),
];

/// The registry, for a mesh with this DNS suffix.
#[derive(Clone, Debug)]
pub struct Mock {
    domain: Text,
    cluster: ClusterId,
}

impl Mock {
    pub fn new(domain: impl Into<Text>, cluster: ClusterId) -> Mock {
        Mock { domain: domain.into(), cluster }
    }

    fn changes(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        for (name, address) in SERVICES {
            let service = self.service(name, address);
            let key = service.key();
            changes.push(Change::ServiceApplied(Arc::new(service)));
            changes.push(Change::Endpoints(key, self.endpoints(name, address)));
        }
        changes
    }

    fn service(&self, name: &str, address: Ipv4Addr) -> Service {
        let address: Text = address.to_string().into();
        Service {
            hostname: Hostname::new(format!("{name}.{NAMESPACE}.svc.{}", self.domain)),
            namespace: NAMESPACE.into(),
            name: name.into(),
            object_name: name.into(),
            registry: Registry::Mock,
            ports: PORTS.map(|(name, number, protocol)| Port { name: name.into(), number, protocol }).to_vec(),
            resolution: Resolution::ClientSide,
            mesh_external: false,
            cluster_addresses: vec![(self.cluster.clone(), vec![address.clone()])],
            address,
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

    fn endpoints(&self, name: &str, address: Ipv4Addr) -> Vec<Endpoint> {
        let ports = |version| PORTS.iter().map(move |(port, number, _)| (version, *port, *number));
        (0..VERSIONS)
            .flat_map(ports)
            .map(|(version, port, number)| Endpoint {
                addresses: vec![instance(address, version).to_string().into()],
                port: target(number),
                service_port: port.into(),
                service_port_number: number,
                labels: [("version", format!("v{version}"))].into_iter().collect(),
                locality: Locality::parse("region/zone"),
                network: NetworkId::default(),
                cluster: self.cluster.clone(),
                weight: 0,
                service_account: "".into(),
                tls: TlsMode::Disabled,
                namespace: Namespace::new(NAMESPACE),
                workload_name: format!("{name}-v{version}").into(),
                health: Health::Healthy,
                node_name: "".into(),
                host_name: "".into(),
                sub_domain: "".into(),
                cluster_local: false,
            })
            .collect()
    }
}

/// Where a version of a service stands.
fn instance(service: Ipv4Addr, version: u8) -> Ipv4Addr {
    let [a, b, _, _] = service.octets();
    Ipv4Addr::new(a, b, 1, version)
}

/// Port 80 is served on 80; the others a thousand higher, so that nobody mixes up the two.
fn target(port: u16) -> u32 {
    if port == 80 { 80 } else { u32::from(port) + 1000 }
}

impl Source for Mock {
    fn id(&self) -> SourceId {
        SourceId(Registry::Mock.as_str().into())
    }

    async fn run(&mut self, outlet: Outlet) -> Result<(), Stopped> {
        let mut changes = self.changes();
        changes.push(Change::Synced);
        outlet.send(changes).await?;
        outlet.closed().await;
        Ok(())
    }
}
