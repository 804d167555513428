//! The access policies of one client as one comparable value: views with equal guards admit the same callers.

use model::hashed::fingerprint;
use model::peer_policies::{MutualTls, PeerPolicies};
use scope::View;

use super::authorization::authorization;
use super::request_authentication::request_authentication;

/// Fingerprint of a client's access policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guards {
    fingerprint: u128,
    /// Whether every caller is admitted.
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
    // Path rules depend on path normalization.
    let paths = view.settings.mesh.path_normalization.unwrap_or_default().normalization;
    let demands_identity = |mode: &MutualTls| *mode == MutualTls::Strict;
    let is_open = authorization == Default::default()
        && tokens.is_none()
        && !demands_identity(&mode)
        && !ports.values().any(demands_identity);
    Guards { fingerprint: fingerprint(&(authorization, tokens, mode, ports, paths)), is_open }
}
