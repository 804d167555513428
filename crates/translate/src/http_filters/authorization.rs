//! AuthorizationPolicies as RBAC and ext_authz filters.

use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter as EnvoyFilter;
use model::hashed::Hashed;

use super::{FilterPlan, HttpFilter, HttpFilterInput, named};
use crate::listener_side::ListenerSide;
use crate::security::authorization::{AuthorizationFilter, FilterLayer, http_filter};

#[derive(Debug, Hash)]
struct HttpAuthorization(Hashed<AuthorizationFilter>);

/// CUSTOM policies (ext_authz) run before JWTs are read.
pub(super) fn add_custom(input: &HttpFilterInput<'_>, filters: &mut Vec<HttpFilter>) {
    if input.side != ListenerSide::SidecarOutbound {
        filters.extend(input.policies.custom(FilterLayer::Http).iter().cloned().map(authorization));
    }
}

pub(super) fn add(input: &HttpFilterInput<'_>, filters: &mut Vec<HttpFilter>) {
    if input.side != ListenerSide::SidecarOutbound {
        filters.extend(input.policies.own().iter().cloned().map(authorization));
    }
}

fn authorization(filter: Hashed<AuthorizationFilter>) -> HttpFilter {
    HttpFilter::new(HttpAuthorization(filter))
}

impl FilterPlan for HttpAuthorization {
    fn render(&self) -> EnvoyFilter {
        let (name, config) = http_filter(&self.0);
        named(name, config)
    }
}
