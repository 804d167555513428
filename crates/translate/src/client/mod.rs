//! Who asks: each kind of client turns its View into plans.

pub mod gateway;
pub mod sidecar;

use api::Resource;
use model::problem::Problem;
use model::proxy::ProxyKind;
use scope::View;

use crate::extension;
use crate::patch::{self, PatchedPlan};
use crate::plan::cluster::ClusterPlan;
use crate::plan::listener::{self, ListenerPlan};
use crate::plan::route::RoutePlan;

/// All clusters of this client, by name; what EnvoyFilters add comes last. Filters that do too much are reported.
pub fn clusters(view: &View, problems: &mut Vec<Problem>) -> Vec<PatchedPlan<ClusterPlan>> {
    let plans = match view.proxy.kind {
        ProxyKind::Router => gateway::clusters(view),
        _ => sidecar::clusters(view),
    };
    patch::cluster::patched(view, plans, problems)
}

/// All listeners of this client; what EnvoyFilters add comes last.
pub fn listeners(view: &View, problems: &mut Vec<Problem>) -> Vec<PatchedPlan<ListenerPlan>> {
    let plans = match view.proxy.kind {
        ProxyKind::Router => listener::gateway(view),
        _ => sidecar::listeners(view),
    };
    patch::listener::patched(view, plans, problems)
}

/// The route table of this name, for whatever kind of client asks.
pub fn route(view: &View, name: &str, problems: &mut Vec<Problem>) -> Option<PatchedPlan<RoutePlan>> {
    let plan = match view.proxy.kind {
        ProxyKind::Router => gateway::route(view, name),
        _ => sidecar::route(view, name),
    };
    plan.map(|plan| patch::route::patched(view, plan, problems))
}

/// Configs of extensions that this client may ask for by name.
pub fn extensions(view: &View) -> Vec<Resource> {
    let mut found = patch::extension::resources(view);
    found.extend(extension::modules(view).iter().map(extension::resource));
    found
}
