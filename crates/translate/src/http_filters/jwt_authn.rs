//! JWT authentication, from RequestAuthentication.

use api::any;
use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter as EnvoyFilter;

use super::{HttpFilter, HttpFilterInput, named};
use crate::listener_side::ListenerSide;
use crate::security::request_authentication::{self, RequestAuthentication};

pub(super) fn add(input: &HttpFilterInput<'_>, filters: &mut Vec<HttpFilter>) {
    if input.side != ListenerSide::SidecarOutbound {
        filters.extend(input.policies.tokens.clone().map(HttpFilter::JwtAuthn));
    }
}

pub(super) fn render(plan: &RequestAuthentication) -> EnvoyFilter {
    named(request_authentication::FILTER, any(&request_authentication::render(plan)))
}
