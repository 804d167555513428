//! mTLS modes of namespaces, workloads and ports, from PeerAuthentication.
//! The narrowest policy wins, then the oldest; UNSET inherits from the wider policy.

use std::collections::BTreeMap;

use api::istio::security::v1beta1::PeerAuthentication;
use api::istio::security::v1beta1::peer_authentication::MutualTls as MutualTlsSetting;
use api::istio::security::v1beta1::peer_authentication::mutual_tls::Mode;

use crate::config::Config;
use crate::labels::{Labels, selects};
use crate::names::Namespace;
use crate::snapshot::objects::SecurityPolicies;

/// mTLS mode of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MutualTls {
    Disable,
    Permissive,
    Strict,
}

/// All PeerAuthentications and the root namespace.
#[derive(Clone, Copy, Debug)]
pub struct PeerPolicies<'a> {
    policy: &'a SecurityPolicies,
    root: &'a str,
}

impl<'a> PeerPolicies<'a> {
    pub fn new(policy: &'a SecurityPolicies, root: &'a str) -> PeerPolicies<'a> {
        PeerPolicies { policy, root }
    }

    /// The mode of a namespace: of its policy, else of the mesh's, else permissive.
    pub fn of_namespace(&self, namespace: &Namespace) -> MutualTls {
        let own = if *namespace == *self.root { None } else { self.widest(namespace) };
        own.and_then(|config| mode(config.spec.mtls.as_ref())).unwrap_or_else(|| self.of_mesh())
    }

    /// The mode of a workload with these labels on a workload port.
    pub fn of_workload(&self, namespace: &Namespace, labels: &Labels, port: u32) -> MutualTls {
        let own = self.selecting(namespace, labels).map(|config| &*config.spec);
        let wide = || own.and_then(|p| mode(p.mtls.as_ref())).unwrap_or_else(|| self.of_namespace(namespace));
        match own.and_then(|p| p.port_level_mtls.get(&port)) {
            Some(setting) => mode(Some(setting)).unwrap_or_else(wide),
            None => wide(),
        }
    }

    /// Modes of the ports in the workload's policy, by workload port.
    pub fn ports_of_workload(&self, namespace: &Namespace, labels: &Labels) -> BTreeMap<u32, MutualTls> {
        let own = self.selecting(namespace, labels).map(|config| &config.spec.port_level_mtls);
        let ports = own.into_iter().flat_map(BTreeMap::keys);
        ports.map(|port| (*port, self.of_workload(namespace, labels, *port))).collect()
    }

    /// The policies that decide the modes of a workload, the narrowest first.
    pub fn governing(&self, namespace: &Namespace, labels: &Labels) -> Vec<&'a Config<PeerAuthentication>> {
        let own = if *namespace == *self.root { None } else { self.widest(namespace) };
        [self.selecting(namespace, labels), own, self.widest(self.root)].into_iter().flatten().collect()
    }

    fn of_mesh(&self) -> MutualTls {
        let root = self.widest(self.root);
        root.and_then(|config| mode(config.spec.mtls.as_ref())).unwrap_or(MutualTls::Permissive)
    }

    /// The oldest policy of a namespace without a selector.
    fn widest(&self, namespace: &str) -> Option<&'a Config<PeerAuthentication>> {
        self.policy.peer_authentications_in(namespace).iter().find(|c| selector(c).is_none())
    }

    /// The oldest policy whose selector matches the workload. Selectors in the root namespace are ignored.
    fn selecting(&self, namespace: &Namespace, labels: &Labels) -> Option<&'a Config<PeerAuthentication>> {
        if *namespace == *self.root {
            return None;
        }
        let of_namespace = self.policy.peer_authentications_in(namespace);
        of_namespace.iter().find(|c| selector(c).is_some_and(|wanted| selects(wanted, labels)))
    }
}

