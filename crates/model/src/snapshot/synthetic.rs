//! ServiceEntries generated from services of registries, for control planes that read our config.
//! Upstream sends such entries without endpoints; with endpoints the reader needs no access to the registry.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::istio::networking::v1alpha3::service_entry::{Location, Resolution as EntryResolution};
use api::istio::networking::v1alpha3::{ServiceEntry, ServicePort, WorkloadEntry};
use xxhash_rust::xxh3::xxh3_64;

use crate::config::{Meta, Object, Spec};
use crate::endpoint::{Endpoint, Health, Locality, TlsMode};
use crate::names::{Namespace, NetworkId, ServiceKey, Str};
use crate::packed::Packed;
use crate::port::{Port, Protocol};
use crate::service::{Registry, Resolution, Service, UNSPECIFIED, Visibility};

use super::Snapshot;

const TLS_MODE_LABEL: &str = "security.istio.io/tlsMode";
/// Labels that the reader of an entry derives from other fields and its own settings.
const TOPOLOGY: [&str; 5] = [
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.istio.io/subzone",
    "topology.istio.io/cluster",
    "topology.istio.io/network",
];

/// Identity of a workload without ports: address, labels, locality, network, weight, account.
type WorkloadIdentity = (Str, BTreeMap<String, String>, Locality, NetworkId, u32, String);

/// Services for which entries are generated: those of registries other than Kubernetes. ServiceEntries are sent as they
/// are.
pub fn services(snapshot: &Snapshot) -> impl Iterator<Item = &Arc<Service>> {
    snapshot.services.iter().filter(|service| is_generated(service))
}

/// The entries of one service. Usually one. Every endpoint of an entry serves all its ports, so a service whose endpoints
/// serve different ports gets an entry per port; the reader joins them.
pub fn entries(snapshot: &Snapshot, key: &ServiceKey) -> Vec<Object> {
    let Some(service) = snapshot.services.get(key).filter(|service| is_generated(service)) else { return Vec::new() };
    let workloads = workloads(snapshot.endpoints.of(key), &service.namespace);
    if workloads.iter().all(|workload| workload.ports.len() == service.ports.len()) {
        return vec![object(service, &service.hostname, &service.ports, workloads)];
    }
    let of_port = |port: &Port| {
        let serving = workloads.iter().filter_map(|workload| {
            let (name, target) = workload.ports.get_key_value(&*port.name)?;
            Some(WorkloadEntry { ports: [(name.clone(), *target)].into(), ..workload.clone() })
        });
        let name = format!("{}-{}", service.hostname, port.number);
        object(service, &name, std::slice::from_ref(port), serving.collect())
    };
    service.ports.iter().map(of_port).collect()
}

fn object(service: &Service, name: &str, ports: &[Port], workloads: Vec<WorkloadEntry>) -> Object {
    let spec = Packed::from_message(spec(service, ports, workloads));
    let meta = Meta {
        // Host names are unique across registries; short names are not.
        name: format!("synthetic-{name}").into(),
        namespace: service.namespace.clone(),
        labels: service.labels.clone(),
        created: service.created,
        resource_version: format!("{:016x}", xxh3_64(&spec.encode())).into(),
        ..Meta::default()
    };
    Object { meta: Arc::new(meta), spec: Spec::ServiceEntry(spec) }
}

fn is_generated(service: &Service) -> bool {
    let is_known_elsewhere = matches!(service.registry, Registry::Kubernetes | Registry::External);
    !is_known_elsewhere && service.resolution != Resolution::Alias
}

