//! Patches to clusters.

use api::Resource;
use api::envoy::config::cluster::v3::Cluster;
use api::envoy::config::core::v3::{TransportSocket, transport_socket};
use api::istio::networking::v1alpha3::envoy_filter::patch::Operation;
use api::istio::networking::v1alpha3::envoy_filter::{ApplyTo, ClusterMatch};
use model::config::patches::Patch;
use scope::View;

use super::{Wanted, added, cluster_match, context, merge, merge_value, merging, value};
use crate::names::parse_outbound_cluster;
use crate::plan::cluster::{ClusterKind, ClusterPlan};
use crate::render;

/// The planned clusters without those that are removed, with those that are added.
pub(crate) fn wanted(view: &View, plans: Vec<ClusterPlan>) -> Vec<Wanted<ClusterPlan>> {
    let mut found: Vec<Wanted<ClusterPlan>> = plans.into_iter().filter_map(|plan| patched(view, plan)).collect();
    found.extend(added(view, ApplyTo::Cluster, |cluster: Cluster| cluster.name));
    found
}

fn patched(view: &View, plan: ClusterPlan) -> Option<Wanted<ClusterPlan>> {
    let inbound = matches!(plan.kind, ClusterKind::Inbound(_) | ClusterKind::InboundPassthrough { .. });
    // The agent's own cluster is nobody else's business.
    let kinds: &[ApplyTo] = if plan.kind == ClusterKind::ExternalSds { &[] } else { &[ApplyTo::Cluster] };
    let mut patches = Vec::new();
    for patch in view.patches.to(kinds, context(view, inbound)) {
        if !cluster_match(patch).is_none_or(|wanted| matches(wanted, &plan)) {
            continue;
        }
        match patch.operation {
            Operation::Remove => return None,
            Operation::Merge | Operation::MergeAndReplaceList => patches.push(patch.clone()),
            _ => {}
        }
    }
    Some(Wanted::Planned { plan, patches })
}

fn matches(wanted: &ClusterMatch, plan: &ClusterPlan) -> bool {
    if !wanted.name.is_empty() {
        return *wanted.name == *plan.name;
    }
    let outbound = parse_outbound_cluster(&plan.name);
    let (subset, port) = match (&outbound, &plan.kind) {
        (Some(found), _) => (found.subset.as_str(), u32::from(found.port)),
        (None, ClusterKind::Inbound(_)) => ("", inbound_port(&plan.name)),
        (None, _) => ("", 0),
    };
    let is_service = match (&outbound, &plan.kind) {
        (Some(found), _) => *found.host == *wanted.service,
        (None, ClusterKind::Inbound(inbound)) => inbound.hosts.iter().any(|host| **host == *wanted.service),
        (None, _) => false,
    };
    (wanted.subset.is_empty() || wanted.subset == subset)
        && (wanted.service.is_empty() || is_service)
        && (wanted.port_number == 0 || wanted.port_number == port)
}

/// The port in `inbound|8080||`.
fn inbound_port(name: &str) -> u32 {
    name.split('|').nth(1).and_then(|port| port.parse().ok()).unwrap_or(0)
}

/// The cluster, encoded.
pub fn resource(wanted: &Wanted<ClusterPlan>) -> Resource {
    match wanted {
        Wanted::Planned { plan, patches } => {
            let mut cluster = render::cluster::cluster(plan);
            for patch in patches {
                apply(&mut cluster, patch);
            }
            Resource::new(cluster.name.clone(), &cluster)
        }
        Wanted::Added { name, patch } => {
            Resource::encoded(name.clone(), patch.value.clone().unwrap_or_default().into())
        }
    }
}

/// A patch with a transport socket changes that and nothing else.
pub(super) fn apply(cluster: &mut Cluster, patch: &Patch) {
    if merging(patch).is_none() {
        return;
    }
    let Some(socket) = value::<Cluster>(patch).and_then(|value| value.transport_socket) else {
        return merge_value(cluster, patch);
    };
    if !cluster.transport_socket_matches.is_empty() {
        // A socket beside a list of sockets would not be valid, so without one to merge into there is nothing to do.
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

/// Merges the settings of two sockets of one kind.
pub(super) fn merge_socket(into: &mut TransportSocket, from: &TransportSocket) {
    use transport_socket::ConfigType::TypedConfig;
    let (Some(TypedConfig(old)), Some(TypedConfig(new))) = (&into.config_type, &from.config_type) else { return };
    if let Some(merged) = merge::merge_any(old, new) {
        into.config_type = Some(TypedConfig(merged));
    }
}
