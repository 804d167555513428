//! Which endpoints a client may use: cluster-local hosts, requested networks.

use api::istio::mesh::v1alpha1::MeshConfig;
use model::endpoint::Endpoint;
use model::host::is_wildcard;
use model::names::Hostname;
use model::service::Service;
use scope::ReadProxy;
use scope::View;

/// Hosts that are cluster-local unless mesh config overrides it.
const LOCAL_NAMESPACE: &str = "kube-system";
const LOCAL_SERVICE: &str = "kubernetes.default.svc";

/// Whether clients use only endpoints in their own cluster for this service.
pub(super) fn is_cluster_local(view: &View, service: &Service) -> bool {
    local_by_settings(&view.settings.mesh, &view.settings.domain, &service.hostname)
}

/// Whether both names are equal, or one is empty.
pub(super) fn same_or_unknown(a: &str, b: &str) -> bool {
    a == b || a.is_empty() || b.is_empty()
}

/// Whether the client requested endpoints of this network. All, unless REQUESTED_NETWORK_VIEW is set.
pub(super) fn is_requested(proxy: &ReadProxy, endpoint: &Endpoint) -> bool {
    let Some(wanted) = proxy.meta("REQUESTED_NETWORK_VIEW").filter(|list| !list.is_empty()) else { return true };
    endpoint.network.is_empty() || wanted.split(',').any(|network| endpoint.network == *network)
}

/// The most specific host in the mesh's service settings and the defaults decides.
fn local_by_settings(mesh: &MeshConfig, domain: &str, host: &Hostname) -> bool {
    let mut named: Vec<(&str, bool)> = Vec::new();
    for group in &mesh.service_settings {
        let local = group.settings.as_ref().is_some_and(|s| s.cluster_local);
        named.extend(group.hosts.iter().map(|h| (h.as_str(), local)));
    }
    let defaults = default_local_hosts(mesh, domain);
    let overridden = |default: &str| {
        let covered = |h: &str| h == default || (is_wildcard(default) && h.ends_with(&default[1..]));
        named.iter().any(|(h, local)| !local && covered(h))
    };
    let kept = defaults.iter().map(String::as_str).filter(|default| !overridden(default)).map(|h| (h, true));
    let hosts: Vec<(&str, bool)> = named.iter().copied().chain(kept).collect();
    // Of equal hosts the last one wins, as upstream.
    let exact = hosts.iter().rev().find(|(h, _)| !is_wildcard(h) && *h == host.as_str());
    let covering = hosts.iter().filter(|(h, _)| is_wildcard(h) && host.is_subset_of(h)).max_by_key(|(h, _)| h.len());
    exact.or(covering).is_some_and(|(_, local)| *local)
}

fn default_local_hosts(mesh: &MeshConfig, domain: &str) -> Vec<String> {
    let mut hosts = vec![format!("*.{LOCAL_NAMESPACE}.svc.{domain}"), format!("{LOCAL_SERVICE}.{domain}")];
    let discovery = mesh.default_config.as_ref().map_or("", |c| c.discovery_address.as_str());
    let discovery = discovery.rsplit_once(':').map_or(discovery, |(host, _)| host);
    if !discovery.is_empty() {
        let whole = discovery.ends_with(domain);
        hosts.push(if whole { discovery.to_owned() } else { format!("{discovery}.{domain}") });
    }
    hosts
}

#[cfg(test)]
mod tests {
    use api::istio::mesh::v1alpha1::MeshConfig;
    use api::istio::mesh::v1alpha1::mesh_config::{ServiceSettings, service_settings::Settings};

    use super::local_by_settings;

    fn check(hosts: &[(&str, bool)], host: &str, expected: bool) {
        let settings = hosts.iter().map(|(h, local)| ServiceSettings {
            hosts: vec![(*h).to_owned()],
            settings: Some(Settings { cluster_local: *local }),
        });
        let mesh = MeshConfig { service_settings: settings.collect(), ..MeshConfig::default() };
        assert_eq!(local_by_settings(&mesh, "cluster.local", &host.into()), expected, "{host}");
    }

    #[test]
    fn system_namespace_is_local_unless_overridden() {
        check(&[], "dns.kube-system.svc.cluster.local", true);
        check(&[("*.kube-system.svc.cluster.local", false)], "dns.kube-system.svc.cluster.local", false);
        check(&[], "cart.shop.svc.cluster.local", false);
    }

    #[test]
    fn most_specific_host_decides() {
        let hosts = [("*.shop.svc.cluster.local", true), ("cart.shop.svc.cluster.local", false)];
        check(&hosts, "cart.shop.svc.cluster.local", false);
        check(&hosts, "orders.shop.svc.cluster.local", true);
    }
}
