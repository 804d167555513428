//! Kubernetes Services: names of their ports, and Services that share a workload. ServiceEntries for TCP without an address.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::findings::Findings;
use super::{Finding, listed};
use crate::config::problem::{ProblemCode, Severity, Subject};
use crate::config::{Kind, Spec};
use crate::names::{Hostname, Namespace, Str};
use crate::port::Protocol;
use crate::service::{Registry, Service, Target, TargetPort, UNSPECIFIED};
use crate::snapshot::Snapshot;
use crate::workload::Transport;

/// Set on Services of gateways that a controller deploys: users do not choose their port names.
const MANAGED: &str = "gateway.istio.io/managed";
/// Set on Services of the control plane, and values of `app` there.
const CONTROL_PLANE: [(&str, &str); 3] = [("istio", "pilot"), ("app", "istiod"), ("app", "pilot")];

/// Names of ports begin with their protocol; else the proxy detects it.
pub(super) fn port_names(snapshot: &Snapshot, found: &mut Findings) {
    for service in snapshot.services.iter().filter(|service| service.registry == Registry::Kubernetes) {
        let has = |key: &str, value: &str| service.labels.get(key).is_some_and(|known| &**known == value);
        if service.labels.get(MANAGED).is_some() || CONTROL_PLANE.iter().any(|(key, value)| has(key, value)) {
            continue;
        }
        let kubernetes = service.kubernetes.as_deref();
        let is_external_name = kubernetes.is_some_and(|own| own.alias_of.is_some());
        for (index, port) in service.ports.iter().enumerate() {
            let target = kubernetes.and_then(|own| own.targets.get(index));
            if target.is_some_and(|target| target.transport == Transport::Sctp) {
                continue;
            }
            if is_external_name && (port.protocol.is_unknown() || &*port.name == "tcp") {
                let message = "Port name for ExternalName service is invalid. Proxy may prevent tcp named ports and \
                               unmatched traffic for ports serving TCP protocol from being forwarded correctly";
                found.push(about(service, ProblemCode::ExternalNamePort, Severity::Warning, message.to_owned()));
            } else if !is_external_name && port.protocol.is_unknown() {
                let message = format!(
                    "Port name {} (port: {}, targetPort: {}) doesn't follow the naming convention of Istio port.",
                    port.name,
                    port.number,
                    target.map_or_else(|| port.number.to_string(), |target| shown(&target.target)),
                );
                found.push(about(service, ProblemCode::PortName, Severity::Info, message));
            }
        }
    }
}

fn about(service: &Service, code: ProblemCode, severity: Severity, message: String) -> Finding {
    Finding { code, severity, location: None, field: String::new(), about: service.key().into(), message }
}

fn shown(target: &Target) -> String {
    match target {
        Target::Number(number) => number.to_string(),
        Target::Name(name) => name.to_string(),
    }
}

/// Services that select the same workload agree on the transport of a port, and on the port of a target port.
pub(super) fn shared_workloads(snapshot: &Snapshot, found: &mut Findings) {
    let mut by_owner: BTreeMap<(Namespace, Str), BTreeMap<Str, &Arc<Service>>> = BTreeMap::new();
    for workload in snapshot.workloads.iter() {
        let services = snapshot.services.selecting(&workload.key.namespace);
        if !found.may_compare(services.len()) {
            return;
        }
        let selecting = services.iter().filter(|service| service.selector.is_subset_of(&workload.labels));
        let key = (workload.key.namespace.clone(), workload.workload_name.clone());
        by_owner.entry(key).or_default().extend(selecting.map(|service| (service.name.clone(), service)));
    }
    for ((namespace, name), services) in by_owner.iter().filter(|(_, services)| services.len() > 1) {
        let owner =
            Subject::Document { kind: "Deployment".into(), namespace: Some(namespace.clone()), name: name.clone() };
        let mut report = |code: ProblemCode, message: String| {
            let (location, field, about) = (None, String::new(), owner.clone());
            found.push(Finding { code, severity: Severity::Warning, location, field, about, message });
        };
        let mut transports: BTreeMap<u16, BTreeMap<&str, &Str>> = BTreeMap::new();
        let mut ports: BTreeMap<String, BTreeMap<u16, &Str>> = BTreeMap::new();
        for (service, port, target) in services.values().flat_map(|service| targets(service)) {
            transports.entry(port).or_default().insert(transport(target.transport), &service.name);
            ports.entry(shown(&target.target)).or_default().insert(port, &service.name);
        }
        for (port, by_transport) in transports.iter().filter(|(_, all)| all.len() > 1) {
            let names = names(namespace, by_transport.values());
            let message = format!(
                "This deployment {name} is associated with multiple services using port {port} but different \
                 protocols: {names}"
            );
            report(ProblemCode::SharedPort, message);
        }
        for (target, by_port) in ports.iter().filter(|(_, all)| all.len() > 1) {
            let (names, numbers) = (names(namespace, by_port.values()), listed(by_port.keys()));
            let message = format!(
                "This deployment {name} is associated with multiple services {names} using targetPort {target:?} but \
                 different ports: {numbers}."
            );
            report(ProblemCode::SharedTargetPort, message);
        }
    }
}

/// The ports of a service with their targets.
fn targets(service: &Service) -> impl Iterator<Item = (&Service, u16, &TargetPort)> {
    let targets = service.kubernetes.as_deref().map_or(&[][..], |own| &own.targets);
    service.ports.iter().zip(targets).map(move |(port, target)| (service, port.number, target))
}

fn transport(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "TCP",
        Transport::Udp => "UDP",
        Transport::Sctp => "SCTP",
    }
}

fn names<'a>(namespace: &Namespace, services: impl Iterator<Item = &'a &'a Str>) -> String {
    let names: BTreeSet<String> = services.map(|name| format!("{namespace}/{name}")).collect();
    listed(names)
}

/// Without an address a TCP port takes all connections to that port number. Hosts that get an automatic address
/// are not reported.
pub(super) fn addresses(snapshot: &Snapshot, found: &mut Findings) {
    for object in snapshot.objects.of(Kind::ServiceEntry) {
        let Spec::ServiceEntry(entry) = &object.spec else { continue };
        let entry = entry.open();
        let has_address = |host: &String| {
            let key = Hostname::from(host.as_str());
            let mut own = snapshot.services.owners(&key).filter(|s| s.namespace == object.meta.namespace).peekable();
            own.peek().is_some()
                && own.all(|s| &*s.address != UNSPECIFIED || s.auto_ipv4.is_some() || s.auto_ipv6.is_some())
        };
        if !entry.addresses.is_empty() || entry.hosts.iter().all(has_address) {
            continue;
        }
        for (index, port) in entry.ports.iter().enumerate() {
            if port.protocol.is_empty() || Protocol::parse(&port.protocol) == Protocol::Tcp {
                let message = "ServiceEntry addresses are required for this protocol.".to_owned();
                let finding = Finding::warning(ProblemCode::AddressNeeded, object, message);
                found.push(finding.at(format!("spec.ports[{index}]")));
            }
        }
    }
}
