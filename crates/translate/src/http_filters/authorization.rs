//! Who may do what: outside checkers before tokens are read, our own verdicts after.

use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter as EnvoyFilter;
use model::shared::Part;

use super::{Connection, HttpFilter, named};
use crate::class::Class;
use crate::security::authorization::{self, Check, Layer};

pub(super) fn add_custom(connection: &Connection<'_>, filters: &mut Vec<HttpFilter>) {
    add(connection, filters, |policies| policies.custom_checks(Layer::Http));
}

pub(super) fn add_own(connection: &Connection<'_>, filters: &mut Vec<HttpFilter>) {
    add(connection, filters, authorization::Authorization::checks);
}

/// Policies hold where requests come in, not where they go out.
fn add(
    connection: &Connection<'_>,
    filters: &mut Vec<HttpFilter>,
    checks: impl Fn(&authorization::Authorization) -> Vec<Check>,
) {
    if connection.class == Class::SidecarOutbound {
        return;
    }
    let policies = authorization::authorization(connection.view);
    let wanted = policies.iter().flat_map(checks);
    filters.extend(wanted.map(|check| HttpFilter::Authorization(Part::new(check))));
}

pub(super) fn render(check: &Check) -> EnvoyFilter {
    let (name, config) = authorization::http_filter(check);
    named(name, config)
}
