//! Selects the patches of each resource, within limits per client: one patch can add its value to every listener, and
//! thousands of EnvoyFilters can patch every cluster.

use std::collections::{BTreeSet, HashMap};

use api::istio::networking::v1alpha3::envoy_filter::ApplyTo;
use api::istio::networking::v1alpha3::envoy_filter::patch::Operation;
use model::config::patches::Patch;
use model::config::{Kind, Meta};
use model::hashed::Hashed;
use model::problem::{Problem, ProblemCode};
use model::settings::Knobs;
use scope::patches::HeldPatch;

use super::PatchedPlan;

/// Patches of one resource, in order. Resources with the same patches share the list.
pub type PatchList = Hashed<Vec<Hashed<Patch>>>;

/// Cost of decoding and encoding an `Any`, relative to a merge into a decoded message.
const ANY_EFFORT: usize = 10;

/// The effect of a patch on a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatchEffect {
    Nothing,
    /// Removes the resource.
    Removes,
    /// Is applied at most this many times in the resource.
    Applies(usize),
}

/// Selects the patches of each resource; `None` for a removed one. A patch that exceeds the client's budget is applied
/// nowhere, and its EnvoyFilter is reported; later patches may still fit. There is one subject per plan.
pub(super) fn select<S>(
    knobs: &Knobs,
    namespace: &str,
    subjects: &[S],
    patches: &[&HeldPatch],
    effect: impl Fn(&Patch, &S) -> PatchEffect,
    problems: &mut Vec<Problem>,
) -> Vec<Option<PatchList>> {
    let mut chosen: Vec<Option<Vec<usize>>> = vec![Some(Vec::new()); subjects.len()];
    let mut budget = PatchBudget::new(knobs);
    let mut refused: BTreeSet<(String, ApplyToName)> = BTreeSet::new();
    for (index, held) in patches.iter().enumerate() {
        let mut applied = Vec::new();
        let (mut removed, mut times) = (Vec::new(), 0usize);
        for (at, subject) in subjects.iter().enumerate().filter(|(at, _)| chosen[*at].is_some()) {
            match effect(&held.patch, subject) {
                PatchEffect::Nothing => {}
                PatchEffect::Removes => removed.push(at),
                PatchEffect::Applies(count) => {
                    times = times.saturating_add(count);
                    applied.push(at);
                }
            }
        }
        removed.into_iter().for_each(|at| chosen[at] = None);
        if budget.take(&held.patch, times) {
            applied.into_iter().filter_map(|at| chosen[at].as_mut().map(|list| list.push(index))).for_each(drop);
        } else if refused.insert((named(&held.filter), held.patch.apply_to.as_str_name())) {
            problems.push(exceeded(knobs, namespace, held));
        }
    }
    shared(patches, chosen)
}

/// Pairs plans with their patches; removed plans are dropped.
pub(super) fn with_patches<P>(plans: Vec<P>, patches: Vec<Option<PatchList>>) -> Vec<PatchedPlan<P>> {
    let pairs = plans.into_iter().zip(patches);
    pairs.filter_map(|(plan, patches)| Some(PatchedPlan::Planned { plan, patches: patches? })).collect()
}

type ApplyToName = &'static str;

/// Builds the patch lists; equal lists are shared.
fn shared(patches: &[&HeldPatch], chosen: Vec<Option<Vec<usize>>>) -> Vec<Option<PatchList>> {
    let mut list_merge: HashMap<Vec<usize>, PatchList> = HashMap::new();
    let mut list_of = |chosen: Vec<usize>| match list_merge.get(&chosen) {
        Some(known) => known.clone(),
        None => {
            let list = Hashed::new(chosen.iter().map(|index| patches[*index].patch.clone()).collect());
            list_merge.insert(chosen, Hashed::clone(&list));
            list
        }
    };
    chosen.into_iter().map(|chosen| chosen.map(&mut list_of)).collect()
}

/// Remaining limits for the resources of one type of one client.
struct PatchBudget {
    bytes: usize,
    effort: usize,
}

impl PatchBudget {
    fn new(knobs: &Knobs) -> PatchBudget {
        PatchBudget { bytes: knobs.patched_bytes as usize, effort: knobs.patch_applications as usize }
    }

    /// Charges a patch that is applied `times` times. False, without a charge, if it exceeds the budget.
    fn take(&mut self, patch: &Patch, times: usize) -> bool {
        let left = self.bytes.checked_sub(times.saturating_mul(patch.size()));
        let effort = self.effort.checked_sub(times.saturating_mul(effort(patch)));
        let (Some(bytes), Some(effort)) = (left, effort) else { return false };
        *self = PatchBudget { bytes, effort };
        true
    }
}

/// Cost of one application.
fn effort(patch: &Patch) -> usize {
    let merges = matches!(patch.operation, Operation::Merge | Operation::MergeAndReplaceList);
    let content = match patch.apply_to {
        ApplyTo::ListenerFilter | ApplyTo::NetworkFilter | ApplyTo::HttpFilter => true,
        ApplyTo::Cluster | ApplyTo::FilterChain => {
            merges && patch.message().is_some_and(|value| value.has_field_by_name("transport_socket"))
        }
        _ => false,
    };
    if content { ANY_EFFORT } else { 1 }
}

fn named(filter: &Meta) -> String {
    format!("{} {}/{}", Kind::EnvoyFilter, filter.namespace, filter.name)
}

fn exceeded(knobs: &Knobs, namespace: &str, held: &HeldPatch) -> Problem {
    let message = format!(
        "a patch to {} is not applied to proxies of namespace {namespace}: patches may add {} bytes (PILOTAGE_PATCHED_BYTES) to \
         the resources of one type and be applied {} times (PILOTAGE_PATCH_APPLICATIONS); let it match fewer \
         resources, join filters that do the same, or raise the limits",
        held.patch.apply_to.as_str_name(),
        knobs.patched_bytes,
        knobs.patch_applications
    );
    Problem::error(held.filter.key(Kind::EnvoyFilter), message)
        .coded(ProblemCode::Limit)
        .at(held.filter.location.clone())
}
