//! Lists the resources of each kind of client: plans with their patches.

pub mod gateway;
pub mod sidecar;

use api::Resource;
use model::problem::Problem;
use model::proxy::ProxyKind;
use scope::View;

use crate::extension::{self, WasmPlan};
use crate::patch::{self, PatchedPlan};
use crate::plan::cluster::ClusterPlan;
use crate::plan::listener::{self, ListenerPlan};
use crate::plan::route::RoutePlan;

/// All clusters of this client, sorted by name, then those added by EnvoyFilters. Reports EnvoyFilters over a limit.
pub fn clusters(view: &View, problems: &mut Vec<Problem>) -> Vec<PatchedPlan<ClusterPlan>> {
    let plans = match *view.proxy.kind {
        ProxyKind::Router => gateway::clusters(view),
        _ => sidecar::clusters(view),
    };
    patch::cluster::patched(view, plans, problems)
}

/// All listeners of this client, then those added by EnvoyFilters.
pub fn listeners(view: &View, problems: &mut Vec<Problem>) -> Vec<PatchedPlan<ListenerPlan>> {
    let plans = match *view.proxy.kind {
        ProxyKind::Router => listener::gateway(view),
        _ => sidecar::listeners(view),
    };
    patch::listener::patched(view, plans, problems)
}

/// The route table of this name.
pub fn route(view: &View, name: &str, problems: &mut Vec<Problem>) -> Option<PatchedPlan<RoutePlan>> {
    let plan = match *view.proxy.kind {
        ProxyKind::Router => gateway::route(view, name),
        _ => sidecar::route(view, name),
    };
    plan.map(|plan| patch::route::patched(view, plan, problems))
}

/// Extension configs (ECDS) of this client.
pub fn extensions(view: &View) -> Vec<Resource> {
    extension_plans(view).iter().map(patch::extension::resource).collect()
}

/// The same, not rendered.
pub(crate) fn extension_plans(view: &View) -> Vec<PatchedPlan<WasmPlan>> {
    patch::extension::patched(view, extension::modules(view))
}
