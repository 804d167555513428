//! EnvoyFilter: what users change in generated config. One file per kind of resource; `merge` and `list` hold
//! the rules that all have in common. A patch that cannot be applied is skipped and nothing else changes.

pub mod cluster;
mod connection_manager;
pub mod extension;
mod filter_chain;
mod list;
pub mod listener;
mod merge;
pub mod route;
mod selection;

use api::Resource;
use api::istio::networking::v1alpha3::envoy_filter::envoy_config_object_match::ObjectTypes;
use api::istio::networking::v1alpha3::envoy_filter::patch::Operation;
use api::istio::networking::v1alpha3::envoy_filter::{
    ApplyTo, ClusterMatch, ListenerMatch, PatchContext, RouteConfigurationMatch,
};
use model::config::patches::Patch;
use model::hashed::Hashed;
use model::names::Str;
use model::proxy::ProxyKind;
use prost::Message;
use scope::View;

use merge::ListMerge;
pub use selection::PatchList;

/// One resource of a client, with all that its rendering depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PatchedPlan<P> {
    /// Rendered from its plan, then changed by the patches that match it.
    Planned { plan: P, patches: PatchList },
    /// The value of a patch.
    Added { name: Str, patch: Hashed<Patch> },
}

impl<P> PatchedPlan<P> {
    /// The resource's name; `of_plan` returns that of a plan.
    pub(crate) fn name(&self, of_plan: impl FnOnce(&P) -> &Str) -> Str {
        match self {
            PatchedPlan::Planned { plan, .. } => of_plan(plan).clone(),
            PatchedPlan::Added { name, .. } => name.clone(),
        }
    }
}

/// Whose config this is, as patches tell it apart; `inbound` counts for sidecars only.
fn context(view: &View, inbound: bool) -> PatchContext {
    match (view.proxy.kind, inbound) {
        (ProxyKind::Router, _) => PatchContext::Gateway,
        (_, true) => PatchContext::SidecarInbound,
        (_, false) => PatchContext::SidecarOutbound,
    }
}

/// What patches of this kind add to a client. Those that name no context add to calls that leave.
fn added<M: Message + Default, P>(view: &View, kind: ApplyTo, name: impl Fn(M) -> String) -> Vec<PatchedPlan<P>> {
    let here = |patch: &&Hashed<Patch>| match (patch.context(), view.proxy.kind) {
        (PatchContext::Any, _) | (PatchContext::Gateway, ProxyKind::Router) => true,
        (PatchContext::SidecarInbound | PatchContext::SidecarOutbound, client) => client == ProxyKind::Sidecar,
        _ => false,
    };
    let found = view.patches.adding(kind).filter(here).filter_map(|patch| {
        let name = name(value(patch)?);
        (!name.is_empty()).then(|| PatchedPlan::Added { name: name.into(), patch: patch.clone() })
    });
    found.collect()
}

/// Patches to one kind of object, out of those that match its resource.
fn of(patches: &[Hashed<Patch>], kind: ApplyTo) -> impl Iterator<Item = &Patch> {
    patches.iter().map(|patch| &**patch).filter(move |patch| patch.apply_to == kind)
}

/// A patch's value; `None` for a removal without one.
fn value<M: Message + Default>(patch: &Patch) -> Option<M> {
    M::decode(patch.value.as_ref()?.bytes.clone()).ok()
}

/// A resource that is a patch's value, whose bytes it shares.
fn added_resource(name: &Str, patch: &Patch) -> Resource {
    Resource::encoded(name.clone(), patch.value.as_ref().map(|value| value.bytes.clone()).unwrap_or_default())
}

/// How a patch that merges treats lists; `None` for one that does not merge.
fn list_merge(patch: &Patch) -> Option<ListMerge> {
    match patch.operation {
        Operation::Merge => Some(ListMerge::Append),
        Operation::MergeAndReplaceList => Some(ListMerge::Replace),
        _ => None,
    }
}

/// What the patch says about clusters, listeners or route tables; `None` means every one.
fn cluster_match(patch: &Patch) -> Option<&ClusterMatch> {
    match patch.matching.object_types.as_ref()? {
        ObjectTypes::Cluster(found) => Some(found),
        _ => None,
    }
}

fn listener_match(patch: &Patch) -> Option<&ListenerMatch> {
    match patch.matching.object_types.as_ref()? {
        ObjectTypes::Listener(found) => Some(found),
        _ => None,
    }
}

fn route_match(patch: &Patch) -> Option<&RouteConfigurationMatch> {
    match patch.matching.object_types.as_ref()? {
        ObjectTypes::RouteConfiguration(found) => Some(found),
        _ => None,
    }
}

/// Whether a condition that may be left out holds.
fn holds(wanted: &str, found: &str) -> bool {
    wanted.is_empty() || wanted == found
}

#[cfg(test)]
mod tests;
