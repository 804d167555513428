//! VirtualServices for hosts of other namespaces. A VirtualService of the mesh gateway applies to every client that sees it,
//! whichever namespace owns the host: one namespace can redirect the calls of another (ISTIO-SECURITY-2026-002).

use std::collections::BTreeSet;

use super::findings::Findings;
use super::{Finding, full_name, virtual_services};
use crate::config::Object;
use crate::config::problem::ProblemCode;
use crate::host::resolve_short_name;
use crate::names::{Hostname, Namespace};
use crate::service::{ExportTo, Service, Visibility};
use crate::snapshot::Snapshot;

/// Maximum number of owners in a message; a wildcard may match many.
const NAMED: usize = 3;

/// VirtualServices that other namespaces see must be for hosts of their own namespace. Delegates have no hosts, and the
/// root namespace is trusted.
pub(super) fn foreign_hosts(snapshot: &Snapshot, found: &mut Findings) {
    let wildcards: Vec<&Service> =
        snapshot.services.iter().map(|service| &**service).filter(|service| service.hostname.is_wildcard()).collect();
    let default = snapshot.settings.default_virtual_service_export();
    for (object, spec) in virtual_services(snapshot) {
        let namespace = &object.meta.namespace;
        let is_for_mesh = spec.gateways.is_empty() || spec.gateways.iter().any(|gateway| gateway == "mesh");
        let export = ExportTo::parse(&spec.export_to);
        if !is_for_mesh || *namespace == snapshot.settings.root_namespace() || !leaves(export.or(&default), namespace) {
            continue;
        }
        for (index, host) in spec.hosts.iter().enumerate() {
            let host = resolve_short_name(host, namespace, &snapshot.settings.domain);
            let compared = if host.is_wildcard() { snapshot.services.len() } else { wildcards.len() };
            if found.is_full(ProblemCode::ForeignHost) || !found.may_compare(compared) {
                return;
            }
            let owners = owners(snapshot, &wildcards, &host, namespace);
            if !owners.is_empty() {
                let finding = Finding::warning(ProblemCode::ForeignHost, object, message(object, &host, &owners));
                found.push(finding.at(format!("spec.hosts[{index}]")));
            }
        }
    }
}

/// Whether another namespace sees the object.
fn leaves(export: &ExportTo, own: &Namespace) -> bool {
    let is_elsewhere = |visibility: &Visibility| match visibility {
        Visibility::Public => true,
        Visibility::Private | Visibility::None => false,
        Visibility::Namespace(namespace) => namespace != own,
    };
    export.is_unset() || export.iter().any(is_elsewhere)
}

/// Other namespaces with a service of this host; empty if `own` has one too.
fn owners(snapshot: &Snapshot, wildcards: &[&Service], host: &Hostname, own: &Namespace) -> BTreeSet<Namespace> {
    let overlapping: Vec<&Service> = match host.is_wildcard() {
        true => snapshot.services.iter().map(|s| &**s).filter(|service| service.hostname.overlaps(host)).collect(),
        false => {
            let exact = snapshot.services.owners(host).map(|service| &**service);
            exact.chain(wildcards.iter().copied().filter(|service| service.hostname.overlaps(host))).collect()
        }
    };
    if overlapping.iter().any(|service| service.namespace == *own && host.is_subset_of(&service.hostname)) {
        return BTreeSet::new();
    }
    overlapping.iter().map(|service| service.namespace.clone()).filter(|namespace| namespace != own).collect()
}

fn message(object: &Object, host: &Hostname, owners: &BTreeSet<Namespace>) -> String {
    let mut names: Vec<String> = owners.iter().take(NAMED).map(ToString::to_string).collect();
    if owners.len() > NAMED {
        names.push(format!("{} more", owners.len() - NAMED));
    }
    format!(
        "VirtualService {} takes calls to host {host}, which belongs to namespace {}, from clients of other namespaces. \
         Set its exportTo to \".\", or let a VirtualService of the owner delegate to it.",
        full_name(&object.meta),
        names.join(", ")
    )
}
