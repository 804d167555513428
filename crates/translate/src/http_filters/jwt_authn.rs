//! Tokens that requests carry, checked.

use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter as EnvoyFilter;
use model::shared::Part;

use super::{Connection, HttpFilter, named};
use crate::class::Class;
use crate::security::request_authentication::{self, RequestAuthentication};

pub(super) fn add(connection: &Connection<'_>, filters: &mut Vec<HttpFilter>) {
    if connection.class == Class::SidecarOutbound {
        return;
    }
    // Gateways may route by claims, so a route is chosen again once they are known.
    let clear_route_cache = connection.class == Class::Gateway;
    if let Some(plan) = request_authentication::request_authentication(connection.view, clear_route_cache) {
        filters.push(HttpFilter::JwtAuthn(Part::new(plan)));
    }
}

pub(super) fn render(plan: &RequestAuthentication) -> EnvoyFilter {
    named(request_authentication::FILTER, api::any(&request_authentication::render(plan)))
}
