//! Split horizon EDS: endpoints in other networks are replaced by the gateways of their network.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use api::istio::mesh::v1alpha1::Network;
use api::istio::mesh::v1alpha1::network::IstioNetworkGateway;
use api::istio::mesh::v1alpha1::network::istio_network_gateway::Gw;
use api::istio::mesh::v1alpha1::network::network_endpoints::Ne;
use model::endpoint::{Endpoint, Health};
use model::labels::Labels;
use model::names::Str;
use model::service::{ExternalAddresses, Service};
use model::settings::Networks;
use scope::ReadProxy;

use super::locality::{LabelledEndpoint, LocalityGroup};
use super::{LbEndpoint, WorkloadLabel, reach};

/// Gateways by network, and the factor by which weights are scaled so that they divide evenly among gateways.
pub(super) struct NetworkGateways<'a> {
    by_network: BTreeMap<&'a str, Vec<NetworkGateway<'a>>>,
    scale: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NetworkGateway<'a> {
    address: &'a str,
    port: u32,
    network: &'a str,
    /// The Kubernetes cluster of a gateway that is a Service; else empty.
    cluster: &'a str,
}

impl<'a> NetworkGateways<'a> {
    /// Gateways from mesh networks, and Services that a label or mesh networks declare as gateways.
    /// Only DNS clusters can use gateways with host names. As upstream, they use gateways only if no gateway has an IP
    /// address.
    pub(super) fn new(
        networks: &'a Networks,
        services: &'a [Arc<Service>],
        resolves_names: bool,
    ) -> NetworkGateways<'a> {
        let mut by_network: BTreeMap<&str, Vec<NetworkGateway<'_>>> = BTreeMap::new();
        for (network, config) in &networks.networks {
            for gateway in &config.gateways {
                let Some(Gw::Address(address)) = &gateway.gw else { continue };
                let usable = resolves_names || address.parse::<IpAddr>().is_ok();
                if usable && !address.is_empty() {
                    by_network.entry(network).or_default().push(NetworkGateway {
                        address,
                        port: gateway.port,
                        network,
                        cluster: "",
                    });
                }
            }
        }
        for gateway in services.iter().flat_map(|service| of_service(service, networks)) {
            if resolves_names || gateway.address.parse::<IpAddr>().is_ok() {
                by_network.entry(gateway.network).or_default().push(gateway);
            }
        }
        let addressed = |g: &NetworkGateway<'_>| g.address.parse::<IpAddr>().is_ok();
        if resolves_names && by_network.values().flatten().any(addressed) {
            by_network.clear();
        }
        for list in by_network.values_mut() {
            list.sort();
            list.dedup();
        }
        let scale = by_network.values().fold(1, |scale, list| least_common_multiple(scale, list.len() as u32));
        NetworkGateways { by_network, scale }
    }

    /// Whether there are no gateways, so that all networks are treated as one.
    pub(super) fn is_empty(&self) -> bool {
        self.by_network.is_empty()
    }

    /// Replaces members that the proxy cannot reach by gateways. `origins` are the members' endpoints, in order.
    pub(super) fn replace_unreachable<'b>(
        &self,
        proxy: &ReadProxy,
        group: LocalityGroup<'b>,
        origins: &[&Endpoint],
    ) -> LocalityGroup<'b> {
        if self.is_empty() {
            return group;
        }
        let LocalityGroup { locality, priority, members, .. } = group;
        let labelled = members.iter().any(|m| m.endpoint.workload.is_some());
        let mut kept = Vec::new();
        let mut through: BTreeMap<NetworkGateway<'_>, u32> = BTreeMap::new();
        for (mut member, origin) in members.into_iter().zip(origins) {
            member.endpoint.weight = member.endpoint.weight.saturating_mul(self.scale);
            let gateways = self.of(&origin.network);
            if is_direct(proxy, origin, gateways) {
                if !member.endpoint.address.is_empty() {
                    kept.push(member);
                }
                continue;
            }
            let usable: Vec<&NetworkGateway<'_>> =
                gateways.iter().filter(|g| speaks_family(proxy, g.address)).collect();
            // A gateway routes by the SNI of mTLS, so other traffic cannot pass.
            if usable.is_empty() || !member.endpoint.mutual_tls {
                continue;
            }
            let share = member.endpoint.weight / usable.len() as u32;
            for gateway in usable {
                *through.entry(*gateway).or_default() += share;
            }
        }
        kept.extend(through.into_iter().map(|(gateway, weight)| gateway.member(weight, labelled)));
        LocalityGroup { locality, priority, weight: None, members: kept }
    }

    fn of(&self, network: &str) -> &[NetworkGateway<'a>] {
        self.by_network.get(network).map_or(&[], |list| list)
    }
}

