//! Conflicting objects.

use std::collections::{BTreeMap, BTreeSet};

use api::istio::networking::v1alpha3::{Gateway, Server};

use super::findings::{Findings, joined};
use super::{Finding, full_name, listed};
use crate::config::problem::ProblemCode;
use crate::config::{Kind, Object, Spec};
use crate::host::resolve_short_name;
use crate::labels::selects;
use crate::names::{Hostname, Namespace};
use crate::port::Protocol;
use crate::snapshot::Snapshot;

/// Two VirtualServices of the mesh gateway must not have the same host where both are visible.
pub(super) fn mesh_hosts(snapshot: &Snapshot, found: &mut Findings) {
    let mut by_host: BTreeMap<(String, Hostname), Vec<(&Object, usize)>> = BTreeMap::new();
    for object in snapshot.objects.of(Kind::VirtualService) {
        let Spec::VirtualService(spec) = &object.spec else { continue };
        if !spec.gateways.is_empty() && !spec.gateways.iter().any(|gateway| gateway == "mesh") {
            continue;
        }
        let namespace = &object.meta.namespace;
        let scope = |to: &String| if to == "." { namespace.to_string() } else { to.clone() };
        let mut scopes: BTreeSet<String> = spec.export_to.iter().map(scope).collect();
        if scopes.is_empty() || scopes.contains("*") {
            scopes = ["*".to_owned()].into();
        }
        for (index, host) in spec.hosts.iter().enumerate() {
            let host = resolve_short_name(host, namespace, &snapshot.settings.domain);
            for scope in &scopes {
                by_host.entry((scope.clone(), host.clone())).or_default().push((object, index));
            }
        }
    }
    for ((scope, host), objects) in &by_host {
        let everywhere = by_host.get(&("*".to_owned(), host.clone())).filter(|_| scope != "*");
        let all = || objects.iter().chain(everywhere.into_iter().flatten());
        let count = all().count();
        if count < 2 {
            continue;
        }
        if found.is_full(ProblemCode::SameMeshHost) || !found.may_compare(count) {
            return;
        }
        let names: BTreeSet<String> = all().map(|(object, _)| full_name(&object.meta)).collect();
        let names = joined(names, ",");
        for (object, index) in all() {
            let message = format!(
                "The VirtualServices {names} associated with mesh gateway define the same host {scope}/{host} which can \
                 lead to undefined behavior. This can be fixed by merging the conflicting VirtualServices into a \
                 single resource."
            );
            found.push(Finding::error(ProblemCode::SameMeshHost, object, message).at(format!("spec.hosts[{index}]")));
        }
    }
}

/// At most one Sidecar without a selector per namespace, and one per workload.
pub(super) fn sidecars(snapshot: &Snapshot, found: &mut Findings) {
    let mut selecting: BTreeMap<Namespace, Vec<&Object>> = BTreeMap::new();
    let mut general: BTreeMap<Namespace, Vec<&Object>> = BTreeMap::new();
    for object in snapshot.objects.of(Kind::Sidecar) {
        let Spec::Sidecar(spec) = &object.spec else { continue };
        let has_selector = spec.workload_selector.as_ref().is_some_and(|selector| !selector.labels.is_empty());
        let of_kind = if has_selector { &mut selecting } else { &mut general };
        of_kind.entry(object.meta.namespace.clone()).or_default().push(object);
    }
    without_selectors(ProblemCode::SidecarsOfNamespace, "Sidecars", &general, found);
    for (namespace, objects) in &selecting {
        for workload in snapshot.workloads.of_namespace(namespace) {
            if !found.may_compare(objects.len()) {
                return;
            }
            let selected = |object: &&&Object| match &object.spec {
                Spec::Sidecar(spec) => {
                    spec.workload_selector.as_ref().is_some_and(|s| selects(&s.labels, &workload.labels))
                }
                _ => false,
            };
            let both: Vec<&&Object> = objects.iter().filter(selected).collect();
            if both.len() < 2 {
                continue;
            }
            let names = listed(both.iter().map(|object| &object.meta.name));
            for object in both {
                let message = format!(
                    "The Sidecars {names} in namespace {:?} select the same workload pod {:?}, which can lead to \
                     undefined behavior.",
                    namespace.as_str(),
                    &*workload.key.name
                );
                found
                    .push(Finding::error(ProblemCode::SidecarsOfWorkload, object, message).at("spec.workloadSelector"));
            }
        }
    }
}

