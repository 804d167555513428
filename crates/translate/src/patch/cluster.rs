//! Patches to clusters.

use api::Resource;
use api::envoy::config::cluster::v3::Cluster;
use api::envoy::config::core::v3::{TransportSocket, transport_socket};
use api::istio::networking::v1alpha3::envoy_filter::patch::Operation;
use api::istio::networking::v1alpha3::envoy_filter::{ApplyTo, ClusterMatch, PatchContext};
use model::config::patches::Patch;
use model::hashed::Hashed;
use model::problem::Problem;
use scope::View;
use scope::patches::HeldPatch;

use super::matching::{applies_in, cluster_match};
use super::merge::{self, MessageMerge};
use super::selection::{PatchEffect, select, with_patches};
use super::{PatchedPlan, added, added_resource, context, list_merge, value};
use crate::plan::cluster::{ClusterKind, ClusterPlan};
use crate::render;

/// The planned clusters with their patches, without removed ones, then added ones.
pub(crate) fn patched(
    view: &View,
    plans: Vec<ClusterPlan>,
    problems: &mut Vec<Problem>,
) -> Vec<PatchedPlan<ClusterPlan>> {
    let patches: Vec<&HeldPatch> = view.patches.to(&[ApplyTo::Cluster]).collect();
    let subjects: Vec<ClusterSubject<'_>> = plans.iter().map(|plan| ClusterSubject::new(view, plan)).collect();
    let chosen = select(&view.settings.knobs, &view.proxy.namespace, &subjects, &patches, effect, problems);
    let mut found = with_patches(plans, chosen);
    found.extend(added(view, ApplyTo::Cluster, |cluster: Cluster| cluster.name));
    found
}

/// What a patch's match may look at.
struct ClusterSubject<'a> {
    plan: &'a ClusterPlan,
    context: PatchContext,
    subset: &'a str,
    port: u32,
}

impl<'a> ClusterSubject<'a> {
    fn new(view: &View, plan: &'a ClusterPlan) -> ClusterSubject<'a> {
        let inbound = matches!(plan.kind, ClusterKind::Inbound(_) | ClusterKind::InboundPassthrough { .. });
        let (subset, port) = match &plan.kind {
            ClusterKind::Outbound(outbound) => (&*outbound.id.subset, u32::from(outbound.id.port)),
            ClusterKind::Inbound(inbound) => ("", inbound.workload_port),
            _ => ("", 0),
        };
        ClusterSubject { plan, context: context(view, inbound), subset, port }
    }

    fn matches(&self, conditions: &ClusterMatch) -> bool {
        if !conditions.name.is_empty() {
            return *conditions.name == *self.plan.name;
        }
        (conditions.subset.is_empty() || conditions.subset == self.subset)
            && (conditions.service.is_empty() || self.is_of(&conditions.service))
            && (conditions.port_number == 0 || conditions.port_number == self.port)
    }

    fn is_of(&self, service: &str) -> bool {
        match &self.plan.kind {
            ClusterKind::Outbound(outbound) => *outbound.id.host == *service,
            ClusterKind::Inbound(inbound) => inbound.hosts.iter().any(|host| **host == *service),
            _ => false,
        }
    }
}

fn effect(patch: &Patch, subject: &ClusterSubject<'_>) -> PatchEffect {
    // The agent's SDS cluster cannot be patched.
    if subject.plan.kind == ClusterKind::ExternalSds || !applies_in(patch, subject.context) {
        return PatchEffect::Nothing;
    }
    if !cluster_match(patch).is_none_or(|conditions| subject.matches(conditions)) {
        return PatchEffect::Nothing;
    }
    match patch.operation {
        Operation::Remove => PatchEffect::Removes,
        Operation::Merge | Operation::MergeAndReplaceList => PatchEffect::Applies(1),
        _ => PatchEffect::Nothing,
    }
}

/// The encoded cluster.
pub fn resource(patched: &PatchedPlan<ClusterPlan>) -> Resource {
    match patched {
        PatchedPlan::Planned { plan, patches } => {
            let mut cluster = render::cluster::cluster(plan);
            apply(&mut cluster, patches);
            Resource::new(cluster.name.clone(), &cluster)
        }
        PatchedPlan::Added { name, patch } => added_resource(name, patch),
    }
}

/// Applies merge patches. A patch with a transport socket changes only the socket.
pub(super) fn apply(cluster: &mut Cluster, patches: &[Hashed<Patch>]) {
    let mut cluster = MessageMerge::new(cluster);
    for patch in patches.iter().filter(|patch| list_merge(patch).is_some()) {
        let has_socket = patch.message().is_some_and(|value| value.has_field_by_name("transport_socket"));
        let socket = if has_socket { value::<Cluster>(patch).and_then(|value| value.transport_socket) } else { None };
        match socket {
            Some(socket) => put_socket(cluster.message(), socket),
            None => cluster.merge(patch),
        }
    }
}

fn put_socket(cluster: &mut Cluster, socket: TransportSocket) {
    if !cluster.transport_socket_matches.is_empty() {
        // A cluster cannot have both a socket and socket matches. Without a match to merge into, the patch is ignored.
        let mut sockets = cluster.transport_socket_matches.iter_mut().filter_map(|m| m.transport_socket.as_mut());
        if let Some(found) = sockets.find(|found| found.name == socket.name) {
            merge_socket(found, &socket);
        }
        return;
    }
    match &mut cluster.transport_socket {
        Some(found) if found.name == socket.name => merge_socket(found, &socket),
        other => *other = Some(socket),
    }
}

/// Merges the config of two sockets of the same type.
pub(super) fn merge_socket(into: &mut TransportSocket, from: &TransportSocket) {
    use transport_socket::ConfigType::TypedConfig;
    let (Some(TypedConfig(old)), Some(TypedConfig(new))) = (&into.config_type, &from.config_type) else { return };
    if let Some(merged) = merge::merge_any(old, new) {
        into.config_type = Some(TypedConfig(merged));
    }
}
