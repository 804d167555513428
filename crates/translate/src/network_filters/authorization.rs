//! Who may connect: AuthorizationPolicies as RBAC filters and calls to outside checkers.

use api::envoy::config::listener::v3::Filter;

use super::{Connection, Ending, NetworkFilter, named};
use crate::class::Class;
use crate::security::authorization::{Check, Layer, network_filter};

/// Outside checkers come first.
pub(super) fn add_custom(connection: &Connection<'_>, filters: &mut Vec<NetworkFilter>) {
    if is_enforced(connection) {
        filters.extend(connection.policies.custom(Layer::Tcp).iter().cloned().map(NetworkFilter::Authorization));
    }
}

pub(super) fn add(connection: &Connection<'_>, filters: &mut Vec<NetworkFilter>) {
    if is_enforced(connection) {
        filters.extend(connection.policies.own().iter().cloned().map(NetworkFilter::Authorization));
    }
}

fn is_enforced(connection: &Connection<'_>) -> bool {
    connection.class != Class::SidecarOutbound && connection.ending == Ending::Bytes
}

pub(super) fn render(check: &Check) -> Filter {
    let (name, config) = network_filter(check);
    named(name, config)
}
