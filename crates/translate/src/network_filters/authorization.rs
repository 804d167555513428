//! Who may connect: AuthorizationPolicies as RBAC filters and calls to outside checkers.

use api::envoy::config::listener::v3::Filter;

use super::{Connection, Ending, NetworkFilter, named};
use crate::class::Class;
use crate::security::authorization::{Check, Layer, network_filter};

pub(super) fn add(connection: &Connection<'_>, filters: &mut Vec<NetworkFilter>) {
    if connection.class == Class::SidecarOutbound || connection.ending != Ending::Bytes {
        return;
    }
    let checks = connection.policies.custom(Layer::Tcp).iter().chain(connection.policies.own());
    filters.extend(checks.cloned().map(NetworkFilter::Authorization));
}

pub(super) fn render(check: &Check) -> Filter {
    let (name, config) = network_filter(check);
    named(name, config)
}
