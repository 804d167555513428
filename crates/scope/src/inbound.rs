//! Services that have this proxy as an endpoint: its inbound listeners must serve them.

use std::sync::Arc;

use model::config::{Kind, Spec};
use model::endpoint::Endpoint;
use model::labels::Labels;
use model::names::{Namespace, Str};
use model::port::Port;
use model::proxy::Proxy;
use model::service::{Registry, Resolution, Service, Target, TargetPort};
use model::snapshot::Snapshot;
use model::workload::Workload;

use crate::identity;

/// One port of one service that this proxy serves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceTarget {
    pub service: Arc<Service>,
    pub port: Port,
    /// The port that the workload listens on.
    pub target_port: u32,
}

/// The proxy's own services, oldest first: those of Kubernetes that select its pod, and others of its namespace
/// with an endpoint at one of its addresses. If several share a port, the first one gets it.
pub fn targets(world: &Snapshot, proxy: &Proxy) -> Vec<ServiceTarget> {
    let mut found = of_kubernetes(world, proxy);
    for ip in &proxy.ips {
        let other = |service: &Service| service.registry != Registry::Kubernetes;
        at_address(world, &ip.to_string(), &proxy.namespace, other, &mut found);
    }
    let age = |t: &ServiceTarget| (t.service.created, t.service.hostname.clone());
    found.sort_by_cached_key(age);
    found
}

/// Adds services of this namespace with an endpoint at the address.
fn at_address(
    world: &Snapshot,
    address: &str,
    namespace: &Namespace,
    wanted: impl Fn(&Service) -> bool,
    found: &mut Vec<ServiceTarget>,
) {
    for key in world.endpoints.at(address) {
        if !namespace.is_empty() && key.namespace != *namespace {
            continue;
        }
        let Some(service) = world.services.get(key).filter(|s| wanted(s)) else { continue };
        for endpoint in world.endpoints.of(key).filter(|e| is_at(e, address)) {
            let Some(port) = service.port_by_name(&endpoint.service_port) else { continue };
            let target = ServiceTarget { service: service.clone(), port: port.clone(), target_port: endpoint.port };
            if !found.contains(&target) {
                found.push(target);
            }
        }
    }
}

fn is_at(endpoint: &Endpoint, address: &str) -> bool {
    endpoint.addresses.iter().any(|a| **a == *address)
}

/// Services of Kubernetes that the proxy serves: those of a WorkloadEntry at its address, else those of its pod, or
/// of the labels it sent while its pod is unknown.
fn of_kubernetes(world: &Snapshot, proxy: &Proxy) -> Vec<ServiceTarget> {
    let address = proxy.ips.first().map(ToString::to_string).unwrap_or_default();
    if let Some(labels) = entry_at(world, proxy, &address) {
        let selected = world.services.selecting(&proxy.namespace).iter().filter(|s| s.selector.is_subset_of(&labels));
        let balanced = selected.filter(|s| s.resolution == Resolution::ClientSide);
        return balanced.flat_map(|s| at_entry(world, s, &address)).collect();
    }
    let Some(pod) = identity::workload(world, proxy) else {
        return selected_by(world, proxy, &proxy.labels, |target| port_in_metadata(proxy, target));
    };
    let found = selected_by(world, proxy, &pod.labels, |target| pod_port(pod, target));
    if !found.is_empty() {
        return found;
    }
    // A service without a selector lists its endpoints.
    let mut listed = Vec::new();
    at_address(world, &address, &proxy.namespace, |s| s.registry == Registry::Kubernetes, &mut listed);
    listed
}

/// The labels of a WorkloadEntry of the proxy's namespace at its address.
fn entry_at(world: &Snapshot, proxy: &Proxy, address: &str) -> Option<Labels> {
    if world.endpoints.at(address).is_empty() {
        return None;
    }
    world.objects.of_namespace(Kind::WorkloadEntry, &proxy.namespace).find_map(|object| match &object.spec {
        Spec::WorkloadEntry(entry) => {
            let entry = entry.open();
            if entry.address != address {
                return None;
            }
            let own = entry.labels.iter().map(|(k, v)| (Str::from(k.as_str()), Str::from(v.as_str())));
            Some(own.chain(object.meta.labels.iter().map(|(k, v)| (k.clone(), v.clone()))).collect())
        }
        _ => None,
    })
}

fn at_entry(world: &Snapshot, service: &Arc<Service>, address: &str) -> Vec<ServiceTarget> {
    let endpoints = world.endpoints.of(&service.key());
    let here = endpoints.filter(|e| is_at(e, address));
    let target = |e: &Endpoint| {
        let port = service.port_by_name(&e.service_port)?.clone();
        Some(ServiceTarget { service: service.clone(), port, target_port: e.port })
    };
    here.filter_map(target).collect()
}

/// Targets of the services that select these labels. Of ports with the same target and protocol the first is used;
/// a port for which `number` returns `None` is left out.
fn selected_by(
    world: &Snapshot,
    proxy: &Proxy,
    labels: &Labels,
    number: impl Fn(&TargetPort) -> Option<u32>,
) -> Vec<ServiceTarget> {
    let mut found: Vec<ServiceTarget> = Vec::new();
    for service in world.services.selecting(&proxy.namespace).iter().filter(|s| s.selector.is_subset_of(labels)) {
        let first = found.len();
        let targets = service.kubernetes.iter().flat_map(|k| &k.targets);
        for (port, target) in service.ports.iter().zip(targets) {
            let Some(target_port) = number(target) else { continue };
            let own = &found[first..];
            if !own.iter().any(|t| t.target_port == target_port && t.port.protocol == port.protocol) {
                found.push(ServiceTarget { service: service.clone(), port: port.clone(), target_port });
            }
        }
    }
    found
}

fn pod_port(pod: &Workload, target: &TargetPort) -> Option<u32> {
    match &target.target {
        Target::Number(number) => Some(u32::from(*number)),
        Target::Name(name) => pod.port(name, target.transport).map(u32::from),
    }
}

/// The port number from the proxy's metadata. Without it a named port is 0, as upstream has it.
fn port_in_metadata(proxy: &Proxy, target: &TargetPort) -> Option<u32> {
    let name = match &target.target {
        Target::Number(number) => return Some(u32::from(*number)),
        Target::Name(name) => name,
    };
    if proxy.pod_ports.is_empty() {
        return Some(0);
    }
    let found = proxy.pod_ports.iter().find(|p| p.name == *name && p.transport == target.transport);
    found.map(|port| u32::from(port.number))
}
