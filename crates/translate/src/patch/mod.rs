//! EnvoyFilter patches, one file per kind of resource; `merge` and `list` have the common operations.
//! A patch that cannot be applied is skipped.

pub mod cluster;
mod connection_manager;
pub mod extension;
mod filter_chain;
mod list;
pub mod listener;
mod matching;
mod merge;
pub mod route;
mod selection;

use api::Resource;
use api::istio::networking::v1alpha3::envoy_filter::patch::Operation;
use api::istio::networking::v1alpha3::envoy_filter::{ApplyTo, PatchContext};
use model::config::patches::Patch;
use model::hashed::Hashed;
use model::names::Str;
use model::proxy::ProxyKind;
use prost::Message;
use scope::View;

use merge::ListMerge;
pub use selection::PatchList;

/// One resource of a client, with everything its rendering depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PatchedPlan<P> {
    /// Rendered from the plan, then changed by the patches.
    Planned { plan: P, patches: PatchList },
    /// The value of a patch that adds a resource.
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

/// The patch context of a resource. `inbound` is ignored for gateways.
fn context(view: &View, inbound: bool) -> PatchContext {
    match (*view.proxy.kind, inbound) {
        (ProxyKind::Router, _) => PatchContext::Gateway,
        (_, true) => PatchContext::SidecarInbound,
        (_, false) => PatchContext::SidecarOutbound,
    }
}

/// Resources that patches of this kind add to a client.
fn added<M: Message + Default, P>(view: &View, kind: ApplyTo, name: impl Fn(M) -> String) -> Vec<PatchedPlan<P>> {
    let here = |patch: &&Hashed<Patch>| match (patch.context(), *view.proxy.kind) {
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

/// Those of the patches that apply to one kind of object.
fn of(patches: &[Hashed<Patch>], kind: ApplyTo) -> impl Iterator<Item = &Patch> {
    patches.iter().map(|patch| &**patch).filter(move |patch| patch.apply_to == kind)
}

/// A patch's value, decoded; `None` without one.
fn value<M: Message + Default>(patch: &Patch) -> Option<M> {
    M::decode(patch.value.as_ref()?.bytes.clone()).ok()
}

/// A resource that is a patch's value; it shares the patch's bytes.
fn added_resource(name: &Str, patch: &Patch) -> Resource {
    Resource::encoded(name.clone(), patch.value.as_ref().map(|value| value.bytes.clone()).unwrap_or_default())
}

/// How a merge patch merges lists; `None` for other patches.
fn list_merge(patch: &Patch) -> Option<ListMerge> {
    match patch.operation {
        Operation::Merge => Some(ListMerge::Append),
        Operation::MergeAndReplaceList => Some(ListMerge::Replace),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
