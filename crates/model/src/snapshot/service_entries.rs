//! Services and endpoints from ServiceEntries and the WorkloadEntries and pods that they select.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use api::istio::networking::v1alpha3::service_entry::{Location, Resolution as EntryResolution};
use api::istio::networking::v1alpha3::{ServiceEntry, ServicePort, WorkloadEntry};

use super::auto_address::entries::AutoAddresses;
use super::{Delta, Snapshot};
use crate::config::legacy::{self, LegacyMesh};
use crate::config::{Key, Kind, Meta, Object, Spec};
use crate::endpoint::{Endpoint, Locality, TlsMode};
use crate::labels::{Labels, selects};
use crate::names::{Namespace, NetworkId, ServiceKey, Str};
use crate::port::{Port, Protocol};
use crate::registration;
use crate::service::{ExportTo, Registry, Resolution, Service, TrafficDistribution, UNSPECIFIED};
use crate::settings::Settings;
use crate::workload::Transport;

const TLS_MODE_LABEL: &str = "security.istio.io/tlsMode";
const LOCALITY_LABEL: &str = "istio-locality";
const UNIX_PREFIX: &str = "unix://";

/// Updates services and endpoints for changed entries. True if automatic addresses changed.
pub(super) fn join(snapshot: &mut Snapshot, delta: &mut Delta) -> bool {
    let entries = affected_entries(snapshot, delta);
    if entries.is_empty() {
        return false;
    }
    let reallocated = allocate(snapshot, &entries);
    let mut changed = Vec::new();
    for key in entries {
        let opened = snapshot.objects.get(&key).and_then(OpenedEntry::of);
        let services = opened.as_ref().map(|opened| services_of(opened, &snapshot.auto_addresses)).unwrap_or_default();
        replace_endpoints(snapshot, &key, opened.as_ref(), &services, delta);
        let before = snapshot.services.of_entry(&key);
        if before.is_none_or(|known| **known != *services) {
            let known = before.iter().flat_map(|list| list.iter());
            delta.services.extend(known.chain(services.iter()).map(|s| s.key()));
            changed.push((key, services));
        }
    }
    if !changed.is_empty() {
        Arc::make_mut(&mut snapshot.services).replace_entries(changed);
    }
    reallocated
}

/// Updates the automatic addresses of these entries. True if any changed.
fn allocate(snapshot: &mut Snapshot, entries: &BTreeSet<Key>) -> bool {
    let keeps_status = |key: &Key| {
        key.kind == Kind::ServiceEntry && snapshot.objects.get(key).is_some_and(|object| object.meta.keeps_status)
    };
    let concerns = |key: &Key| snapshot.auto_addresses.has(key) || keeps_status(key);
    if !snapshot.settings.knobs.ip_auto_allocate || !entries.iter().any(concerns) {
        return false;
    }
    let opened: Vec<(&Key, Option<OpenedEntry>)> = entries
        .iter()
        .filter(|key| key.kind == Kind::ServiceEntry)
        .map(|key| (key, snapshot.objects.get(key).and_then(OpenedEntry::of)))
        .collect();
    let entries: Vec<_> =
        opened.iter().map(|(key, opened)| ((*key).clone(), opened.as_ref().map(|t| (&*t.meta, &t.spec)))).collect();
    Arc::make_mut(&mut snapshot.auto_addresses).settle(&entries)
}

/// Entries that changed, and entries with a selector in namespaces with changed workloads.
fn affected_entries(snapshot: &Snapshot, delta: &Delta) -> BTreeSet<Key> {
    let is_entry = |key: &&Key| matches!(key.kind, Kind::ServiceEntry | Kind::EgressRule);
    let mut found: BTreeSet<Key> = delta.objects.iter().filter(is_entry).cloned().collect();
    if delta.settings {
        // In addition to those that changed: deleted ones are no longer among the objects.
        let rules = snapshot.objects.of(Kind::EgressRule);
        found.extend(snapshot.objects.of(Kind::ServiceEntry).chain(rules).map(Object::key));
        return found;
    }
    let entries = delta.objects.iter().filter(|k| k.kind == Kind::WorkloadEntry).map(|k| &k.namespace);
    let namespaces: BTreeSet<&Namespace> = entries.chain(delta.workloads.iter().map(|k| &k.namespace)).collect();
    for namespace in namespaces {
        let selecting = snapshot.objects.of_namespace(Kind::ServiceEntry, namespace);
        let selects = |o: &&Object| OpenedEntry::of(o).is_some_and(|opened| opened.spec.workload_selector.is_some());
        found.extend(selecting.filter(selects).map(Object::key));
    }
    found
}