fn selector(config: &Config<PeerAuthentication>) -> Option<&BTreeMap<String, String>> {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use api::istio::security::v1beta1::PeerAuthentication;
    use api::istio::security::v1beta1::peer_authentication::MutualTls as MutualTlsSetting;
    use api::istio::security::v1beta1::peer_authentication::mutual_tls::Mode;
    use api::istio::r#type::v1beta1::WorkloadSelector;

    use super::{MutualTls, PeerPolicies};
    use crate::config::{Config, Meta};
    use crate::hashed::Hashed;
    use crate::labels::Labels;
    use crate::snapshot::objects::SecurityPolicies;

    fn setting(mode: Mode) -> MutualTlsSetting {
        MutualTlsSetting { mode: mode as i32 }
    }

    /// A policy of a namespace, for all workloads or for one app.
    fn peer(namespace: &str, app: Option<&str>, mode: Mode, ports: &[(u32, Mode)]) -> Config<PeerAuthentication> {
        let label = |app: &str| [("app".to_owned(), app.to_owned())].into_iter().collect();
        let spec = PeerAuthentication {
            selector: app.map(|app| WorkloadSelector { match_labels: label(app) }),
            mtls: Some(setting(mode)),
            port_level_mtls: ports.iter().map(|(port, mode)| (*port, setting(*mode))).collect(),
        };
        let meta = Meta { namespace: namespace.into(), ..Meta::default() };
        Config { meta: Arc::new(meta), spec: Hashed::from_message(spec) }
    }

    /// Checks the mode of `app: cart` in namespace shop on a port.
    fn check(peers: Vec<Config<PeerAuthentication>>, port: u32, expected: MutualTls) {
        let policy = SecurityPolicies::of_peers(peers);
        let labels: Labels = [("app", "cart")].into_iter().collect();
        let found = PeerPolicies::new(&policy, "istio-system").of_workload(&"shop".into(), &labels, port);
        assert_eq!(found, expected);
    }

    #[test]
    fn without_policies_servers_are_permissive() {
        check(vec![], 80, MutualTls::Permissive);
    }

    #[test]
    fn narrowest_policy_wins() {
        let mesh = || peer("istio-system", None, Mode::Strict, &[]);
        let namespace = || peer("shop", None, Mode::Disable, &[]);
        check(vec![mesh()], 80, MutualTls::Strict);
        check(vec![mesh(), namespace()], 80, MutualTls::Disable);
        check(vec![mesh(), namespace(), peer("shop", Some("cart"), Mode::Permissive, &[])], 80, MutualTls::Permissive);
        check(vec![mesh(), namespace(), peer("shop", Some("orders"), Mode::Permissive, &[])], 80, MutualTls::Disable);
    }

    #[test]
    fn unset_inherits_from_the_wider_policy() {
        let peers = vec![
            peer("istio-system", None, Mode::Strict, &[]),
            peer("shop", None, Mode::Unset, &[]),
            peer("shop", Some("cart"), Mode::Unset, &[(80, Mode::Unset), (81, Mode::Disable)]),
        ];
        check(peers.clone(), 80, MutualTls::Strict);
        check(peers, 81, MutualTls::Disable);
    }

    #[test]
    fn oldest_of_equally_narrow_policies_wins() {
        let peers = vec![peer("shop", None, Mode::Strict, &[]), peer("shop", None, Mode::Disable, &[])];
        check(peers, 80, MutualTls::Strict);
    }

    #[test]
    fn selector_in_the_root_namespace_is_ignored() {
        check(vec![peer("istio-system", Some("cart"), Mode::Strict, &[])], 80, MutualTls::Permissive);
    }

    #[test]
    fn namespace_mode_ignores_workload_policies() {
        let policy = SecurityPolicies::of_peers(vec![peer("shop", Some("cart"), Mode::Disable, &[])]);
        assert_eq!(PeerPolicies::new(&policy, "istio-system").of_namespace(&"shop".into()), MutualTls::Permissive);
    }
}
