//! The TrafficExtensions that apply to a client, and to which of its listeners.

use api::istio::extensions::v1alpha1::traffic_extension::ExecutionPhase;
use api::istio::extensions::v1alpha1::{TrafficExtension, TrafficSelector};
use api::istio::r#type::v1beta1::WorkloadMode;
use model::config::Config;

use crate::View;

/// The side of the traffic that a listener is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It accepts the outgoing traffic of the workload, or traffic through a gateway.
    Client,
    /// It accepts traffic to the workload.
    Server,
}

/// Extensions of one phase for listeners of a side and port: by priority, then those of the client's namespace
/// before those of the root namespace, then by age.
pub fn of_phase(view: &View, phase: ExecutionPhase, side: Side, port: u32) -> Vec<&Config<TrafficExtension>> {
    let mut found = view.attached(&view.extensions.traffic_extensions);
    found.retain(|e| e.spec.phase() == phase && holds_for(&e.spec.r#match, side, port));
    // Both sorts are stable, so extensions of equal priority keep their order.
    found.sort_by_key(|e| e.meta.namespace != *view.proxy.namespace);
    found.sort_by_key(|e| std::cmp::Reverse(e.spec.priority.unwrap_or(i32::MIN)));
    found
}

/// Extensions whose config a client may request: those of its namespace and of the root namespace.
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
