//! `push_status`: conflicts and gaps in the current configuration, in upstream's format: by metric name, then by object.

use std::collections::{BTreeMap, BTreeSet};

use api::TypeUrl;
use model::config::{Kind, Spec};
use model::endpoint::Health;
use model::host::resolve_short_name;
use model::proxy::ProxyKind;
use model::service::Resolution;
use model::snapshot::Snapshot;
use scope::inbound::ServiceTarget;
use serde_json::{Map, Value, json};

use super::{PageQuery, PageResponse, Pages};
use crate::serve::session::ControlPlane;

/// What is wrong, by object.
type Section = BTreeMap<String, Value>;

/// Name and help of a metric, and what it counts.
type Gap = (&'static str, &'static str, fn(&ControlPlane, &Snapshot) -> Section);

const GAPS: [Gap; 8] = [
    (
        "pilot_conflict_inbound_listener",
        "Connected sidecars with a port of two services whose protocols differ",
        |p, _| inbound_conflicts(p),
    ),
    (
        "pilot_conflict_outbound_listener_tcp_over_current_tcp",
        "Outbound listeners of which a TCP service was left out because another one has the same address and port",
        |pilot, _| outbound_conflicts(pilot),
    ),
    ("pilot_duplicate_envoy_clusters", "Clusters of the same name, of which one is served", |pilot, _| {
        duplicate_clusters(pilot)
    }),
    ("pilot_destrule_subsets", "Subsets that several DestinationRules define for one host", |_, w| {
        duplicate_subsets(w)
    }),
    ("pilot_eds_no_instances", "Clusters without endpoints", |_, w| without_endpoints(w)),
    ("pilot_endpoint_not_ready", "Connected sidecars whose endpoint is not ready", not_ready),
    ("pilot_no_ip", "Connected sidecars that are no endpoint of any service", |pilot, _| without_service(pilot)),
    ("pilot_vservice_dup_domain", "Hosts of several VirtualServices", |_, w| duplicate_domains(w)),
];

pub(super) fn push_status(pages: &Pages, _: &PageQuery) -> PageResponse {
    let published = pages.pilot().world().now();
    let sections = GAPS.iter().map(|(name, _, find)| (*name, find(pages.pilot(), &published.snapshot)));
    let filled = sections.filter(|(_, section)| !section.is_empty());
    let shown = filled.map(|(name, section)| (name.to_owned(), section.into_iter().collect::<Map<_, _>>().into()));
    PageResponse::json(shown.collect::<Map<_, _>>().into())
}

/// The number of objects of each metric: name, help, number.
pub(in crate::http) fn gap_counts(pilot: &ControlPlane, world: &Snapshot) -> [(&'static str, &'static str, usize); 8] {
    GAPS.map(|(name, help, find)| (name, help, find(pilot, world).len()))
}

/// Sidecars with a port that belongs to two services with different protocols. The older service gets it.
fn inbound_conflicts(pilot: &ControlPlane) -> Section {
    let mut found = Section::new();
    for client in pilot.clients().all() {
        let Some(cut) = client.cut().filter(|_| client.proxy.kind == ProxyKind::Sidecar) else { continue };
        let mut first: BTreeMap<u32, &ServiceTarget> = BTreeMap::new();
        for target in cut.view.inbound.iter() {
            let port = target.target_port;
            let existing = first.entry(port).or_insert(target);
            let (host, other) = (&existing.service.hostname, &target.service.hostname);
            if existing.port.protocol != target.port.protocol && host != other {
                let message = format!("Conflicting inbound listener:{port}. existing: {host}, incoming: {other}");
                found.insert(client.proxy.id.to_string(), json!({"proxy": &*client.proxy.id, "message": message}));
            }
        }
    }
    found
}

fn outbound_conflicts(pilot: &ControlPlane) -> Section {
    let listeners = pilot.views().layers().conflicts(&TypeUrl::LISTENER);
    let message = "several TCP services have the same address and port; one is served";
    listeners.into_iter().map(|listener| (listener.to_string(), json!({"message": message}))).collect()
}

