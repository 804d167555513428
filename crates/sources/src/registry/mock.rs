//! The Mock registry: two services with known endpoints, the same as upstream had until 1.13.
//! Good for a first look and for tests; it never changes.

use std::net::Ipv4Addr;
use std::sync::Arc;

use model::change::{Change, SourceId};
use model::endpoint::{Endpoint, Locality};
use model::names::{ClusterId, Hostname, Namespace, Str};
use model::port::{Port, Protocol};
use model::service::{Registry, Service};

use super::normalize;
use crate::source::{ChangeSender, Source, SourceError};

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
pub struct MockRegistry {
    domain: Str,
    cluster: ClusterId,
}

impl MockRegistry {
    pub fn new(domain: impl Into<Str>, cluster: ClusterId) -> MockRegistry {
        MockRegistry { domain: domain.into(), cluster }
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
        let address: Str = address.to_string().into();
        let ports = PORTS.map(|(name, number, protocol)| Port { name: name.into(), number, protocol }).to_vec();
        let hostname = Hostname::new(format!("{name}.{NAMESPACE}.svc.{}", self.domain));
        Service {
            cluster_addresses: vec![(self.cluster.clone(), vec![address.clone()])],
            address,
            ..Service::new(Registry::Mock, hostname, NAMESPACE.into(), name, ports)
        }
    }

    fn endpoints(&self, name: &str, address: Ipv4Addr) -> Vec<Endpoint> {
        let namespace = Namespace::new(NAMESPACE);
        let ports = |version| PORTS.iter().map(move |(port, number, _)| (version, *port, *number));
        (0..VERSIONS)
            .flat_map(ports)
            .map(|(version, port, number)| Endpoint {
                port: target(number),
                service_port: port.into(),
                service_port_number: number,
                labels: [("version", format!("v{version}"))].into_iter().collect(),
                locality: Locality::parse("region/zone"),
                workload_name: format!("{name}-v{version}").into(),
                ..normalize::endpoint(&instance(address, version).to_string(), &namespace, &self.cluster)
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

impl Source for MockRegistry {
    fn id(&self) -> SourceId {
        SourceId(Registry::Mock.as_str().into())
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        let mut changes = self.changes();
        changes.push(Change::Synced);
        sender.send(changes).await?;
        sender.closed().await;
        Ok(())
    }
}
