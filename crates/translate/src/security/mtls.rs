//! Which mutual TLS mode holds for a namespace, a workload or a port, by PeerAuthentication.
//! The narrowest policy wins, the oldest among equals, and UNSET means "as the wider one says".

use api::istio::security::v1beta1::PeerAuthentication;
use api::istio::security::v1beta1::peer_authentication::MutualTls as MutualTlsSetting;
use api::istio::security::v1beta1::peer_authentication::mutual_tls::Mode;
use model::config::Config;
use model::labels::{Labels, selects};
use model::names::Namespace;
use model::snapshot::objects::Policy;

/// What a server accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MutualTls {
    Disable,
    Permissive,
    Strict,
}

/// PeerAuthentications of the mesh with the namespace that makes a policy mesh-wide.
#[derive(Clone, Copy, Debug)]
pub struct PeerPolicies<'a> {
    policy: &'a Policy,
    root: &'a str,
}

impl<'a> PeerPolicies<'a> {
    pub fn new(policy: &'a Policy, root: &'a str) -> PeerPolicies<'a> {
        PeerPolicies { policy, root }
    }

    /// The mode that the namespace's or else the mesh's policy asks for; permissive without any.
    pub fn of_namespace(&self, namespace: &Namespace) -> MutualTls {
        let own = if *namespace == *self.root { None } else { self.widest(namespace) };
        own.and_then(|config| mode(config.spec.mtls.as_ref())).unwrap_or_else(|| self.of_mesh())
    }

    /// The mode that a workload with these labels asks for on a port it listens on.
    pub fn of_workload(&self, namespace: &Namespace, labels: &Labels, port: u32) -> MutualTls {
        let own = self.selecting(namespace, labels).map(|config| &*config.spec);
        let wide = || own.and_then(|p| mode(p.mtls.as_ref())).unwrap_or_else(|| self.of_namespace(namespace));
        match own.and_then(|p| p.port_level_mtls.get(&port)) {
            Some(setting) => mode(Some(setting)).unwrap_or_else(wide),
            None => wide(),
        }
    }

    fn of_mesh(&self) -> MutualTls {
        let root = self.widest(self.root);
        root.and_then(|config| mode(config.spec.mtls.as_ref())).unwrap_or(MutualTls::Permissive)
    }

    /// The oldest policy of a namespace that selects no workloads.
    fn widest(&self, namespace: &str) -> Option<&'a Config<PeerAuthentication>> {
        self.policy.peer_authentications_in(namespace).iter().find(|c| selector(c).is_none())
    }

    /// The oldest policy that selects the workload by labels. One in the root namespace selects nothing.
    fn selecting(&self, namespace: &Namespace, labels: &Labels) -> Option<&'a Config<PeerAuthentication>> {
        if *namespace == *self.root {
            return None;
        }
        let of_namespace = self.policy.peer_authentications_in(namespace);
        of_namespace.iter().find(|c| selector(c).is_some_and(|wanted| selects(wanted, labels)))
    }
}

fn selector(config: &Config<PeerAuthentication>) -> Option<&std::collections::BTreeMap<String, String>> {
    config.spec.selector.as_ref().map(|s| &s.match_labels).filter(|labels| !labels.is_empty())
}

fn mode(setting: Option<&MutualTlsSetting>) -> Option<MutualTls> {
    match setting?.mode() {
        Mode::Unset => None,
        Mode::Disable => Some(MutualTls::Disable),
        Mode::Permissive => Some(MutualTls::Permissive),
        Mode::Strict => Some(MutualTls::Strict),
    }
}