/// A decoded ServiceEntry, or an EgressRule as one.
struct OpenedEntry {
    meta: Arc<Meta>,
    spec: ServiceEntry,
}

impl OpenedEntry {
    fn of(object: &Object) -> Option<OpenedEntry> {
        let spec = match &object.spec {
            Spec::ServiceEntry(spec) => spec.open(),
            Spec::EgressRule(_) => egress(object)?,
            _ => return None,
        };
        Some(OpenedEntry { meta: object.meta.clone(), spec })
    }
}

/// The ServiceEntry of an EgressRule; `None` if it is invalid, which validation reports.
fn egress(rule: &Object) -> Option<ServiceEntry> {
    let conversion = legacy::convert(rule, LegacyMesh::default())?.ok()?;
    legacy::objects(&conversion, &rule.meta).objects.into_iter().find_map(|object| match object.spec {
        Spec::ServiceEntry(entry) => Some(entry.open()),
        _ => None,
    })
}

/// One service per host and address.
fn services_of(opened: &OpenedEntry, allocated: &AutoAddresses) -> Vec<Arc<Service>> {
    let OpenedEntry { meta, spec } = opened;
    let resolution = match spec.resolution() {
        EntryResolution::None => Resolution::Passthrough,
        EntryResolution::Static => Resolution::ClientSide,
        EntryResolution::Dns => Resolution::Dns,
        EntryResolution::DnsRoundRobin => Resolution::DnsRoundRobin,
        EntryResolution::DynamicDns => Resolution::DynamicDns,
    };
    let addresses = addresses_of(spec);
    let passthrough = |p: &&ServicePort| resolution == Resolution::Passthrough && p.target_port != 0;
    let template = Service {
        hostname: Default::default(),
        namespace: meta.namespace.clone(),
        name: "".into(),
        object_name: meta.name.clone(),
        registry: Registry::External,
        ports: spec.ports.iter().map(port_of).collect(),
        resolution,
        mesh_external: spec.location() == Location::MeshExternal,
        address: UNSPECIFIED.into(),
        cluster_addresses: Vec::new(),
        auto_ipv4: None,
        auto_ipv6: None,
        export_to: ExportTo::parse(&spec.export_to),
        labels: meta.labels.clone(),
        selector: spec.workload_selector.as_ref().map(|s| Labels::from(&s.labels)).unwrap_or_default(),
        service_accounts: spec.subject_alt_names.iter().map(|s| s.as_str().into()).collect(),
        passthrough_ports: spec
            .ports
            .iter()
            .filter(passthrough)
            .map(|p| (p.number as u16, p.target_port as u16))
            .collect(),
        traffic_distribution: distribution_of(meta),
        created: meta.created,
        aliases: Vec::new(),
        kubernetes: None,
    };
    let key = Key { kind: Kind::ServiceEntry, namespace: meta.namespace.clone(), name: meta.name.clone() };
    let of_host = |host: &String| {
        let template = &template;
        let host = Str::from(host.as_str());
        let (auto_ipv4, auto_ipv6) = allocated.of(&key, &host);
        addresses.iter().map(move |address| {
            Arc::new(Service {
                hostname: crate::names::Hostname::new(host.clone()),
                name: host.clone(),
                address: address.clone(),
                auto_ipv4: auto_ipv4.clone(),
                auto_ipv6: auto_ipv6.clone(),
                ..template.clone()
            })
        })
    };
    spec.hosts.iter().flat_map(of_host).collect()
}

/// The entry's addresses. Single-address CIDR blocks become plain addresses; invalid text is left out.
fn addresses_of(spec: &ServiceEntry) -> Vec<Str> {
    if spec.addresses.is_empty() {
        return vec![UNSPECIFIED.into()];
    }
    let parsed = |text: &String| {
        if text.parse::<IpAddr>().is_ok() {
            return Some(Str::from(text.as_str()));
        }
        let block: ipnet::IpNet = text.parse().ok()?;
        Some(if block.prefix_len() == block.max_prefix_len() {
            block.addr().to_string().into()
        } else {
            text.as_str().into()
        })
    };
    spec.addresses.iter().filter_map(parsed).collect()
}

