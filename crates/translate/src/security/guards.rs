//! All that policies ask of those who reach one client, as one value: two views with equal guards let the same in.

use model::hashed::fingerprint;
use scope::View;

use super::authorization::authorization;
use super::mtls::{MutualTls, PeerPolicies};
use super::request_authentication::request_authentication;

/// What guards a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guards {
    fingerprint: u128,
    /// No caller is kept away.
    pub is_open: bool,
}

/// The guards of this client.
pub fn guards(view: &View) -> Guards {
    let proxy = &view.proxy;
    let authorization = authorization(view).unwrap_or_default();
    let tokens = request_authentication(view, false);
    let root = view.settings.root_namespace();
    let peers = PeerPolicies::new(&view.policy, &root);
    let mode = peers.of_workload(&proxy.namespace, &proxy.labels, 0);
    let ports = peers.ports_of_workload(&proxy.namespace, &proxy.labels);
    // Rules on paths mean what paths are made to before they are looked at.
    let paths = view.settings.mesh.path_normalization.unwrap_or_default().normalization;
    let demands_identity = |mode: &MutualTls| *mode == MutualTls::Strict;
    let is_open = authorization == Default::default()
        && tokens.is_none()
        && !demands_identity(&mode)
        && !ports.values().any(demands_identity);
    Guards { fingerprint: fingerprint(&(authorization, tokens, mode, ports, paths)), is_open }
}