fn spec(service: &Service, ports: &[Port], workloads: Vec<WorkloadEntry>) -> ServiceEntry {
    let port = |port: &Port| ServicePort {
        number: u32::from(port.number),
        name: port.name.to_string(),
        protocol: if port.protocol == Protocol::Unknown { String::new() } else { port.protocol.as_str().to_owned() },
        ..ServicePort::default()
    };
    let mut entry = ServiceEntry {
        hosts: vec![service.hostname.to_string()],
        addresses: Some(&service.address)
            .filter(|a| ***a != *UNSPECIFIED)
            .map(ToString::to_string)
            .into_iter()
            .collect(),
        ports: ports.iter().map(port).collect(),
        endpoints: workloads,
        export_to: service.export_to.iter().map(visibility).collect(),
        subject_alt_names: service.service_accounts.iter().map(ToString::to_string).collect(),
        ..ServiceEntry::default()
    };
    entry.set_location(if service.mesh_external { Location::MeshExternal } else { Location::MeshInternal });
    entry.set_resolution(match service.resolution {
        Resolution::ClientSide => EntryResolution::Static,
        Resolution::Dns => EntryResolution::Dns,
        Resolution::DnsRoundRobin => EntryResolution::DnsRoundRobin,
        Resolution::DynamicDns => EntryResolution::DynamicDns,
        Resolution::Passthrough | Resolution::Alias => EntryResolution::None,
    });
    entry
}

/// Healthy endpoints as workloads, one per address with all its ports. Entries have no health, so unhealthy endpoints
/// are left out.
fn workloads<'a>(endpoints: impl Iterator<Item = &'a Endpoint>, namespace: &Namespace) -> Vec<WorkloadEntry> {
    let mut seen: BTreeMap<(WorkloadIdentity, &Str), usize> = BTreeMap::new();
    let mut found: BTreeMap<(WorkloadIdentity, usize), BTreeMap<String, u32>> = BTreeMap::new();
    for endpoint in endpoints.filter(|e| matches!(e.health, Health::Healthy | Health::Unknown)) {
        let workload = workload(endpoint, namespace);
        // Several instances may share an address, each on its own port.
        let number = seen.entry((workload.clone(), &endpoint.service_port)).or_default();
        found.entry((workload, *number)).or_default().insert(endpoint.service_port.to_string(), endpoint.port);
        *number += 1;
    }
    let entry = |(((address, labels, locality, network, weight, service_account), _), ports)| WorkloadEntry {
        address: Str::to_string(&address),
        ports,
        labels,
        network: NetworkId::to_string(&network),
        locality: Locality::to_string(&locality),
        weight,
        service_account,
    };
    found.into_iter().map(entry).collect()
}

fn workload(endpoint: &Endpoint, namespace: &Namespace) -> WorkloadIdentity {
    let labels = endpoint.labels.iter().filter(|(key, _)| !TOPOLOGY.contains(&&***key));
    let mut labels: BTreeMap<String, String> = labels.map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let account = account(&endpoint.service_account, namespace).to_owned();
    // By default a workload with a service account uses mesh TLS, and one without does not.
    let is_implied = (endpoint.tls == TlsMode::Istio) != account.is_empty();
    if !is_implied && !labels.contains_key(TLS_MODE_LABEL) {
        let mode = if endpoint.tls == TlsMode::Istio { "istio" } else { "disabled" };
        labels.insert(TLS_MODE_LABEL.to_owned(), mode.to_owned());
    }
    let address = endpoint.addresses.first().cloned().unwrap_or_default();
    (address, labels, endpoint.locality.clone(), endpoint.network.clone(), endpoint.weight, account)
}

/// The service account of an identity of this namespace; entries cannot express one of another namespace.
fn account<'a>(identity: &'a str, namespace: &Namespace) -> &'a str {
    let path = identity.strip_prefix("spiffe://").and_then(|rest| rest.split_once('/')).map(|(_, path)| path);
    let account =
        path.and_then(|path| path.strip_prefix("ns/")?.strip_prefix(namespace.as_str())?.strip_prefix("/sa/"));
    account.unwrap_or_default()
}

fn visibility(item: &Visibility) -> String {
    match item {
        Visibility::Public => "*".to_owned(),
        Visibility::Private => ".".to_owned(),
        Visibility::None => "~".to_owned(),
        Visibility::Namespace(namespace) => namespace.to_string(),
    }
}

#[cfg(test)]
mod tests;