fn port_of(port: &ServicePort) -> Port {
    Port { name: port.name.as_str().into(), number: port.number as u16, protocol: Protocol::parse(&port.protocol) }
}

fn distribution_of(meta: &Meta) -> TrafficDistribution {
    match meta.annotations.get("networking.istio.io/traffic-distribution").map(|v| &**v) {
        Some("PreferClose" | "PreferSameZone") => TrafficDistribution::PreferSameZone,
        Some("PreferSameNode") => TrafficDistribution::PreferSameNode,
        _ => TrafficDistribution::Any,
    }
}

/// Replaces the endpoints of this entry, for each of its hosts.
fn replace_endpoints(
    snapshot: &mut Snapshot,
    key: &Key,
    opened: Option<&OpenedEntry>,
    services: &[Arc<Service>],
    delta: &mut Delta,
) {
    let shard = Str::from(format!("ServiceEntry {}/{}", key.namespace, key.name));
    let mut by_host: BTreeMap<ServiceKey, Vec<Endpoint>> = BTreeMap::new();
    for known in snapshot.services.of_entry(key).into_iter().flat_map(|list| list.iter()) {
        by_host.insert(known.key(), Vec::new());
    }
    for service in services {
        if let Some(opened) = opened {
            // Each address of a host is a separate service, with the same endpoints.
            by_host.entry(service.key()).or_default().extend(endpoints_of(snapshot, opened, service));
        }
    }
    for (service, list) in by_host {
        if Arc::make_mut(&mut snapshot.endpoints).replace(&service, &shard, list) {
            delta.endpoints.insert(service);
        }
    }
}

fn endpoints_of(snapshot: &Snapshot, opened: &OpenedEntry, service: &Service) -> Vec<Endpoint> {
    let mut list = unshared_endpoints(snapshot, opened, service);
    // Endpoints of a service differ mostly by address only: equal fields of neighbours share memory.
    for i in 1..list.len() {
        let (before, rest) = list.split_at_mut(i);
        if let (Some(known), Some(next)) = (before.last(), rest.first_mut()) {
            share(known, next);
        }
    }
    list
}

fn share(known: &Endpoint, next: &mut Endpoint) {
    fn same<T: Clone + PartialEq>(known: &T, next: &mut T) {
        if known == next {
            *next = known.clone();
        }
    }
    same(&known.service_port, &mut next.service_port);
    same(&known.labels, &mut next.labels);
    same(&known.locality, &mut next.locality);
    same(&known.network, &mut next.network);
    same(&known.cluster, &mut next.cluster);
    same(&known.service_account, &mut next.service_account);
    same(&known.namespace, &mut next.namespace);
    same(&known.workload_name, &mut next.workload_name);
    same(&known.node_name, &mut next.node_name);
    same(&known.host_name, &mut next.host_name);
    same(&known.sub_domain, &mut next.sub_domain);
}

fn unshared_endpoints(snapshot: &Snapshot, opened: &OpenedEntry, service: &Service) -> Vec<Endpoint> {
    let OpenedEntry { meta, spec } = opened;
    let settings = &*snapshot.settings;
    if let Some(selector) = &spec.workload_selector {
        let workloads = snapshot.objects.of_namespace(Kind::WorkloadEntry, &meta.namespace);
        let selected = workloads.filter_map(|w| Some((w, labelled(w)?))).filter(|(w, workload)| {
            let chosen = selector.labels.iter().all(|(key, value)| workload.labels.get(key) == Some(value));
            // Only Envoy can resolve a host name, and only in a DNS cluster.
            chosen && !is_unhealthy(&w.meta) && (service.resolution.is_dns() || is_ip_or_unknown(&workload.address))
        });
        let entries = selected.flat_map(|(w, workload)| {
            let endpoint = workload_endpoint(&workload, &workload_name(&w.meta), &w.meta.namespace, settings);
            on_ports(spec, &endpoint, &workload.ports).collect::<Vec<_>>()
        });
        return entries.chain(pods(snapshot, spec, &meta.namespace)).collect();
    }
    if spec.endpoints.is_empty() && service.resolution.is_dns() {
        return spec.ports.iter().map(|port| own_name(meta, service, port, settings)).collect();
    }
    let listed = spec.endpoints.iter().enumerate().flat_map(|(index, workload)| {
        let name = Str::from(format!("{}-{index}", meta.name));
        on_ports(spec, &workload_endpoint(workload, &name, &meta.namespace, settings), &workload.ports)
    });
    listed.collect()
}

