//! Patches to listeners and their parts.

use api::Resource;
use api::envoy::config::listener::v3::{Listener, ListenerFilter, listener_filter};
use api::istio::networking::v1alpha3::envoy_filter::patch::Operation;
use api::istio::networking::v1alpha3::envoy_filter::{ApplyTo, PatchContext};
use model::config::patches::Patch;
use model::hashed::Hashed;
use model::problem::Problem;
use scope::View;
use scope::patches::HeldPatch;

use super::matching::{applies_in, captures, listener_match, unset_or_equal};
use super::merge::{self, MessageMerge};
use super::selection::{PatchEffect, select, with_patches};
use super::{PatchedPlan, added, added_resource, context, filter_chain, list, of, value};
use crate::plan::listener::{Direction, ListenerAddress, ListenerPlan};
use crate::render;

/// Patch targets in a listener.
const KINDS: &[ApplyTo] =
    &[ApplyTo::Listener, ApplyTo::ListenerFilter, ApplyTo::FilterChain, ApplyTo::NetworkFilter, ApplyTo::HttpFilter];
/// Patch targets in the inline route table of an inbound connection manager.
const ROUTES: &[ApplyTo] = &[ApplyTo::RouteConfiguration, ApplyTo::VirtualHost, ApplyTo::HttpRoute];

/// The planned listeners with their patches, without removed ones, then added ones.
pub(crate) fn patched(
    view: &View,
    plans: Vec<ListenerPlan>,
    problems: &mut Vec<Problem>,
) -> Vec<PatchedPlan<ListenerPlan>> {
    let kinds = [KINDS, ROUTES].concat();
    let patches: Vec<&HeldPatch> = view.patches.to(&kinds).collect();
    let subject = |plan| ListenerSubject { plan, context: context(view, plan.direction == Direction::Inbound) };
    let subjects: Vec<ListenerSubject<'_>> = plans.iter().map(subject).collect();
    let chosen = select(&view.settings.knobs, &view.proxy.namespace, &subjects, &patches, effect, problems);
    let mut found = with_patches(plans, chosen);
    found.extend(added(view, ApplyTo::Listener, |listener: Listener| listener.name));
    found
}

struct ListenerSubject<'a> {
    plan: &'a ListenerPlan,
    context: PatchContext,
}

fn effect(patch: &Patch, subject: &ListenerSubject<'_>) -> PatchEffect {
    let ListenerSubject { plan, context } = subject;
    if !applies_in(patch, *context) {
        return PatchEffect::Nothing;
    }
    let chains = plan.chains.len() + usize::from(plan.default_chain.is_some());
    if ROUTES.contains(&patch.apply_to) {
        let inbound = *context == PatchContext::SidecarInbound;
        return if inbound { PatchEffect::Applies(chains) } else { PatchEffect::Nothing };
    }
    match (patch.apply_to, patch.operation) {
        _ if !matches(patch, plan) => PatchEffect::Nothing,
        (ApplyTo::Listener, Operation::Remove) => PatchEffect::Removes,
        (ApplyTo::Listener | ApplyTo::ListenerFilter, _) | (ApplyTo::FilterChain, Operation::Add) => {
            PatchEffect::Applies(1)
        }
        _ => PatchEffect::Applies(chains),
    }
}

fn matches(patch: &Patch, plan: &ListenerPlan) -> bool {
    let Some(conditions) = listener_match(patch) else { return true };
    if !unset_or_equal(&conditions.name, &plan.name) {
        return false;
    }
    // A capturing listener has chains for single ports; their ports are matched instead.
    if patch.apply_to != ApplyTo::Listener && captures(&plan.name) {
        return true;
    }
    let port = match &plan.address {
        ListenerAddress::Socket { port, .. } => Some(*port),
        ListenerAddress::Pipe(_) => None,
    };
    conditions.port_number == 0 || port == Some(conditions.port_number)
}

/// The encoded listener.
pub fn resource(patched: &PatchedPlan<ListenerPlan>) -> Resource {
    match patched {
        PatchedPlan::Planned { plan, patches } => {
            let mut listener = render::listener::listener(plan);
            if !patches.is_empty() {
                apply(&mut listener, patches);
            }
            Resource::new(listener.name.clone(), &listener)
        }
        PatchedPlan::Added { name, patch } => added_resource(name, patch),
    }
}

/// Applies patches that match the listener, from outer to inner parts.
pub(super) fn apply(listener: &mut Listener, patches: &[Hashed<Patch>]) {
    filter_chain::apply_to_routes(listener, patches);
    let mut merge = MessageMerge::new(listener);
    of(patches, ApplyTo::Listener).for_each(|patch| merge.merge(patch));
    drop(merge);
    for patch in of(patches, ApplyTo::ListenerFilter) {
        apply_to_filters(&mut listener.listener_filters, patch);
    }
    filter_chain::apply(listener, patches);
}

fn apply_to_filters(filters: &mut Vec<ListenerFilter>, patch: &Patch) {
    let named =
        listener_match(patch).map(|conditions| conditions.listener_filter.as_str()).filter(|name| !name.is_empty());
    let matches = |filter: &ListenerFilter| named == Some(&*filter.name);
    if patch.operation == Operation::Merge {
        let found = filters.iter_mut().filter(|filter| matches(filter));
        return found.for_each(|filter| merge_filter(filter, patch));
    }
    let matches: Option<&dyn Fn(&ListenerFilter) -> bool> = if named.is_some() { Some(&matches) } else { None };
    list::edit(filters, patch.operation, value(patch), matches);
}

/// Merges a patch's filter into this one if both have the same type.
fn merge_filter(filter: &mut ListenerFilter, patch: &Patch) {
    use listener_filter::ConfigType::TypedConfig;
    let Some(ListenerFilter { config_type: Some(TypedConfig(new)), .. }) = value(patch) else { return };
    let Some(TypedConfig(old)) = &filter.config_type else { return };
    if let Some(merged) = merge::merge_any(old, &new) {
        filter.config_type = Some(TypedConfig(merged));
    }
}
