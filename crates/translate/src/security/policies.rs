//! Security policies of one client, computed once for all of its listeners.

use model::hashed::Hashed;
use scope::View;

use super::authorization::{AuthorizationFilter, FilterLayer, authorization};
use super::request_authentication::{RequestAuthentication, request_authentication};

/// The policies for a client's incoming traffic.
#[derive(Clone, Debug)]
pub struct WorkloadPolicies {
    pub tokens: Option<Hashed<RequestAuthentication>>,
    custom_http: Vec<Hashed<AuthorizationFilter>>,
    custom_tcp: Vec<Hashed<AuthorizationFilter>>,
    own: Vec<Hashed<AuthorizationFilter>>,
}

impl WorkloadPolicies {
    /// `clear_route_cache` is for routes that match JWT claims: the route is selected again after the JWT is read.
    pub fn new(view: &View, clear_route_cache: bool) -> WorkloadPolicies {
        let authorization = authorization(view).unwrap_or_default();
        let parts = |checks: Vec<AuthorizationFilter>| checks.into_iter().map(Hashed::new).collect();
        WorkloadPolicies {
            tokens: request_authentication(view, clear_route_cache).map(Hashed::new),
            custom_http: parts(authorization.custom_checks(FilterLayer::Http)),
            custom_tcp: parts(authorization.custom_checks(FilterLayer::Tcp)),
            own: parts(authorization.checks()),
        }
    }

    /// Filters of CUSTOM policies (ext_authz).
    pub fn custom(&self, layer: FilterLayer) -> &[Hashed<AuthorizationFilter>] {
        match layer {
            FilterLayer::Http => &self.custom_http,
            FilterLayer::Tcp => &self.custom_tcp,
        }
    }

    /// RBAC filters.
    pub fn own(&self) -> &[Hashed<AuthorizationFilter>] {
        &self.own
    }
}