fn duplicate_clusters(pilot: &ControlPlane) -> Section {
    let clusters = pilot.views().layers().conflicts(&TypeUrl::CLUSTER);
    let message = |name: &str| format!("Duplicate cluster {name} found while pushing CDS");
    clusters.into_iter().map(|name| (name.to_string(), json!({"message": message(&name)}))).collect()
}

/// Sidecars that are no endpoint of any service.
fn without_service(pilot: &ControlPlane) -> Section {
    let clients = pilot.clients().all();
    let alone = clients.iter().filter(|client| {
        let serves = client.cut().is_some_and(|cut| !cut.view.inbound.is_empty());
        client.proxy.kind == ProxyKind::Sidecar && !client.only_looks() && !serves
    });
    alone.map(|client| (client.proxy.id.to_string(), json!({"proxy": &*client.proxy.id}))).collect()
}

/// Sidecars of which an endpoint is not ready.
fn not_ready(pilot: &ControlPlane, world: &Snapshot) -> Section {
    let endpoints = world.endpoints.services().flat_map(|service| world.endpoints.of(service));
    let unready = endpoints.filter(|endpoint| endpoint.health == Health::Unhealthy);
    let addresses: BTreeSet<&str> = unready.flat_map(|e| &e.addresses).map(|address| &**address).collect();
    if addresses.is_empty() {
        return Section::new();
    }
    let clients = pilot.clients().all();
    let found = clients.iter().filter(|client| {
        let is_unready = client.proxy.ips.iter().any(|address| addresses.contains(&*address.to_string()));
        client.proxy.kind == ProxyKind::Sidecar && is_unready
    });
    found.map(|client| (client.proxy.id.to_string(), json!({"proxy": &*client.proxy.id}))).collect()
}

/// Clusters of services without endpoints.
fn without_endpoints(world: &Snapshot) -> Section {
    let discovered = world.services.iter().filter(|service| service.resolution == Resolution::ClientSide);
    let empty = discovered.filter(|service| world.endpoints.of(&service.key()).next().is_none());
    let clusters = empty.flat_map(|service| {
        service.proxied_ports().map(|port| format!("outbound|{}||{}", port.number, service.hostname))
    });
    clusters.map(|cluster| (cluster, json!({}))).collect()
}

/// Mesh-internal hosts of several VirtualServices: only the routes of the first apply.
fn duplicate_domains(world: &Snapshot) -> Section {
    let mut found = Section::new();
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    for rule in &world.routing.virtual_services {
        let (spec, meta) = (&rule.config.spec, &rule.config.meta);
        if !spec.gateways.is_empty() && !spec.gateways.iter().any(|gateway| gateway == "mesh") {
            continue;
        }
        for host in &spec.hosts {
            let name = format!("{}/{}", meta.namespace, meta.name);
            if let Some(first) = known.get(host) {
                let message =
                    format!("duplicate domain from virtual service: {host} of {name} already belongs to {first}");
                found.insert(host.clone(), json!({"message": message}));
            } else {
                known.insert(host.clone(), name);
            }
        }
    }
    found
}

/// Subsets that several DestinationRules of a namespace define for the same host.
fn duplicate_subsets(world: &Snapshot) -> Section {
    let (mut found, mut known) = (Section::new(), BTreeSet::new());
    for object in world.objects.of(Kind::DestinationRule) {
        let Spec::DestinationRule(rule) = &object.spec else { continue };
        let namespace = &object.meta.namespace;
        let host = resolve_short_name(&rule.host, namespace, &world.settings.domain);
        for subset in &rule.subsets {
            if !known.insert((namespace.clone(), host.clone(), subset.name.clone())) {
                let message =
                    format!("duplicate subset {} found while merging destination rules for {host}", subset.name);
                found.insert(host.to_string(), json!({"message": message}));
            }
        }
    }
    found
}
