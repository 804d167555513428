//! What the policies of one client ask of its listeners, worked out once for all of them.

use model::shared::Part;
use scope::View;

use super::authorization::{Check, Layer, authorization};
use super::request_authentication::{RequestAuthentication, request_authentication};

/// The policies of one client. They hold for what reaches it, not for what it calls.
#[derive(Clone, Debug)]
pub struct Policies {
    pub tokens: Option<Part<RequestAuthentication>>,
    custom_http: Vec<Part<Check>>,
    custom_tcp: Vec<Part<Check>>,
    own: Vec<Part<Check>>,
}

impl Policies {
    /// The policies of this client. Those that choose routes by claims clear the route when tokens are read.
    pub fn new(view: &View, clear_route_cache: bool) -> Policies {
        let authorization = authorization(view).unwrap_or_default();
        let parts = |checks: Vec<Check>| checks.into_iter().map(Part::new).collect();
        Policies {
            tokens: request_authentication(view, clear_route_cache).map(Part::new),
            custom_http: parts(authorization.custom_checks(Layer::Http)),
            custom_tcp: parts(authorization.custom_checks(Layer::Tcp)),
            own: parts(authorization.checks()),
        }
    }

    /// Checks that others make for us.
    pub fn custom(&self, layer: Layer) -> &[Part<Check>] {
        match layer {
            Layer::Http => &self.custom_http,
            Layer::Tcp => &self.custom_tcp,
        }
    }

    /// Checks that the proxy makes itself.
    pub fn own(&self) -> &[Part<Check>] {
        &self.own
    }
}
