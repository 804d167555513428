//! Split horizon: endpoints in a network that the client cannot reach are replaced by that network's gateways.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use api::istio::mesh::v1alpha1::network::istio_network_gateway::Gw;
use model::endpoint::{Endpoint, Health};
use model::labels::Labels;
use model::names::Text;
use model::proxy::Proxy;
use model::settings::Networks;

use super::{LbEndpoint, WorkloadLabel, reach};
use crate::plan::locality::{Group, Member};

/// Gateways between networks, and the factor that lets weights be shared among them evenly.
pub(super) struct Gateways<'a> {
    by_network: BTreeMap<&'a str, Vec<Gateway<'a>>>,
    scale: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Gateway<'a> {
    address: &'a str,
    port: u32,
    network: &'a str,
}

impl<'a> Gateways<'a> {
    /// The gateways of mesh networks. Only clusters that Envoy resolves by DNS can use a gateway's name.
    pub(super) fn new(networks: &'a Networks, resolves_names: bool) -> Gateways<'a> {
        let mut by_network: BTreeMap<&str, Vec<Gateway<'_>>> = BTreeMap::new();
        for (network, config) in &networks.networks {
            for gateway in &config.gateways {
                let Some(Gw::Address(address)) = &gateway.gw else { continue };
                let usable = resolves_names || address.parse::<IpAddr>().is_ok();
                if usable && !address.is_empty() {
                    by_network.entry(network).or_default().push(Gateway { address, port: gateway.port, network });
                }
            }
        }
        for list in by_network.values_mut() {
            list.sort();
            list.dedup();
        }
        let scale = by_network.values().fold(1, |scale, list| least_common_multiple(scale, list.len() as u32));
        Gateways { by_network, scale }
    }

    /// Whether all networks are one.
    pub(super) fn is_empty(&self) -> bool {
        self.by_network.is_empty()
    }

    /// The group as the proxy can reach it; `origins` are the endpoints that its members show.
    pub(super) fn replace_unreachable<'b>(&self, proxy: &Proxy, group: Group<'b>, origins: &[&Endpoint]) -> Group<'b> {
        if self.is_empty() {
            return group;
        }
        let Group { locality, priority, members, .. } = group;
        let mut kept = Vec::new();
        let mut through: BTreeMap<Gateway<'_>, u32> = BTreeMap::new();
        for (mut member, origin) in members.into_iter().zip(origins) {
            member.endpoint.weight = member.endpoint.weight.saturating_mul(self.scale);
            let gateways = self.of(&origin.network);
            if is_direct(proxy, origin, gateways) {
                if !member.endpoint.address.is_empty() {
                    kept.push(member);
                }
                continue;
            }
            let usable: Vec<&Gateway<'_>> = gateways.iter().filter(|g| speaks_family(proxy, g.address)).collect();
            // A gateway finds the way by the server name of mutual TLS, so nothing else can pass.
            if usable.is_empty() || !member.endpoint.mutual_tls {
                continue;
            }
            let share = member.endpoint.weight / usable.len() as u32;
            for gateway in usable {
                *through.entry(*gateway).or_default() += share;
            }
        }
        kept.extend(through.into_iter().map(|(gateway, weight)| gateway.member(weight)));
        Group { locality, priority, weight: None, members: kept }
    }

    fn of(&self, network: &str) -> &[Gateway<'a>] {
        self.by_network.get(network).map_or(&[], |list| list)
    }
}

impl Gateway<'_> {
    fn member<'b>(&self, weight: u32) -> Member<'b> {
        let labels: Labels = [("topology.istio.io/network", self.network)].into_iter().collect();
        Member {
            labels: Cow::Owned(labels),
            endpoint: LbEndpoint {
                address: Text::from(self.address),
                more_addresses: Vec::new(),
                port: self.port,
                weight: weight.max(1),
                health: Health::Unknown,
                mutual_tls: true,
                workload: Some(WorkloadLabel::default()),
            },
        }
    }
}

/// A proxy that does not know its network still goes through a gateway where there is one.
fn is_direct(proxy: &Proxy, endpoint: &Endpoint, gateways: &[Gateway<'_>]) -> bool {
    if gateways.is_empty() {
        return true;
    }
    let lost = proxy.network.is_empty() && !endpoint.network.is_empty();
    !lost && reach::same_or_unknown(&endpoint.network, &proxy.network)
}

fn speaks_family(proxy: &Proxy, address: &str) -> bool {
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
