//! What the policies of one client ask of its listeners, worked out once for all of them.

use model::hashed::Hashed;
use scope::View;

use super::authorization::{AuthorizationFilter, FilterLayer, authorization};
use super::request_authentication::{RequestAuthentication, request_authentication};

/// The policies of one client. They hold for what reaches it, not for what it calls.
#[derive(Clone, Debug)]
pub struct WorkloadPolicies {
    pub tokens: Option<Hashed<RequestAuthentication>>,
    custom_http: Vec<Hashed<AuthorizationFilter>>,
    custom_tcp: Vec<Hashed<AuthorizationFilter>>,
    own: Vec<Hashed<AuthorizationFilter>>,
}

impl WorkloadPolicies {
    /// The policies of this client. Those that choose routes by claims clear the route when tokens are read.
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

    /// Checks that others make for us.
    pub fn custom(&self, layer: FilterLayer) -> &[Hashed<AuthorizationFilter>] {
        match layer {
            FilterLayer::Http => &self.custom_http,
            FilterLayer::Tcp => &self.custom_tcp,
        }
    }

    /// Checks that the proxy makes itself.
    pub fn own(&self) -> &[Hashed<AuthorizationFilter>] {
        &self.own
    }
}
