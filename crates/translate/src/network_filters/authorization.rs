//! Who may connect: outside checkers, then our own verdicts.

use api::envoy::config::listener::v3::Filter;
use model::shared::Part;

use super::{Connection, Ending, NetworkFilter, named};
use crate::class::Class;
use crate::security::authorization::{self, Check, Layer};

pub(super) fn add(connection: &Connection<'_>, filters: &mut Vec<NetworkFilter>) {
    if connection.class == Class::SidecarOutbound || connection.ending != Ending::Bytes {
        return;
    }
    let Some(policies) = authorization::authorization(connection.view) else { return };
    let checks = policies.custom_checks(Layer::Tcp).into_iter().chain(policies.checks());
    filters.extend(checks.map(|check| NetworkFilter::Authorization(Part::new(check))));
}

pub(super) fn render(check: &Check) -> Filter {
    let (name, config) = authorization::network_filter(check);
    named(name, config)
}