/// Ready pods that the entry selects, on its ports. A container port of the same name overrides the target port.
fn pods<'a>(
    snapshot: &'a Snapshot,
    spec: &'a ServiceEntry,
    namespace: &'a Namespace,
) -> impl Iterator<Item = Endpoint> + use<'a> {
    let selector = spec.workload_selector.as_ref().filter(|_| snapshot.settings.knobs.entries_select_pods);
    let ready = snapshot.workloads.of_namespace(namespace).filter(|pod| pod.is_ready);
    let chosen = ready.filter(move |pod| selector.is_some_and(|s| selects(&s.labels, &pod.labels)));
    chosen.flat_map(move |pod| {
        let named = pod.ports.iter().filter(|p| p.transport == Transport::Tcp);
        let ports = named.map(|p| (p.name.to_string(), u32::from(p.number))).collect();
        on_ports(spec, &pod.endpoint(), &ports).collect::<Vec<_>>()
    })
}

fn is_ip_or_unknown(address: &str) -> bool {
    address.is_empty() || address.parse::<IpAddr>().is_ok()
}

/// The workload with the labels of its spec and of its object; those of the object win.
pub(super) fn labelled(object: &Object) -> Option<WorkloadEntry> {
    let Spec::WorkloadEntry(workload) = &object.spec else { return None };
    let mut merged = workload.open();
    merged.labels.extend(object.meta.labels.iter().map(|(k, v)| (k.to_string(), v.to_string())));
    Some(merged)
}

/// Whether the workload's agent checks its health and the last check failed, or none succeeded yet.
pub(super) fn is_unhealthy(meta: &Meta) -> bool {
    let has_checks = meta.annotations.get(registration::HEALTH_CHECKS).map(|v| &**v);
    matches!(has_checks, Some("true" | "1" | "t" | "T" | "TRUE" | "True")) && meta.health != Some(true)
}

/// The group that registered the workload, else its workload-name label, else its own name.
pub(super) fn workload_name(meta: &Meta) -> Str {
    let group = meta.annotations.get(registration::GROUP);
    group.or_else(|| meta.labels.get("service.istio.io/workload-name")).unwrap_or(&meta.name).clone()
}

/// The endpoint of a DNS service without listed endpoints: the host name itself.
fn own_name(meta: &Meta, service: &Service, port: &ServicePort, settings: &Settings) -> Endpoint {
    Endpoint {
        port: if port.target_port > 0 { port.target_port } else { port.number },
        service_port: port.name.as_str().into(),
        service_port_number: port.number as u16,
        cluster: settings.cluster.clone(),
        namespace: meta.namespace.clone(),
        workload_name: meta.name.clone(),
        ..Endpoint::at(service.hostname.text().clone())
    }
}

/// The workload as an endpoint whose port is still to be set.
pub(super) fn workload_endpoint(
    workload: &WorkloadEntry,
    name: &Str,
    namespace: &Namespace,
    settings: &Settings,
) -> Endpoint {
    let locality = match workload.labels.get(LOCALITY_LABEL) {
        Some(label) if workload.locality.is_empty() => Locality::parse(&label.replace('.', "/")),
        _ => Locality::parse(&workload.locality),
    };
    let network = NetworkId::from(workload.network.as_str());
    let tls = match workload.labels.get(TLS_MODE_LABEL) {
        Some(mode) if mode == "istio" => TlsMode::Istio,
        Some(_) => TlsMode::Disabled,
        None if !workload.service_account.is_empty() => TlsMode::Istio,
        None => TlsMode::Disabled,
    };
    Endpoint {
        labels: topology_labels(workload, &locality, &network, settings),
        locality,
        network,
        cluster: settings.cluster.clone(),
        weight: workload.weight,
        service_account: spiffe(workload, namespace, settings),
        tls,
        namespace: namespace.clone(),
        workload_name: name.clone(),
        ..Endpoint::at(workload.address.as_str())
    }
}

fn spiffe(workload: &WorkloadEntry, namespace: &Namespace, settings: &Settings) -> Str {
    if workload.service_account.is_empty() {
        return "".into();
    }
    format!("spiffe://{}/ns/{namespace}/sa/{}", settings.mesh.trust_domain, workload.service_account).into()
}

