//! Matches of patches: context, cluster, listener, filter chain and route table.

use api::envoy::config::listener::v3::Filter;
use api::istio::networking::v1alpha3::envoy_filter::envoy_config_object_match::ObjectTypes;
use api::istio::networking::v1alpha3::envoy_filter::listener_match::FilterMatch;
use api::istio::networking::v1alpha3::envoy_filter::{
    ClusterMatch, ListenerMatch, PatchContext, RouteConfigurationMatch,
};
use model::config::patches::Patch;

use crate::names;

/// Whether a patch applies in this context.
pub(super) fn applies_in(patch: &Patch, context: PatchContext) -> bool {
    [context, PatchContext::Any].contains(&patch.context())
}

/// The patch's match on clusters; `None` matches all.
pub(super) fn cluster_match(patch: &Patch) -> Option<&ClusterMatch> {
    match patch.matching.object_types.as_ref()? {
        ObjectTypes::Cluster(found) => Some(found),
        _ => None,
    }
}

/// The patch's match on listeners; `None` matches all.
pub(super) fn listener_match(patch: &Patch) -> Option<&ListenerMatch> {
    match patch.matching.object_types.as_ref()? {
        ObjectTypes::Listener(found) => Some(found),
        _ => None,
    }
}

/// The patch's match on route tables; `None` matches all.
pub(super) fn route_match(patch: &Patch) -> Option<&RouteConfigurationMatch> {
    match patch.matching.object_types.as_ref()? {
        ObjectTypes::RouteConfiguration(found) => Some(found),
        _ => None,
    }
}

/// Whether an optional condition is unset or equal.
pub(super) fn unset_or_equal(condition: &str, found: &str) -> bool {
    condition.is_empty() || condition == found
}

/// Whether the patch matches this filter.
pub(super) fn names_filter(patch: &Patch, filter: &Filter) -> bool {
    filter_match(patch).is_none_or(|conditions| conditions.name == filter.name)
}

/// The network filter that a patch matches.
pub(super) fn filter_match(patch: &Patch) -> Option<&FilterMatch> {
    listener_match(patch)?.filter_chain.as_ref()?.filter.as_ref()
}

/// Whether the listener captures all ports.
pub(super) fn captures(listener: &str) -> bool {
    [names::VIRTUAL_INBOUND, names::VIRTUAL_OUTBOUND].contains(&listener)
}
