//! Mesh-wide settings: networks of unknown registries, and access logs without a provider.

use std::collections::BTreeSet;

use api::istio::mesh::v1alpha1::network::network_endpoints::Ne;

use super::Finding;
use super::findings::Findings;
use crate::config::problem::{ProblemCode, Severity, Subject};
use crate::config::{Kind, Spec};
use crate::snapshot::Snapshot;

/// Registries that are not clusters.
const REGISTRIES: [&str; 3] = ["Kubernetes", "External", "Mock"];

/// `fromRegistry` names a cluster or a registry.
pub(super) fn networks(snapshot: &Snapshot, found: &mut Findings) {
    let services = || snapshot.services.iter();
    let clusters = services().flat_map(|service| service.cluster_addresses.iter().map(|(id, _)| &**id));
    let registries = services().map(|service| service.registry.as_str());
    let pods = snapshot.workloads.iter().map(|workload| &*workload.key.cluster);
    let known: BTreeSet<&str> = REGISTRIES
        .into_iter()
        .chain([&*snapshot.settings.cluster])
        .chain(clusters)
        .chain(registries)
        .chain(pods)
        .collect();
    for (name, network) in &snapshot.settings.networks.networks {
        for endpoints in &network.endpoints {
            let Some(Ne::FromRegistry(registry)) = &endpoints.ne else { continue };
            if !known.contains(registry.as_str()) {
                let message = format!("Unknown service registry {registry} in network {name}");
                let about = Subject::Setting("MeshNetworks".into());
                let (code, severity) = (ProblemCode::UnknownRegistry, Severity::Error);
                found.push(Finding { code, severity, location: None, field: String::new(), about, message });
            }
        }
    }
}

/// Access logs of a Telemetry name a provider, unless the mesh has a default one.
pub(super) fn providers(snapshot: &Snapshot, found: &mut Findings) {
    let defaults = snapshot.settings.mesh.default_providers.as_ref();
    if defaults.is_some_and(|defaults| !defaults.access_logging.is_empty()) {
        return;
    }
    for object in snapshot.objects.of(Kind::Telemetry) {
        let Spec::Telemetry(spec) = &object.spec else { continue };
        for (index, logging) in spec.access_logging.iter().enumerate() {
            if logging.providers.is_empty() && !logging.disabled.unwrap_or_default() {
                let message = format!(
                    "The Telemetry {} in namespace {:?} with empty providers will be ignored.",
                    object.meta.name,
                    object.meta.namespace.as_str()
                );
                let finding = Finding::warning(ProblemCode::NoProvider, object, message);
                found.push(finding.at(format!("spec.accessLogging[{index}]")));
            }
        }
    }
}
