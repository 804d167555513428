//! AuthorizationPolicies as RBAC and ext_authz filters.

use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter as EnvoyFilter;

use super::{HttpFilter, HttpFilterInput, named};
use crate::listener_side::ListenerSide;
use crate::security::authorization::{AuthorizationFilter, FilterLayer, http_filter};

/// CUSTOM policies (ext_authz) run before JWTs are read.
pub(super) fn add_custom(input: &HttpFilterInput<'_>, filters: &mut Vec<HttpFilter>) {
    if input.side != ListenerSide::SidecarOutbound {
        filters.extend(input.policies.custom(FilterLayer::Http).iter().cloned().map(HttpFilter::Authorization));
    }
}

pub(super) fn add(input: &HttpFilterInput<'_>, filters: &mut Vec<HttpFilter>) {
    if input.side != ListenerSide::SidecarOutbound {
        filters.extend(input.policies.own().iter().cloned().map(HttpFilter::Authorization));
    }
}

pub(super) fn render(check: &AuthorizationFilter) -> EnvoyFilter {
    let (name, config) = http_filter(check);
    named(name, config)
}
