//! Which TrafficExtensions hold for a client, and for which of its listeners.

use api::istio::extensions::v1alpha1::traffic_extension::ExecutionPhase;
use api::istio::extensions::v1alpha1::{TrafficExtension, TrafficSelector};
use api::istio::r#type::v1beta1::WorkloadMode;
use model::config::Config;

use crate::View;
use crate::select::attached;

/// On which side of its client a listener stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It takes what the workload, or whoever is behind a gateway, calls.
    Client,
    /// It takes what calls the workload.
    Server,
}

/// Extensions of one phase for listeners of a side and port: by priority, then the client's own namespace
/// before the root namespace, then by age.
pub fn of_phase(view: &View, phase: ExecutionPhase, side: Side, port: u32) -> Vec<&Config<TrafficExtension>> {
    let mut found = attached(view, &view.extensions.traffic_extensions);
    found.retain(|e| e.spec.phase() == phase && holds_for(&e.spec.r#match, side, port));
    // Both sorts are stable: what is equal in priority keeps its order.
    found.sort_by_key(|e| e.meta.namespace != *view.proxy.namespace);
    found.sort_by_key(|e| std::cmp::Reverse(e.spec.priority.unwrap_or(i32::MIN)));
    found
}

/// Extensions whose config a client may ask for: those of its own and the root namespace.
pub fn askable(view: &View) -> impl Iterator<Item = &Config<TrafficExtension>> {
    let root = view.settings.root_namespace();
    let near =
        move |e: &&Config<TrafficExtension>| e.meta.namespace == *view.proxy.namespace || e.meta.namespace == root;
    view.extensions.traffic_extensions.iter().filter(near)
}

fn holds_for(selectors: &[TrafficSelector], side: Side, port: u32) -> bool {
    let holds = |s: &TrafficSelector| on_side(s.mode(), side) && (s.ports.is_empty() || has_port(s, port));
    selectors.is_empty() || selectors.iter().any(holds)
}

fn on_side(mode: WorkloadMode, side: Side) -> bool {
    match mode {
        WorkloadMode::Undefined | WorkloadMode::ClientAndServer => true,
        WorkloadMode::Client => side == Side::Client,
        WorkloadMode::Server => side == Side::Server,
    }
}

fn has_port(selector: &TrafficSelector, port: u32) -> bool {
    selector.ports.iter().any(|p| p.number != 0 && p.number == port)
}
