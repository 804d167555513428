//! AuthorizationPolicies as RBAC and ext_authz network filters.

use api::envoy::config::listener::v3::Filter;

use super::{ChainEnd, NetworkFilter, NetworkFilterInput, named};
use crate::listener_side::ListenerSide;
use crate::security::authorization::{AuthorizationFilter, FilterLayer, network_filter};

/// CUSTOM policies (ext_authz) run first.
pub(super) fn add_custom(input: &NetworkFilterInput<'_>, filters: &mut Vec<NetworkFilter>) {
    if is_enforced(input) {
        filters.extend(input.policies.custom(FilterLayer::Tcp).iter().cloned().map(NetworkFilter::Authorization));
    }
}

pub(super) fn add(input: &NetworkFilterInput<'_>, filters: &mut Vec<NetworkFilter>) {
    if is_enforced(input) {
        filters.extend(input.policies.own().iter().cloned().map(NetworkFilter::Authorization));
    }
}

fn is_enforced(input: &NetworkFilterInput<'_>) -> bool {
    input.side != ListenerSide::SidecarOutbound && input.end == ChainEnd::Bytes
}

pub(super) fn render(check: &AuthorizationFilter) -> Filter {
    let (name, config) = network_filter(check);
    named(name, config)
}
