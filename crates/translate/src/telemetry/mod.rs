//! Telemetry: access logs, traces, metrics, stat names. Each module has plans and their rendering.

pub mod access_log;
mod applicable;
pub mod metrics;
pub mod stat_name;
pub mod tracing;

use api::istio::mesh::v1alpha1::mesh_config::ExtensionProvider;
use api::istio::telemetry::v1alpha1::{ProviderRef, WorkloadMode};
use model::names::Str;
use scope::View;

use crate::listener_side::ListenerSide;
use crate::names;

/// The provider of this name, ignoring case.
fn provider<'a>(view: &'a View, name: &str) -> Option<&'a ExtensionProvider> {
    view.settings.mesh.extension_providers.iter().find(|p| p.name.to_lowercase() == name.to_lowercase())
}

/// The service and cluster that a provider is called at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Collector {
    pub host: Str,
    pub cluster: Str,
}

/// The collector of a provider; `None` if its service is unknown or ambiguous.
fn collector(view: &View, service: &str, port: u32) -> Option<Collector> {
    let service = view.named_service(service)?;
    let port = u16::try_from(port).ok()?;
    let cluster = names::outbound_cluster(port, "", &service.hostname).into();
    Some(Collector { host: service.hostname.text().clone(), cluster })
}

fn provider_names(providers: &[ProviderRef]) -> Vec<&str> {
    providers.iter().map(|p| p.name.as_str()).collect()
}

/// Whether listeners on this side report as client or as server.
fn workload_mode(side: ListenerSide) -> WorkloadMode {
    match side {
        ListenerSide::SidecarInbound => WorkloadMode::Server,
        ListenerSide::SidecarOutbound | ListenerSide::Gateway => WorkloadMode::Client,
    }
}

/// Whether a setting for `wanted` applies to `mode`.
fn holds_for(wanted: WorkloadMode, mode: WorkloadMode) -> bool {
    wanted == WorkloadMode::ClientAndServer || wanted == mode
}
