//! JWT authentication, from RequestAuthentication.

use api::any;
use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter as EnvoyFilter;
use model::hashed::Hashed;

use super::{FilterPlan, HttpFilter, HttpFilterInput, named};
use crate::listener_side::ListenerSide;
use crate::security::request_authentication::{self, RequestAuthentication};

#[derive(Debug, Hash)]
struct JwtAuthnFilter(Hashed<RequestAuthentication>);

pub(super) fn add(input: &HttpFilterInput<'_>, filters: &mut Vec<HttpFilter>) {
    if input.side != ListenerSide::SidecarOutbound {
        filters.extend(input.policies.tokens.clone().map(|tokens| HttpFilter::new(JwtAuthnFilter(tokens))));
    }
}

impl FilterPlan for JwtAuthnFilter {
    fn render(&self) -> EnvoyFilter {
        named(request_authentication::FILTER, any(&request_authentication::render(&self.0)))
    }
}
