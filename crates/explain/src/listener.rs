//! The listener and filter chain of a connection, as Envoy selects them.

use std::net::IpAddr;

use api::envoy::config::core::v3::TrafficDirection;
use api::envoy::config::core::v3::address::Address as AddressKind;
use api::envoy::config::core::v3::{CidrRange, socket_address::PortSpecifier};
use api::envoy::config::listener::v3::filter::ConfigType;
use api::envoy::config::listener::v3::{FilterChain, FilterChainMatch, Listener};
use api::envoy::config::route::v3::RouteConfiguration;
use api::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::{
    RouteSpecifier, StripPortMode,
};
use api::envoy::extensions::filters::network::http_connection_manager::v3::{HttpConnectionManager, HttpFilter};
use api::envoy::extensions::filters::network::tcp_proxy::v3::TcpProxy;
use api::envoy::extensions::filters::network::tcp_proxy::v3::tcp_proxy::ClusterSpecifier;
use prost::Message;

use crate::config::ProxyConfig;
use crate::explanation::{Explanation, ListenerStep, Rejected, RequestOutcome};
use crate::request::{Request, split_port};

const HTTP_INSPECTOR: &str = "envoy.filters.listener.http_inspector";

/// What a filter chain does with a connection.
pub(crate) enum Entry {
    Http(Box<HttpManager>),
    /// Clusters with their weights.
    Tcp(Vec<(String, u32)>),
    Unknown,
}

/// The HTTP connection manager of a chain.
pub(crate) struct HttpManager {
    pub(crate) route_config: String,
    pub(crate) inline: Option<RouteConfiguration>,
    strips_any_port: bool,
    strips_own_port: bool,
    pub(crate) filters: Vec<HttpFilter>,
}

/// What filter chains are selected by.
pub(crate) struct ConnectionTraits<'a> {
    pub(crate) port: u16,
    pub(crate) addresses: &'a [IpAddr],
    /// In lower case; `None` without TLS.
    pub(crate) server_name: Option<String>,
    pub(crate) is_encrypted: bool,
    /// Protocols that TLS offers or the HTTP inspector detects, the preferred one first. Empty if unknown.
    pub(crate) protocols: &'a [&'a str],
}

const HTTP_PROTOCOLS: [&str; 4] = ["http/1.1", "http/1.0", "h2c", "h2"];

impl HttpManager {
    pub(crate) fn routes<'a>(&'a self, config: &'a ProxyConfig) -> Option<&'a RouteConfiguration> {
        self.inline.as_ref().or_else(|| config.routes.get(&self.route_config))
    }

    /// The authority that virtual hosts are matched with.
    pub(crate) fn host_of(&self, request: &Request) -> String {
        let (host, port) = split_port(&request.authority);
        let is_own = port.is_some_and(|port| port.parse() == Ok(request.port));
        if self.strips_any_port || self.strips_own_port && is_own { host.to_owned() } else { request.authority.clone() }
    }
}

/// Selects the listener and its chain, and records both. `None` if there is none; the outcome says why.
pub(crate) fn choose(config: &ProxyConfig, request: &Request, explanation: &mut Explanation) -> Option<Entry> {
    let Some((listener, reason)) = listener_for(config, request) else {
        explanation.outcome =
            RequestOutcome::NotServed(format!("no listener accepts connections to port {}", request.port));
        return None;
    };
    let mut passed_over = Vec::new();
    let is_known = request.is_encrypted() || inspects_http(listener);
    let connection = ConnectionTraits {
        port: request.port,
        addresses: &request.addresses,
        server_name: request.is_encrypted().then(|| request.host().to_ascii_lowercase()),
        is_encrypted: request.is_encrypted(),
        protocols: if is_known { &HTTP_PROTOCOLS } else { &[] },
    };
    let chain = chain_for(listener, &connection, &mut passed_over).or(listener.default_filter_chain.as_ref());
    let Some(chain) = chain else {
        let name = &listener.name;
        explanation.outcome =
            RequestOutcome::NotServed(format!("no filter chain of listener {name} matches the connection"));
        return None;
    };
    let (entry, filters) = entry(chain);
    let filter_chain = if chain.name.is_empty() { "without a name".to_owned() } else { chain.name.clone() };
    explanation.listener =
        Some(ListenerStep { name: listener.name.clone(), reason, filter_chain, filters, passed_over });
    Some(entry)
}