impl NetworkGateway<'_> {
    fn member<'b>(&self, weight: u32, labelled: bool) -> LabelledEndpoint<'b> {
        let labels: Labels = [("topology.istio.io/network", self.network)].into_iter().collect();
        LabelledEndpoint {
            labels: Cow::Owned(labels),
            endpoint: LbEndpoint {
                address: Str::from(self.address),
                more_addresses: Vec::new(),
                port: self.port,
                weight: weight.max(1),
                health: Health::Unknown,
                mutual_tls: true,
                workload: labelled.then(|| WorkloadLabel { cluster: self.cluster.into(), ..WorkloadLabel::default() }),
            },
        }
    }
}

/// The gateways that a Service provides: for the network in its label, or for the networks that refer to it.
fn of_service<'a>(service: &'a Service, networks: &'a Networks) -> Vec<NetworkGateway<'a>> {
    let Some(kubernetes) = &service.kubernetes else { return Vec::new() };
    let mut found = Vec::new();
    for here in &kubernetes.external_addresses {
        for (network, port) in networks_of(service, networks, here) {
            let by_node = here.node_ports.iter().find(|(own, _)| u32::from(*own) == port);
            let port = by_node.map_or(port, |(_, node)| u32::from(*node));
            let cluster = &here.cluster;
            found.extend(here.addresses.iter().map(|address| NetworkGateway { address, port, network, cluster }));
        }
    }
    found
}

/// The networks of a gateway's Service in one cluster, each with the service port of the gateway.
fn networks_of<'a>(service: &'a Service, networks: &'a Networks, here: &'a ExternalAddresses) -> Vec<(&'a str, u32)> {
    if let Some(label) = &here.gateway_of {
        return label.port.map(|port| (&*label.network, u32::from(port))).into_iter().collect();
    }
    let cluster = &*here.cluster;
    let here =
        |n: &&Network| n.endpoints.iter().any(|e| matches!(&e.ne, Some(Ne::FromRegistry(id)) if *id == *cluster));
    let all = networks.networks.iter().filter(|(_, network)| here(network));
    let named = |gateway: &&IstioNetworkGateway| matches!(&gateway.gw, Some(Gw::RegistryServiceName(host)) if *host == *service.hostname);
    let gateways = all.flat_map(|(id, network)| network.gateways.iter().filter(named).map(|g| (id.as_str(), g.port)));
    gateways.collect()
}

/// Whether the proxy calls the endpoint directly. A proxy without a network uses gateways for other networks.
fn is_direct(proxy: &ReadProxy, endpoint: &Endpoint, gateways: &[NetworkGateway<'_>]) -> bool {
    if gateways.is_empty() {
        return true;
    }
    let lost = proxy.network.is_empty() && !endpoint.network.is_empty();
    !lost && reach::same_or_unknown(&endpoint.network, &proxy.network)
}

fn speaks_family(proxy: &ReadProxy, address: &str) -> bool {
    if proxy.is_dual_stack() {
        return true;
    }
    match address.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        Ok(IpAddr::V4(_)) => proxy.has_ipv4(),
        Ok(IpAddr::V6(_)) => proxy.has_ipv6(),
        Err(_) => false,
    }
}

fn least_common_multiple(a: u32, b: u32) -> u32 {
    a / greatest_common_divisor(a, b) * b
}