/// The workload's labels plus topology labels, for subsets and failover.
fn topology_labels(workload: &WorkloadEntry, locality: &Locality, network: &NetworkId, settings: &Settings) -> Labels {
    let place = [
        ("topology.kubernetes.io/region", locality.region()),
        ("topology.kubernetes.io/zone", locality.zone()),
        ("topology.istio.io/subzone", locality.sub_zone()),
        ("topology.istio.io/cluster", &settings.cluster),
    ];
    let mut labels: BTreeMap<&str, &str> = workload.labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    labels.extend(place.into_iter().filter(|(_, value)| !value.is_empty()));
    if !network.is_empty() {
        labels.entry("topology.istio.io/network").or_insert(network);
    }
    labels.into_iter().collect()
}

/// The workload on every port of the entry. Its own `ports` override the target port of the entry.
fn on_ports<'a>(
    spec: &'a ServiceEntry,
    workload: &Endpoint,
    ports: &BTreeMap<String, u32>,
) -> impl Iterator<Item = Endpoint> + use<'a> {
    let (workload, ports) = (workload.clone(), ports.clone());
    spec.ports.iter().map(move |port| {
        let mut endpoint = workload.clone();
        endpoint.service_port = port.name.as_str().into();
        endpoint.service_port_number = port.number as u16;
        match endpoint.address().strip_prefix(UNIX_PREFIX) {
            Some(path) => endpoint.addresses = vec![path.into()],
            None => {
                let own = ports.get(&port.name).copied().filter(|p| *p > 0);
                let target = Some(port.target_port).filter(|p| *p > 0);
                endpoint.port = own.or(target).unwrap_or(port.number);
            }
        }
        endpoint
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use api::istio::networking::v1alpha3::WorkloadEntry;

    use super::{Labels, Meta, Object, Snapshot, Spec, is_unhealthy, labelled, workload_name};
    use crate::change::{Batch, Change, SourceId};
    use crate::config::parse::documents;
    use crate::packed::Packed;
    use crate::settings::Settings;

    fn meta(labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> Meta {
        Meta {
            name: "vm-1".into(),
            labels: labels.iter().copied().collect::<Labels>(),
            annotations: annotations.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            ..Meta::default()
        }
    }

    #[test]
    fn an_entry_deleted_in_the_same_step_as_new_settings_is_gone() {
        let text = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: cart, namespace: shop}\n\
            spec: {hosts: [cart.example.com], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}]}\n";
        let object = documents(text, "cart.yaml").objects.remove(0);
        let key = object.key();
        let batch = |changes| vec![Batch { source: SourceId("files".into()), changes }];
        let (with, _) = Snapshot::empty(Settings::default()).apply(batch(vec![Change::Applied(object)]));
        assert_eq!(with.services.iter().count(), 1);
        for changes in [vec![Change::Deleted(key.clone()), Change::Renew], vec![Change::Renew, Change::Deleted(key)]] {
            let (without, _) = with.apply(batch(changes));
            assert_eq!(without.services.iter().count(), 0);
        }
    }

    #[test]
    fn labels_of_the_object_override_those_of_the_spec() {
        let labels = [("app", "spec"), ("tier", "gold")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let workload = WorkloadEntry { labels: labels.into_iter().collect(), ..WorkloadEntry::default() };
        let spec = Spec::WorkloadEntry(Packed::from_message(workload));
        let object = Object { meta: Arc::new(meta(&[("app", "object")], &[])), spec };
        let found = labelled(&object).expect("a workload entry");
        let found: Vec<_> = found.labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(found, [("app", "object"), ("tier", "gold")]);
    }

    #[test]
    fn workload_is_named_after_its_group_then_its_label() {
        let label = ("service.istio.io/workload-name", "label");
        let group = ("istio.io/autoRegistrationGroup", "group");
        assert_eq!(&*workload_name(&meta(&[label], &[group])), "group");
        assert_eq!(&*workload_name(&meta(&[label], &[])), "label");
        assert_eq!(&*workload_name(&meta(&[], &[])), "vm-1");
    }

    #[test]
    fn probed_workload_waits_for_its_first_probe() {
        let of = |checks: &str, health| {
            let checks = (crate::registration::HEALTH_CHECKS, checks);
            is_unhealthy(&Meta { health, ..meta(&[], &[checks]) })
        };
        assert!(of("true", None) && of("true", Some(false)) && !of("true", Some(true)));
        assert!(!of("no", None) && !of("no", Some(false)));
    }
}