fn listener_for<'a>(config: &'a ProxyConfig, request: &Request) -> Option<(&'a Listener, String)> {
    let outbound = || config.listeners.iter().filter(|l| l.traffic_direction != TrafficDirection::Inbound as i32);
    let port = request.port;
    let exact = outbound()
        .find(|listener| address_of(listener).is_some_and(|(ip, of)| of == port && request.addresses.contains(&ip)));
    if let Some(listener) = exact {
        return Some((listener, format!("its address is the destination, port {port}")));
    }
    let any = outbound().find(|l| address_of(l).is_some_and(|(ip, of)| of == port && ip.is_unspecified()));
    if let Some(listener) = any {
        return Some((listener, format!("it accepts connections to port {port} of any address")));
    }
    let named = outbound().find(|l| address_of(l).is_some_and(|(_, of)| of == port) && leads_to(l, request.host()));
    if let Some(listener) = named.filter(|_| request.addresses.is_empty()) {
        return Some((listener, format!("it is the listener of port {port} that leads to {}", request.host())));
    }
    let rest = outbound().find(|listener| listener.use_original_dst.unwrap_or(false))?;
    Some((rest, format!("no other listener accepts connections to port {port}")))
}

pub(crate) fn address_of(listener: &Listener) -> Option<(IpAddr, u16)> {
    let Some(AddressKind::SocketAddress(socket)) = listener.address.as_ref()?.address.as_ref() else { return None };
    let Some(PortSpecifier::PortValue(port)) = socket.port_specifier else { return None };
    Some((socket.address.parse().ok()?, u16::try_from(port).ok()?))
}

/// Whether a TCP proxy of the listener sends to this host.
fn leads_to(listener: &Listener, host: &str) -> bool {
    listener.filter_chains.iter().any(|chain| match entry(chain).0 {
        Entry::Tcp(clusters) => clusters.iter().any(|(name, _)| name.rsplit('|').next() == Some(host)),
        Entry::Http(manager) => manager.route_config.starts_with(host),
        Entry::Unknown => false,
    })
}

/// How well a chain matches in one property; `None` if it does not.
type Rank<'a> = &'a dyn Fn(&FilterChainMatch) -> Option<usize>;

/// Whether plain connections are inspected for HTTP.
pub(crate) fn inspects_http(listener: &Listener) -> bool {
    listener.listener_filters.iter().any(|filter| filter.name == HTTP_INSPECTOR)
}

/// Narrows the chains by one property after another, as Envoy does: at each, only the most specific ones remain.
pub(crate) fn chain_for<'a>(
    listener: &'a Listener,
    connection: &ConnectionTraits<'_>,
    passed_over: &mut Vec<Rejected>,
) -> Option<&'a FilterChain> {
    let mut left: Vec<&FilterChain> = listener.filter_chains.iter().collect();
    let properties: [(&str, Rank<'_>); 5] = [
        ("the destination port", &|m| {
            m.destination_port.map_or(Some(0), |p| (p == u32::from(connection.port)).then_some(1))
        }),
        ("the destination address", &|m| by_address(&m.prefix_ranges, connection.addresses)),
        ("the server name", &|m| by_server_name(&m.server_names, connection.server_name.as_deref())),
        ("the transport protocol", &|m| by_transport(&m.transport_protocol, connection.is_encrypted)),
        ("the application protocol", &|m| by_application(&m.application_protocols, connection.protocols)),
    ];
    let nothing = FilterChainMatch::default();
    for (what, rank) in properties {
        let ranked: Vec<(Option<usize>, &FilterChain)> =
            left.iter().map(|chain| (rank(chain.filter_chain_match.as_ref().unwrap_or(&nothing)), *chain)).collect();
        let best = ranked.iter().filter_map(|(rank, _)| *rank).max();
        left = ranked.iter().filter(|(rank, _)| rank.is_some() && *rank == best).map(|(_, chain)| *chain).collect();
        let lost = ranked.iter().filter(|(rank, _)| rank.is_none() || *rank != best);
        passed_over.extend(lost.map(|(rank, chain)| {
            let reason = if rank.is_none() { "does not match" } else { "is matched more exactly by another" };
            Rejected { what: format!("filter chain {}", chain.name), reason: format!("{what} {reason}") }
        }));
    }
    left.first().copied()
}