fn greatest_common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use api::envoy::config::core::v3::Node;
    use api::istio::mesh::v1alpha1::network::{IstioNetworkGateway, istio_network_gateway::Gw};
    use api::istio::mesh::v1alpha1::{MeshNetworks, Network};
    use api::{Struct, Value, value};
    use model::endpoint::{Endpoint, Health, Locality, TlsMode};
    use model::hashed::Hashed;
    use model::labels::Labels;
    use model::proxy::Proxy;
    use model::settings::Networks;
    use scope::ReadProxy;

    use super::{LabelledEndpoint, LbEndpoint, LocalityGroup, NetworkGateways};

    fn networks(gateways: &[(&str, &str)]) -> Networks {
        let mut found = MeshNetworks::default();
        for (network, address) in gateways {
            let gw = Some(Gw::Address((*address).to_owned()));
            let gateway = IstioNetworkGateway { gw, port: 15443, ..IstioNetworkGateway::default() };
            found.networks.entry((*network).to_owned()).or_insert_with(Network::default).gateways.push(gateway);
        }
        Hashed::from_message(found)
    }

    fn proxy(network: &str) -> ReadProxy {
        let network = Value { kind: Some(value::Kind::StringValue(network.to_owned())) };
        let metadata = Struct { fields: [("NETWORK".to_owned(), network)].into_iter().collect() };
        let id = "sidecar~10.0.0.1~a.b~c".to_owned();
        let node = Node { id, metadata: Some(metadata), ..Node::default() };
        ReadProxy::new(Arc::new(Proxy::from_node(&node).expect("a good node")), &Arc::default())
    }

    fn endpoint(address: &str, network: &str) -> Endpoint {
        Endpoint {
            port: 80,
            service_port: "http".into(),
            service_port_number: 80,
            network: network.into(),
            weight: 1,
            tls: TlsMode::Istio,
            namespace: "b".into(),
            ..Endpoint::at(address)
        }
    }

    /// Addresses and weights for a proxy in `network`, from endpoints (address, network, mutual TLS).
    fn seen(gateways: &[(&str, &str)], network: &str, endpoints: &[(&str, &str, bool)]) -> Vec<(String, u32)> {
        let networks = networks(gateways);
        let origins: Vec<Endpoint> = endpoints.iter().map(|(address, net, _)| endpoint(address, net)).collect();
        let member = |(address, _, mutual_tls): &(&str, &str, bool)| LabelledEndpoint {
            labels: std::borrow::Cow::Owned(Labels::default()),
            endpoint: LbEndpoint {
                address: (*address).into(),
                more_addresses: Vec::new(),
                port: 80,
                weight: 1,
                health: Health::Unknown,
                mutual_tls: *mutual_tls,
                workload: None,
            },
        };
        let members = endpoints.iter().map(member).collect();
        let group = LocalityGroup { locality: Locality::default(), priority: 0, weight: None, members };
        let origins: Vec<&Endpoint> = origins.iter().collect();
        let group = NetworkGateways::new(&networks, &[], false).replace_unreachable(&proxy(network), group, &origins);
        group.members.iter().map(|m| (m.endpoint.address.to_string(), m.endpoint.weight)).collect()
    }

    fn check(found: &[(String, u32)], expected: &[(&str, u32)]) {
        let found: Vec<(&str, u32)> = found.iter().map(|(address, weight)| (address.as_str(), *weight)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn gateways_share_the_weight_of_their_endpoints() {
        let gateways = [("n2", "192.0.2.1"), ("n2", "192.0.2.2"), ("n3", "192.0.2.3")];
        let endpoints =
            [("10.1.0.1", "n1", true), ("10.2.0.1", "n2", true), ("10.2.0.2", "n2", true), ("10.3.0.1", "n3", true)];
        let expected = [("10.1.0.1", 2), ("192.0.2.1", 2), ("192.0.2.2", 2), ("192.0.2.3", 2)];
        check(&seen(&gateways, "n1", &endpoints), &expected);
    }

    #[test]
    fn endpoints_without_mutual_tls_cannot_be_called_through_gateways() {
        check(&seen(&[("n2", "192.0.2.1")], "n1", &[("10.2.0.1", "n2", false)]), &[]);
    }

    #[test]
    fn network_without_gateways_is_called_directly() {
        check(&seen(&[("n2", "192.0.2.1")], "n1", &[("10.3.0.1", "n3", false)]), &[("10.3.0.1", 1)]);
        check(&seen(&[], "n1", &[("10.2.0.1", "n2", false)]), &[("10.2.0.1", 1)]);
    }

    #[test]
    fn proxy_without_a_network_uses_gateways() {
        check(&seen(&[("n2", "192.0.2.1")], "", &[("10.2.0.1", "n2", true)]), &[("192.0.2.1", 1)]);
        check(&seen(&[("n2", "192.0.2.1")], "", &[("10.2.0.1", "", true)]), &[("10.2.0.1", 1)]);
    }

    #[test]
    fn dns_clusters_use_gateways_only_if_none_has_an_address() {
        assert!(
            NetworkGateways::new(&networks(&[("n2", "192.0.2.1"), ("n3", "gw.example.com")]), &[], true).is_empty()
        );
        assert!(!NetworkGateways::new(&networks(&[("n3", "gw.example.com")]), &[], true).is_empty());
    }

    #[test]
    fn eds_ignores_gateways_with_names_or_other_ip_families() {
        check(&seen(&[("n2", "gw.example.com")], "n1", &[("10.2.0.1", "n2", true)]), &[("10.2.0.1", 1)]);
        check(&seen(&[("n2", "2001:db8::1")], "n1", &[("10.2.0.1", "n2", true)]), &[]);
    }
}
