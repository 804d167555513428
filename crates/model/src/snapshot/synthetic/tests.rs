//! A reader of the generated entries gets the same service, except for fields that entries cannot express.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::change::{Batch, Change, SourceId};
use crate::config::validate::validate;
use crate::endpoint::{Endpoint, Health, Locality, TlsMode};
use crate::names::{ServiceKey, Str};
use crate::port::{Port, Protocol};
use crate::service::{ExportTo, Registry, Service, UNSPECIFIED};
use crate::settings::Settings;
use crate::snapshot::Snapshot;

use super::{entries, services};

fn snapshot(changes: Vec<Change>) -> Snapshot {
    let settings = Settings { cluster: "c1".into(), ..Settings::default() };
    Snapshot::empty(settings).apply(vec![Batch { source: SourceId("Consul".into()), changes }]).0
}

const CONSUL: Registry = Registry::Adapter { rank: 10, name: "Consul" };

fn service(registry: Registry, address: &str) -> Service {
    let port = |name: &str, number, protocol| Port { name: name.into(), number, protocol };
    let ports = vec![port("http", 80, Protocol::Http), port("port-90", 90, Protocol::Unknown)];
    Service {
        address: address.into(),
        export_to: ExportTo::parse([".", "pay"]),
        labels: [("tier", "front")].into_iter().collect(),
        service_accounts: vec!["spiffe://cluster.local/ns/shop/sa/web".into()],
        created: 7,
        ..Service::new(registry, "web.service.consul".into(), "shop".into(), "web", ports)
    }
}

fn endpoint(address: &str, port: u32, service_port: (&str, u16)) -> Endpoint {
    Endpoint {
        port,
        service_port: service_port.0.into(),
        service_port_number: service_port.1,
        labels: [("version", "v1"), ("topology.istio.io/cluster", "c1")].into_iter().collect(),
        cluster: "c1".into(),
        namespace: "shop".into(),
        health: Health::Healthy,
        ..Endpoint::at(address)
    }
}

/// Endpoints that serve one port or both; the last serves neither.
fn endpoints(has_other_port: impl Fn(&str) -> bool) -> Vec<Endpoint> {
    let identity: Str = "spiffe://cluster.local/ns/shop/sa/web".into();
    let elsewhere: Str = "spiffe://cluster.local/ns/other/sa/web".into();
    let http = |address: &str, port| endpoint(address, port, ("http", 80));
    let plain = [
        Endpoint { locality: Locality::parse("eu/a"), weight: 3, ..http("10.0.0.1", 8080) },
        // Two instances on one machine.
        http("10.0.0.2", 61001),
        http("10.0.0.2", 61002),
        Endpoint { service_account: identity.clone(), tls: TlsMode::Istio, ..http("10.0.0.3", 80) },
        Endpoint { service_account: identity, ..http("10.0.0.4", 80) },
        Endpoint { service_account: elsewhere, tls: TlsMode::Istio, ..http("10.0.0.5", 80) },
        Endpoint { health: Health::Unhealthy, ..http("10.0.0.6", 80) },
    ];
    let other = |e: &Endpoint| {
        let (service_port, service_port_number) = ("port-90".into(), 90);
        Endpoint { port: e.port + 1000, service_port, service_port_number, ..e.clone() }
    };
    let others: Vec<Endpoint> = plain.iter().filter(|e| has_other_port(e.address())).map(other).collect();
    plain.into_iter().chain(others).collect()
}

/// The endpoint fields that entries can express.
fn fields(endpoint: &Endpoint) -> String {
    let Endpoint { port, service_port, locality, weight, tls, .. } = endpoint;
    let version = endpoint.labels.get("version");
    format!("{}:{port} {service_port} {locality} {weight} {tls:?} {version:?}", endpoint.address())
}

fn all_fields(snapshot: &Snapshot, key: &ServiceKey) -> Vec<String> {
    let serving = snapshot.endpoints.of(key).filter(|e| e.health != Health::Unhealthy);
    let mut all: Vec<String> = serving.map(fields).collect();
    all.sort();
    all
}

/// Applies a service to one snapshot and its entries to another. Returns the number of entries.
fn check(address: &str, endpoints: Vec<Endpoint>) -> usize {
    let written = service(CONSUL, address);
    let (key, serving) = (written.key(), endpoints.iter().filter(|e| e.health == Health::Healthy).count());
    let applied = Change::ServiceApplied(Arc::new(written.clone()));
    let first = snapshot(vec![applied, Change::Endpoints(key.clone(), endpoints)]);
    assert_eq!(services(&first).count(), 1);
    let objects = entries(&first, &key);
    assert_eq!(objects.iter().flat_map(validate).collect::<Vec<_>>(), []);
    let count = objects.len();

    let second = snapshot(objects.into_iter().map(Change::Applied).collect());
    let read: Vec<&Arc<Service>> = second.services.iter().filter(|service| service.key() == key).collect();
    let mut ports: Vec<Port> = read.iter().flat_map(|service| service.ports.clone()).collect();
    ports.sort_by_key(|port| port.number);
    assert_eq!(ports, written.ports);
    for service in read {
        let essence = |s: &Service| {
            let Service { resolution, mesh_external, export_to, service_accounts, address, labels, .. } = s.clone();
            (resolution, mesh_external, export_to, service_accounts, address, labels)
        };
        assert_eq!(essence(service), essence(&written));
    }
    assert_eq!(all_fields(&second, &key), all_fields(&first, &key));
    assert_eq!(all_fields(&second, &key).len(), serving, "unhealthy endpoints are left out");
    let accounts: BTreeSet<&str> = second.endpoints.of(&key).map(|e| &*e.service_account).collect();
    assert_eq!(accounts, BTreeSet::from(["", "spiffe://cluster.local/ns/shop/sa/web"]));
    assert_eq!(services(&second).count(), 0, "no entry is generated from an entry");
    count
}

#[test]
fn reader_gets_the_same_service() {
    for address in ["10.9.0.1", UNSPECIFIED] {
        assert_eq!(check(address, endpoints(|_| true)), 1);
    }
}

#[test]
fn endpoints_with_different_ports_get_different_entries() {
    assert_eq!(check("10.9.0.1", endpoints(|address| address == "10.0.0.2" || address == "10.0.0.3")), 2);
}

#[test]
fn entries_are_generated_only_for_other_registries() {
    for (registry, expected) in [(Registry::Kubernetes, 0), (CONSUL, 1)] {
        let written = service(registry, UNSPECIFIED);
        let key = written.key();
        let snapshot = snapshot(vec![Change::ServiceApplied(Arc::new(written))]);
        assert_eq!((services(&snapshot).count(), entries(&snapshot, &key).len()), (expected, expected), "{registry:?}");
    }
}
