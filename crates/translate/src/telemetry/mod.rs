//! What proxies tell about their traffic: access logs, traces, metrics, names of statistics.
//! Each file holds what goes into a plan and how it is written down.

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

/// The provider of this name, whatever its case.
fn provider<'a>(view: &'a View, name: &str) -> Option<&'a ExtensionProvider> {
    view.settings.mesh.extension_providers.iter().find(|p| p.name.to_lowercase() == name.to_lowercase())
}

/// A service that providers are called at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Collector {
    pub host: Str,
    pub cluster: Str,
}

/// The service of a provider; `None` if there is none or it is not clear which.
fn collector(view: &View, service: &str, port: u32) -> Option<Collector> {
    let service = view.named_service(service)?;
    let port = u16::try_from(port).ok()?;
    let cluster = names::outbound_cluster(port, "", &service.hostname).into();
    Some(Collector { host: service.hostname.text().clone(), cluster })
}

fn provider_names(providers: &[ProviderRef]) -> Vec<&str> {
    providers.iter().map(|p| p.name.as_str()).collect()
}

/// Which side of a request this class of listeners is on.
fn workload_mode(side: ListenerSide) -> WorkloadMode {
    match side {
        ListenerSide::SidecarInbound => WorkloadMode::Server,
        ListenerSide::SidecarOutbound | ListenerSide::Gateway => WorkloadMode::Client,
    }
}

/// Whether something that was asked for `wanted` holds on this side.
fn holds_for(wanted: WorkloadMode, mode: WorkloadMode) -> bool {
    wanted == WorkloadMode::ClientAndServer || wanted == mode
}
