//! Two registries with one host name, under every policy and in every order of arrival.

use std::sync::Arc;

use super::super::Snapshot;
use crate::change::{Batch, Change, SourceId};
use crate::conflict::{ConflictPolicy, ConflictSettings};
use crate::endpoint::{Endpoint, Health};
use crate::names::ServiceKey;
use crate::port::{Port, Protocol};
use crate::service::{Registry, Service};
use crate::settings::Settings;

const CONSUL: Registry = Registry::Adapter { rank: 10, name: "Consul" };
const EUREKA: Registry = Registry::Adapter { rank: 20, name: "Eureka" };

fn service(registry: Registry, port: u16) -> Service {
    let ports = vec![Port { name: "http".into(), number: port, protocol: Protocol::Http }];
    Service::new(registry, "cart.mesh".into(), "default".into(), "cart", ports)
}

fn endpoint(address: &str) -> Endpoint {
    Endpoint {
        port: 80,
        service_port: "http".into(),
        service_port_number: 80,
        namespace: "default".into(),
        health: Health::Healthy,
        ..Endpoint::at(address)
    }
}

fn batch(source: &str, registry: Registry, address: &str) -> Batch {
    let service = service(registry, 80);
    let endpoints = Change::Endpoints(service.key(), vec![endpoint(address)]);
    Batch { source: SourceId(source.into()), changes: vec![Change::ServiceApplied(Arc::new(service)), endpoints] }
}

fn gone(source: &str) -> Batch {
    let key = service(CONSUL, 80).key();
    let changes = vec![Change::Endpoints(key.clone(), Vec::new()), Change::ServiceDeleted(key)];
    Batch { source: SourceId(source.into()), changes }
}

fn snapshot(policy: ConflictPolicy) -> Snapshot {
    let order = vec!["Eureka".into()];
    let conflicts = ConflictSettings { policy, order, ..ConflictSettings::default() };
    Snapshot::empty(Settings { conflicts, ..Settings::default() })
}

/// `namespace registry: addresses` of every service, and the messages.
fn shown(snapshot: &Snapshot) -> (Vec<String>, usize) {
    let line = |service: &Arc<Service>| {
        let key = ServiceKey { hostname: service.hostname.clone(), namespace: service.namespace.clone() };
        let addresses: Vec<&str> = snapshot.endpoints.of(&key).map(Endpoint::address).collect();
        format!("{} {}: {}", service.namespace, service.registry.as_str(), addresses.join(" "))
    };
    let mut lines: Vec<String> = snapshot.services.iter().map(line).collect();
    lines.sort();
    (lines, snapshot.problems.values().flatten().count())
}

fn check(policy: ConflictPolicy, expected: &[&str]) {
    let consul = || batch("Consul", CONSUL, "10.0.0.1");
    let eureka = || batch("Eureka/a", EUREKA, "10.0.0.2");
    let arrivals = [
        vec![vec![consul(), eureka()]],
        vec![vec![eureka(), consul()]],
        vec![vec![consul()], vec![eureka()]],
        vec![vec![eureka()], vec![consul()]],
    ];
    for batches in arrivals {
        let both = batches.into_iter().fold(snapshot(policy), |snapshot, step| snapshot.apply(step).0);
        assert_eq!(shown(&both), (expected.iter().map(|l| (*l).to_owned()).collect(), 1), "{policy:?}");
        let (alone, delta) = both.apply(vec![gone("Eureka/a")]);
        assert_eq!(shown(&alone), (vec!["default Consul: 10.0.0.1".to_owned()], 0), "{policy:?}");
        let key = service(CONSUL, 80).key();
        assert!(delta.services.contains(&key) && delta.endpoints.contains(&key), "{policy:?}: {delta:?}");
        let (none, _) = alone.apply(vec![gone("Consul")]);
        assert_eq!(shown(&none), (Vec::new(), 0), "{policy:?}");
    }
}

#[test]
fn policies_do_not_depend_on_the_order_of_arrival() {
    check(ConflictPolicy::Merge, &["default Eureka: 10.0.0.1 10.0.0.2"]);
    check(ConflictPolicy::Order, &["default Eureka: 10.0.0.2"]);
    check(ConflictPolicy::Isolate, &["consul Consul: 10.0.0.1", "default Eureka: 10.0.0.2"]);
    check(ConflictPolicy::Reject, &[]);
}

#[test]
fn changes_of_a_shadowed_registry_show_at_its_new_key() {
    let batches = || vec![batch("Consul", CONSUL, "10.0.0.1"), batch("Eureka", EUREKA, "10.0.0.2")];
    let key = service(CONSUL, 80).key();
    let moved = Change::Endpoints(key.clone(), vec![endpoint("10.0.0.9")]);
    let edit = || vec![Batch { source: SourceId("Consul".into()), changes: vec![moved.clone()] }];

    let (silent, delta) = snapshot(ConflictPolicy::Order).apply(batches()).0.apply(edit());
    assert!(delta.is_empty(), "{delta:?}");
    assert_eq!(shown(&silent.apply(vec![gone("Eureka")]).0).0, ["default Consul: 10.0.0.9"]);

    let (apart, delta) = snapshot(ConflictPolicy::Isolate).apply(batches()).0.apply(edit());
    assert_eq!(shown(&apart).0, ["consul Consul: 10.0.0.9", "default Eureka: 10.0.0.2"]);
    assert_eq!(delta.endpoints.iter().map(|k| k.namespace.as_str()).collect::<Vec<_>>(), ["consul"]);
}

#[test]
fn merged_port_that_the_first_registry_lacks_is_reported() {
    let mut other = batch("Consul", CONSUL, "10.0.0.1");
    other.changes[0] = Change::ServiceApplied(Arc::new(service(CONSUL, 81)));
    let (snapshot, _) = snapshot(ConflictPolicy::Merge).apply(vec![other, batch("Eureka", EUREKA, "10.0.0.2")]);
    let messages: Vec<String> = snapshot.problems.values().flatten().map(ToString::to_string).collect();
    assert_eq!(
        messages,
        ["service default/cart.mesh: registries Eureka, Consul all have it: the endpoints of all are \
          served, with the definition of Eureka, which lacks port 81 (http HTTP) of Consul"]
    );
}

#[test]
fn kubernetes_clusters_share_a_service_without_conflict() {
    let batches = ["a", "b"].map(|c| batch(c, Registry::Kubernetes, "10.0.0.1")).to_vec();
    let (snapshot, _) = snapshot(ConflictPolicy::Reject).apply(batches);
    assert_eq!((snapshot.services.len(), snapshot.problems.values().flatten().count()), (1, 0));
}

#[test]
fn first_matching_host_pattern_decides() {
    let hosts = vec![("*.mesh".into(), ConflictPolicy::Order), ("*".into(), ConflictPolicy::Reject)];
    let conflicts = ConflictSettings { hosts, ..ConflictSettings::default() };
    assert_eq!(conflicts.policy_of(&"cart.mesh".into()), ConflictPolicy::Order);
    assert_eq!(conflicts.policy_of(&"cart.other".into()), ConflictPolicy::Reject);
}