fn by_address(ranges: &[CidrRange], addresses: &[IpAddr]) -> Option<usize> {
    if ranges.is_empty() {
        return Some(0);
    }
    let matching = ranges.iter().filter(|range| addresses.iter().any(|address| contains(range, *address)));
    matching.map(|range| range.prefix_len.unwrap_or(0) as usize + 1).max()
}

pub(crate) fn contains(range: &CidrRange, address: IpAddr) -> bool {
    let Ok(base) = range.address_prefix.parse::<IpAddr>() else { return false };
    let length = range.prefix_len.unwrap_or(0);
    let bits = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => (u128::from(u32::from(ip)) << 96, 32),
        IpAddr::V6(ip) => (u128::from(ip), 128),
    };
    let ((base, of_base), (address, of_address)) = (bits(base), bits(address));
    let mask = if length == 0 { 0 } else { u128::MAX << (128 - length.min(of_base)) };
    of_base == of_address && base & mask == address & mask
}

fn by_server_name(names: &[String], host: Option<&str>) -> Option<usize> {
    if names.is_empty() {
        return Some(0);
    }
    let host = host?;
    let rank = |name: &String| {
        if name == host {
            return Some(usize::MAX);
        }
        let suffix = name.strip_prefix('*')?;
        (host.len() > suffix.len() && host.ends_with(suffix)).then_some(suffix.len())
    };
    names.iter().filter_map(rank).max()
}

fn by_transport(wanted: &str, is_encrypted: bool) -> Option<usize> {
    let actual = if is_encrypted { "tls" } else { "raw_buffer" };
    match wanted {
        "" => Some(0),
        wanted => (wanted == actual).then_some(1),
    }
}

/// Envoy takes the first offered protocol for which there is a chain.
fn by_application(wanted: &[String], offered: &[&str]) -> Option<usize> {
    if wanted.is_empty() {
        return Some(0);
    }
    offered.iter().position(|protocol| wanted.iter().any(|text| text == protocol)).map(|at| offered.len() - at)
}

/// What the chain does, and the names of its filters.
pub(crate) fn entry(chain: &FilterChain) -> (Entry, Vec<String>) {
    let mut names = Vec::new();
    for filter in &chain.filters {
        let Some(ConfigType::TypedConfig(config)) = &filter.config_type else { continue };
        let kind = config.type_url.rsplit('.').next().unwrap_or_default();
        match kind {
            "HttpConnectionManager" => {
                let Ok(manager) = HttpConnectionManager::decode(&*config.value) else { break };
                names.extend(manager.http_filters.iter().map(|filter| filter.name.clone()));
                return (Entry::Http(Box::new(HttpManager::new(manager))), names);
            }
            "TcpProxy" => {
                let Ok(proxy) = TcpProxy::decode(&*config.value) else { break };
                names.push(filter.name.clone());
                let clusters = match proxy.cluster_specifier {
                    Some(ClusterSpecifier::Cluster(name)) => vec![(name, 1)],
                    Some(ClusterSpecifier::WeightedClusters(weighted)) => {
                        weighted.clusters.into_iter().map(|cluster| (cluster.name, cluster.weight)).collect()
                    }
                    None => Vec::new(),
                };
                return (Entry::Tcp(clusters), names);
            }
            _ => names.push(filter.name.clone()),
        }
    }
    (Entry::Unknown, names)
}

impl HttpManager {
    fn new(manager: HttpConnectionManager) -> HttpManager {
        let strips_any_port = matches!(manager.strip_port_mode, Some(StripPortMode::StripAnyHostPort(true)));
        let strips_own_port = manager.strip_matching_host_port;
        let (route_config, inline) = match manager.route_specifier {
            Some(RouteSpecifier::Rds(rds)) => (rds.route_config_name, None),
            Some(RouteSpecifier::RouteConfig(table)) => (table.name.clone(), Some(table)),
            Some(RouteSpecifier::ScopedRoutes(scoped)) => (scoped.name, None),
            None => (String::new(), None),
        };
        HttpManager { route_config, inline, strips_any_port, strips_own_port, filters: manager.http_filters }
    }
}
