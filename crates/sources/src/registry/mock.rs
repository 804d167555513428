//! The Mock registry: two services with fixed endpoints, the same that upstream had until 1.13. For first steps and
//! tests.

use std::net::Ipv4Addr;
use std::sync::Arc;

use model::change::{Change, SourceId};
use model::endpoint::{Endpoint, Locality};
use model::names::{ClusterId, Hostname, Namespace, Str};
use model::port::{Port, Protocol};
use model::service::{Registry, Service};
use serde::Deserialize;

use crate::registry::adapter::{Adapter, SourcePlace};
use crate::registry::flags::{FlagValues, RegistryFlag};
use crate::registry::normalize;
use crate::registry::options_error::OptionsError;
use crate::source::{ChangeSender, Source, SourceError};

const REGISTRY: Registry = Registry::Adapter { rank: 60, name: "Mock" };

/// Name and virtual address. The last two octets of endpoint addresses are 1 and the version.
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

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct MockOptions {
    /// The DNS suffix of the host names.
    pub domain: String,
}

impl Adapter for MockOptions {
    const REGISTRY: Registry = REGISTRY;
    const SECTION: Option<&'static str> = None;
    const FLAGS: &'static [RegistryFlag] = &[];

    fn from_flags(flags: &FlagValues) -> Result<MockOptions, OptionsError> {
        Ok(MockOptions { domain: flags.domain.clone() })
    }

    fn check(&self) -> Result<(), OptionsError> {
        Ok(())
    }

    fn source(self, place: SourcePlace) -> impl Source {
        MockRegistry::new(self, place)
    }
}

/// The source.
#[derive(Clone, Debug)]
pub struct MockRegistry {
    id: SourceId,
    domain: String,
    cluster: ClusterId,
}

impl MockRegistry {
    pub fn new(options: MockOptions, place: SourcePlace) -> MockRegistry {
        MockRegistry { id: place.id, domain: options.domain, cluster: place.cluster }
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
            ..Service::new(REGISTRY, hostname, NAMESPACE.into(), name, ports)
        }
    }

    fn endpoints(&self, name: &str, address: Ipv4Addr) -> Vec<Endpoint> {
        let namespace = Namespace::new(NAMESPACE);
        let ports = |version| PORTS.iter().map(move |(port, number, _)| (version, *port, *number));
        (0..VERSIONS)
            .flat_map(ports)
            .map(|(version, port, number)| Endpoint {
                port: target_port(number),
                service_port: port.into(),
                service_port_number: number,
                labels: [("version", format!("v{version}"))].into_iter().collect(),
                locality: Locality::parse("region/zone"),
                workload_name: format!("{name}-v{version}").into(),
                ..normalize::endpoint(&instance_address(address, version).to_string(), &namespace, &self.cluster)
            })
            .collect()
    }
}

fn instance_address(service: Ipv4Addr, version: u8) -> Ipv4Addr {
    let [a, b, _, _] = service.octets();
    Ipv4Addr::new(a, b, 1, version)
}

/// Service port 80 targets port 80; the others target a port 1000 higher, so that tests notice a mix-up.
fn target_port(port: u16) -> u32 {
    if port == 80 { 80 } else { u32::from(port) + 1000 }
}

impl Source for MockRegistry {
    fn id(&self) -> SourceId {
        self.id.clone()
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        let mut changes = self.changes();
        changes.push(Change::Synced);
        sender.send(changes).await?;
        sender.closed().await;
        Ok(())
    }
}
