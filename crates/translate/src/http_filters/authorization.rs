//! Who may do what: AuthorizationPolicies as RBAC filters and calls to outside checkers.

use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter as EnvoyFilter;

use super::{Connection, HttpFilter, named};
use crate::class::Class;
use crate::security::authorization::{Check, Layer, http_filter};

/// Outside checkers come before tokens are read.
pub(super) fn add_custom(connection: &Connection<'_>, filters: &mut Vec<HttpFilter>) {
    if connection.class != Class::SidecarOutbound {
        filters.extend(connection.policies.custom(Layer::Http).iter().cloned().map(HttpFilter::Authorization));
    }
}

pub(super) fn add(connection: &Connection<'_>, filters: &mut Vec<HttpFilter>) {
    if connection.class != Class::SidecarOutbound {
        filters.extend(connection.policies.own().iter().cloned().map(HttpFilter::Authorization));
    }
}

pub(super) fn render(check: &Check) -> EnvoyFilter {
    let (name, config) = http_filter(check);
    named(name, config)
}