/// At most one Telemetry without a selector or target per namespace.
pub(super) fn telemetries(snapshot: &Snapshot, found: &mut Findings) {
    let mut general: BTreeMap<Namespace, Vec<&Object>> = BTreeMap::new();
    for object in snapshot.objects.of(Kind::Telemetry) {
        let Spec::Telemetry(spec) = &object.spec else { continue };
        let has_selector = spec.selector.as_ref().is_some_and(|selector| !selector.match_labels.is_empty());
        if !has_selector && spec.target_ref.is_none() && spec.target_refs.is_empty() {
            general.entry(object.meta.namespace.clone()).or_default().push(object);
        }
    }
    without_selectors(ProblemCode::TelemetriesOfNamespace, "Telemetries", &general, found);
}

fn without_selectors(
    code: ProblemCode,
    kinds: &str,
    general: &BTreeMap<Namespace, Vec<&Object>>,
    found: &mut Findings,
) {
    for (namespace, objects) in general.iter().filter(|(_, objects)| objects.len() > 1) {
        let names = listed(objects.iter().map(|object| &object.meta.name));
        for object in objects {
            let message = format!(
                "The {kinds} {names} in namespace {:?} have no workload selector, which can lead to undefined behavior.",
                namespace.as_str()
            );
            found.push(Finding::error(code, object, message));
        }
    }
}

/// Gateways for the same workloads must not have the same port and hosts.
pub(super) fn gateways(snapshot: &Snapshot, found: &mut Findings) {
    let all: Vec<(&Object, &Gateway)> = snapshot
        .objects
        .of(Kind::Gateway)
        .filter_map(|object| match &object.spec {
            Spec::Gateway(spec) => Some((object, &**spec)),
            _ => None,
        })
        .collect();
    let mut by_place: BTreeMap<Place<'_>, Vec<usize>> = BTreeMap::new();
    for (number, (_, gateway)) in all.iter().enumerate() {
        gateway.servers.iter().flat_map(places).for_each(|place| by_place.entry(place).or_default().push(number));
    }
    for (object, gateway) in &all {
        for (index, server) in gateway.servers.iter().enumerate() {
            let there = || places(server).filter_map(|place| by_place.get(&place)).flatten();
            if found.is_full(ProblemCode::GatewayConflict) || !found.may_compare(there().count()) {
                return;
            }
            let there: BTreeSet<usize> = there().copied().collect();
            let clashing = there
                .into_iter()
                .map(|other| all[other])
                .filter(|(other, others)| other.key() != object.key() && others.selector == gateway.selector);
            let others: Vec<String> = clashing.map(|(other, _)| full_name(&other.meta)).collect();
            if !others.is_empty() {
                let selector = gateway.selector.iter().map(|(k, v)| format!("{k}={v}"));
                let message = format!(
                    "Conflict with gateways {} (workload selector {}, port {}, hosts {}).",
                    joined(others, ","),
                    joined(selector, ","),
                    port_of(server),
                    listed(&server.hosts)
                );
                let finding = Finding::error(ProblemCode::GatewayConflict, object, message);
                found.push(finding.at(format!("spec.servers[{index}].hosts")));
            }
        }
    }
}

fn port_of(server: &Server) -> u32 {
    server.port.as_ref().map_or(0, |port| port.number)
}

/// Port, bind address and host of a server.
type Place<'a> = (u32, &'a str, &'a str);

fn places(server: &Server) -> impl Iterator<Item = Place<'_>> {
    server.hosts.iter().map(|host| (port_of(server), server.bind.as_str(), host.as_str()))
}

/// ServiceEntries of a namespace that share a host and port should agree on its protocol.
pub(super) fn protocols(snapshot: &Snapshot, found: &mut Findings) {
    type PortClaim<'a> = (&'a Object, usize, Protocol);
    let mut claims: BTreeMap<(String, u32), Vec<PortClaim<'_>>> = BTreeMap::new();
    for object in snapshot.objects.of(Kind::ServiceEntry) {
        let Spec::ServiceEntry(spec) = &object.spec else { continue };
        let spec = spec.open();
        for host in &spec.hosts {
            for (index, port) in spec.ports.iter().enumerate() {
                let claim = (object, index, Protocol::parse(&port.protocol));
                claims.entry((host.clone(), port.number)).or_default().push(claim);
            }
        }
    }
    for ((host, port), claims) in claims {
        let protocols: BTreeSet<&str> = claims.iter().map(|(_, _, protocol)| protocol.as_str()).collect();
        if protocols.len() < 2 {
            continue;
        }
        let names: BTreeSet<String> = claims.iter().map(|(object, _, _)| full_name(&object.meta)).collect();
        let (names, protocols) = (joined(names, ", "), joined(protocols, ", "));
        for (object, index, _) in claims {
            let message = format!(
                "Multiple ServiceEntries ({names}) define the same host {host:?} and port {port} with conflicting \
                 protocols ({protocols})."
            );
            let finding = Finding::warning(ProblemCode::ConflictingProtocols, object, message);
            found.push(finding.at(format!("spec.ports[{index}].protocol")));
        }
    }
}
