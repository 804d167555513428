//! Tokens of requests, by RequestAuthentication.

use api::any;
use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter as EnvoyFilter;

use super::{Connection, HttpFilter, named};
use crate::class::Class;
use crate::security::request_authentication::{self, RequestAuthentication};

pub(super) fn add(connection: &Connection<'_>, filters: &mut Vec<HttpFilter>) {
    if connection.class != Class::SidecarOutbound {
        filters.extend(connection.policies.tokens.clone().map(HttpFilter::JwtAuthn));
    }
}

pub(super) fn render(plan: &RequestAuthentication) -> EnvoyFilter {
    named(request_authentication::FILTER, any(&request_authentication::render(plan)))
}
