//! Gateways: workloads that they select, ports of the Services in front of these, and certificates.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::istio::networking::v1alpha3::Gateway;

use super::findings::Findings;
use super::selectors::{SelectedWorkload, are_known, selected, shown, without_workload};
use super::{Finding, full_name, listed};
use crate::config::problem::ProblemCode;
use crate::config::{Kind, Object, Spec};
use crate::names::{ClusterId, CredentialKey, CredentialKind};
use crate::service::{Service, Target};
use crate::snapshot::Snapshot;
use crate::workload::{Transport, Workload};

fn gateways(snapshot: &Snapshot) -> impl Iterator<Item = (&Object, &Gateway)> {
    snapshot.objects.of(Kind::Gateway).filter_map(|object| match &object.spec {
        Spec::Gateway(spec) => Some((object, &**spec)),
        _ => None,
    })
}

/// A Gateway selects workloads, and a Service of these has its ports.
pub(super) fn ports(snapshot: &Snapshot, found: &mut Findings) {
    if !are_known(snapshot) {
        return;
    }
    for (object, gateway) in gateways(snapshot) {
        if !found.may_compare(snapshot.workloads.len()) {
            return;
        }
        let workloads = selected(snapshot, &gateway.selector, None);
        if workloads.is_empty() {
            found.push(without_workload(object, &gateway.selector, "spec.selector"));
            continue;
        }
        let pods: Vec<_> = workloads.iter().filter_map(|workload| pod(snapshot, workload)).collect();
        if pods.is_empty() {
            continue;
        }
        let known: BTreeSet<u32> = pods.into_iter().flat_map(|pod| exposed(snapshot, pod)).collect();
        for (index, server) in gateway.servers.iter().enumerate() {
            let Some(port) = server.port.as_ref().filter(|port| !known.contains(&port.number)) else { continue };
            let message = format!(
                "The gateway is listening on a target port (port {}) that is not defined in the Service associated with \
                 its workload instances (Pod selector {}). If you need to access the gateway port through the gateway \
                 Service, it will not be available.",
                port.number,
                shown(&gateway.selector)
            );
            let finding = Finding::warning(ProblemCode::GatewayPort, object, message);
            found.push(finding.at(format!("spec.servers[{index}].port.number")));
        }
    }
}

fn pod<'a>(snapshot: &'a Snapshot, workload: &SelectedWorkload) -> Option<&'a Arc<Workload>> {
    snapshot.workloads.named(&workload.namespace, &workload.name, &ClusterId::default())
}

/// The TCP ports of Services that select a pod, and their target ports.
fn exposed(snapshot: &Snapshot, pod: &Workload) -> Vec<u32> {
    let services = snapshot.services.selecting(&pod.key.namespace).iter();
    services.filter(|service| service.selector.is_subset_of(&pod.labels)).flat_map(|service| numbers(service)).collect()
}

fn numbers(service: &Service) -> Vec<u32> {
    let targets = service.kubernetes.as_deref().map_or(&[][..], |own| &own.targets);
    let pairs = service.ports.iter().zip(targets).filter(|(_, target)| target.transport == Transport::Tcp);
    let numbers = pairs.flat_map(|(port, target)| match target.target {
        Target::Number(number) => [port.number, number],
        Target::Name(_) => [port.number; 2],
    });
    numbers.map(u32::from).collect()
}

/// The Secret of a server exists in the namespace of the gateway's workloads, and has a certificate and a key.
pub(super) fn secrets(snapshot: &Snapshot, found: &mut Findings) {
    if snapshot.credentials.iter().next().is_none() {
        return;
    }
    for (object, gateway) in gateways(snapshot) {
        if !found.may_compare(snapshot.workloads.len()) {
            return;
        }
        let Some(workload) = selected(snapshot, &gateway.selector, None).into_iter().next() else { continue };
        for (index, server) in gateway.servers.iter().enumerate() {
            let Some(name) = server.tls.as_ref().map(|tls| &tls.credential_name).filter(|name| is_plain(name)) else {
                continue;
            };
            let (namespace, plain) = name.split_once('/').unwrap_or((&workload.namespace, name));
            let key = CredentialKey { kind: CredentialKind::Secret, namespace: namespace.into(), name: plain.into() };
            let finding = match snapshot.credentials.get(&key) {
                None => {
                    let message = format!("Referenced credentialName not found: {name:?}");
                    Finding::error(ProblemCode::MissingReference, object, message)
                }
                Some(credential) if credential.key_pair_error.is_some() => {
                    let message = format!(
                        "The credential referenced by the Gateway {} in namespace {namespace} is invalid, which can cause \
                         the traffic not to work as expected.",
                        object.meta.name
                    );
                    Finding::error(ProblemCode::InvalidCredential, object, message)
                }
                Some(_) => continue,
            };
            found.push(finding.at(format!("spec.servers[{index}].tls.credentialName")));
        }
    }
}

/// Whether a credential is a Secret: other names have a scheme.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.contains("://")
}

/// Clients reuse a connection for all hosts of its certificate, so Gateways of the same workloads do not share one.
pub(super) fn certificates(snapshot: &Snapshot, found: &mut Findings) {
    let is_scoped = snapshot.settings.knobs.scope_gateway_to_namespace;
    let mut by_certificate: BTreeMap<CertificateName<'_>, Vec<(&Object, &Gateway)>> = BTreeMap::new();
    for (object, gateway) in gateways(snapshot) {
        let own: BTreeSet<CertificateName<'_>> = certificates_of(gateway).map(|(_, certificate)| certificate).collect();
        own.into_iter().for_each(|certificate| by_certificate.entry(certificate).or_default().push((object, gateway)));
    }
    for (object, gateway) in gateways(snapshot) {
        for (index, certificate) in certificates_of(gateway) {
            let users = by_certificate.get(&certificate).map_or(&[][..], Vec::as_slice);
            for (other, others) in users.iter().filter(|(other, _)| other.key() != object.key()) {
                if found.is_full(ProblemCode::SharedCertificate) || !found.may_compare(1) {
                    return;
                }
                let is_same_place = gateway.selector.iter().all(|(key, value)| others.selector.get(key) == Some(value))
                    && (!is_scoped || object.meta.namespace == other.meta.namespace);
                if is_same_place {
                    let names = listed([full_name(&object.meta), full_name(&other.meta)]);
                    let message = format!(
                        "Duplicate certificate in multiple gateways {names} may cause 404s if clients re-use HTTP2 connections."
                    );
                    let finding = Finding::warning(ProblemCode::SharedCertificate, object, message);
                    found.push(finding.at(format!("spec.servers[{index}].tls")));
                }
            }
        }
    }
}

/// What names a certificate: the credential, or the files of certificate and key.
type CertificateName<'a> = (&'a str, &'a str, &'a str);

/// The servers of a Gateway that have a certificate, and which.
fn certificates_of(gateway: &Gateway) -> impl Iterator<Item = (usize, CertificateName<'_>)> {
    gateway.servers.iter().enumerate().filter_map(|(index, server)| {
        let tls = server.tls.as_ref()?;
        let files = (tls.server_certificate.as_str(), tls.private_key.as_str());
        match (tls.credential_name.as_str(), files) {
            ("", ("", _) | (_, "")) => None,
            ("", (certificate, key)) => Some((index, ("", certificate, key))),
            (name, _) => Some((index, (name, "", ""))),
        }
    })
}
