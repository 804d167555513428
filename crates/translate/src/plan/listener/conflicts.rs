//! Services that share one outbound listener: which filter chains are merged, replaced or skipped.
//! HTTP services share a listener through its routes; TCP services must differ in their filter chain matches.

use std::collections::{BTreeSet, HashSet};

use ipnet::IpNet;
use model::names::Str;
use model::port::Protocol;
use model::service::UNSPECIFIED;

use super::{ChainMatch, ConfigRef, TransportProtocol};
use crate::dns_cache::DnsCache;
use crate::network_filters::NetworkFilter;

/// How a listener handles the traffic of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrafficMode {
    Http,
    Tcp,
    /// Detected by inspectors.
    Auto,
}

impl TrafficMode {
    /// `None` for ports that are not proxied.
    pub(super) fn of(protocol: Protocol) -> Option<TrafficMode> {
        match protocol {
            Protocol::Udp => None,
            p if p.is_http() => Some(TrafficMode::Http),
            p if p.is_tcp() => Some(TrafficMode::Tcp),
            _ => Some(TrafficMode::Auto),
        }
    }
}

/// A filter chain before it is planned.
#[derive(Clone, Debug)]
pub(super) struct ChainDraft {
    pub(super) server_names: Vec<Str>,
    /// Addresses and CIDR blocks as configured.
    pub(super) ranges: Vec<Str>,
    /// Application protocols set by the HTTP inspector.
    pub(super) alpn: Vec<Str>,
    pub(super) transport: Option<TransportProtocol>,
    pub(super) config: Option<ConfigRef>,
    pub(super) body: ChainBody,
}

#[derive(Clone, Debug)]
pub(super) enum ChainBody {
    /// A connection manager with the route table of this name.
    Http {
        routes: Str,
        protocol: Protocol,
        resolved_by: Option<DnsCache>,
    },
    Network(Vec<NetworkFilter>),
}

impl ChainDraft {
    pub(super) fn new(body: ChainBody) -> ChainDraft {
        ChainDraft {
            server_names: Vec::new(),
            ranges: Vec::new(),
            alpn: Vec::new(),
            transport: None,
            config: None,
            body,
        }
    }

    /// Whether the destination is resolved from the SNI.
    pub(super) fn resolves_server_names(&self) -> bool {
        let filters: &[NetworkFilter] = if let ChainBody::Network(filters) = &self.body { filters } else { &[] };
        filters.iter().any(|f| matches!(f, NetworkFilter::SniForwardProxy { .. }))
    }

    pub(super) fn takes_everything(&self) -> bool {
        let any_name = self.server_names.is_empty() || self.server_names.iter().any(|n| **n == *"*");
        any_name && self.alpn.is_empty() && self.transport.is_none() && self.ranges.is_empty()
    }

    /// The filter chain match.
    pub(super) fn matching(&self) -> ChainMatch {
        let mut server_names = self.server_names.clone();
        server_names.sort();
        if server_names.iter().any(|n| **n == *"*") {
            server_names.clear();
        }
        let mut written = self.ranges.clone();
        written.sort();
        let ranges = written.iter().filter_map(|r| prefix(r)).filter(|net| !is_everywhere(net));
        ChainMatch {
            port: None,
            ranges: ranges.collect(),
            server_names,
            transport: self.transport,
            alpn: self.alpn.clone(),
        }
    }

    /// Equal for chains whose matches are the same to Envoy.
    fn conditions(&self) -> MatchKey {
        let names = self.server_names.iter().filter(|n| ***n != *"*");
        let nets = self.ranges.iter().filter_map(|r| prefix(r)).filter(|net| !is_everywhere(net));
        MatchKey {
            transport: self.transport,
            alpn: self.alpn.clone(),
            names: names.cloned().collect(),
            nets: nets.map(|net| net.trunc()).collect(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct MatchKey {
    transport: Option<TransportProtocol>,
    alpn: Vec<Str>,
    names: BTreeSet<Str>,
    nets: BTreeSet<IpNet>,
}

/// Parses an address or a CIDR block.
fn prefix(text: &str) -> Option<IpNet> {
    if text.contains('/') { text.parse().ok() } else { text.parse::<std::net::IpAddr>().ok().map(IpNet::from) }
}

/// Upstream omits blocks that begin at 0.0.0.0, whatever their prefix length.
fn is_everywhere(net: &IpNet) -> bool {
    net.addr().to_string() == UNSPECIFIED
}

/// Bind addresses of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BindAddresses {
    /// The listener's address, then additional addresses.
    pub(super) addresses: Vec<Str>,
    pub(super) opens_port: bool,
}

impl BindAddresses {
    /// Empty if the service's address is used.
    pub(super) fn primary(&self) -> &str {
        self.addresses.first().map_or("", |a| a)
    }
}

/// An outbound listener before it is planned.
#[derive(Debug)]
pub(super) struct ListenerDraft {
    pub(super) port: u32,
    pub(super) bind: BindAddresses,
    pub(super) chains: Vec<ChainDraft>,
    /// `Unknown` once TCP and HTTP share the listener.
    protocol: Protocol,
    known: HashSet<MatchKey>,
    /// Created for a Sidecar's egress port: services of other egress listeners are not added.
    pub(super) locked: bool,
    /// A chain was left out because its match is already taken.
    pub(super) has_conflict: bool,
}

impl ListenerDraft {
    pub(super) fn new(port: u32, bind: BindAddresses, protocol: Protocol, chains: Vec<ChainDraft>) -> ListenerDraft {
        let known = chains.iter().map(ChainDraft::conditions).collect();
        ListenerDraft { port, bind, chains, protocol, known, locked: false, has_conflict: false }
    }

    /// Adds chains. Of chains with the same match, the first is kept.
    fn merge(&mut self, incoming: Vec<ChainDraft>) {
        for chain in incoming {
            if self.known.insert(chain.conditions()) {
                self.chains.push(chain);
            } else {
                self.has_conflict = true;
            }
        }
    }
}

/// What to do when a service's port is added to an existing listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    /// Nothing is added.
    Skip,
    Replace,
    Merge,
}

impl ListenerDraft {
    /// How a port of this protocol is added to the listener.
    pub(super) fn conflict_with(&self, incoming: Protocol, mode: TrafficMode) -> Conflict {
        let conflict = match mode {
            TrafficMode::Http if self.protocol.is_tcp() => Conflict::Merge,
            TrafficMode::Http => Conflict::Skip,
            TrafficMode::Tcp => Conflict::Merge,
            TrafficMode::Auto if self.protocol.is_http() => Conflict::Replace,
            TrafficMode::Auto if self.protocol.is_tcp() => Conflict::Merge,
            TrafficMode::Auto => Conflict::Skip,
        };
        // Servers of these protocols send first, so the listener cannot wait for an inspector.
        let speaks_first = |p| matches!(p, Protocol::Mongo | Protocol::MySql);
        if incoming != self.protocol && (speaks_first(incoming) || speaks_first(self.protocol)) {
            return Conflict::Skip;
        }
        conflict
    }

    /// Adds the chains of another port.
    pub(super) fn join(&mut self, mode: TrafficMode, chains: Vec<ChainDraft>) {
        let mixed = if mode == TrafficMode::Tcp { self.protocol.is_http() } else { self.protocol.is_tcp() };
        if mixed {
            self.protocol = Protocol::Unknown;
        }
        self.merge(chains);
    }
}

#[cfg(test)]
mod tests {
    use model::port::Protocol;

    use super::{BindAddresses, ChainBody, ChainDraft, Conflict, ListenerDraft, TrafficMode};

    fn draft(protocol: Protocol) -> ListenerDraft {
        let bind = BindAddresses { addresses: vec!["0.0.0.0".into()], opens_port: false };
        ListenerDraft::new(80, bind, protocol, vec![bytes(&[])])
    }

    fn bytes(ranges: &[&str]) -> ChainDraft {
        let ranges = ranges.iter().map(|r| (*r).into()).collect();
        ChainDraft { ranges, ..ChainDraft::new(ChainBody::Network(Vec::new())) }
    }

    #[test]
    fn http_joins_tcp_but_adds_nothing_to_http() {
        assert_eq!(draft(Protocol::Tcp).conflict_with(Protocol::Http, TrafficMode::Http), Conflict::Merge);
        assert_eq!(draft(Protocol::Http).conflict_with(Protocol::Http2, TrafficMode::Http), Conflict::Skip);
        assert_eq!(draft(Protocol::Unknown).conflict_with(Protocol::Http, TrafficMode::Http), Conflict::Skip);
    }

    #[test]
    fn undeclared_port_replaces_http_and_joins_tcp() {
        assert_eq!(draft(Protocol::Http).conflict_with(Protocol::Unknown, TrafficMode::Auto), Conflict::Replace);
        assert_eq!(draft(Protocol::Tcp).conflict_with(Protocol::Unknown, TrafficMode::Auto), Conflict::Merge);
        assert_eq!(draft(Protocol::Unknown).conflict_with(Protocol::Unknown, TrafficMode::Auto), Conflict::Skip);
    }

    #[test]
    fn server_first_protocols_share_only_with_the_same_protocol() {
        assert_eq!(draft(Protocol::Mongo).conflict_with(Protocol::Tcp, TrafficMode::Tcp), Conflict::Skip);
        assert_eq!(draft(Protocol::Tcp).conflict_with(Protocol::MySql, TrafficMode::Tcp), Conflict::Skip);
        assert_eq!(draft(Protocol::Mongo).conflict_with(Protocol::Mongo, TrafficMode::Tcp), Conflict::Merge);
    }

    #[test]
    fn chains_with_the_same_match_are_not_added() {
        let mut draft = draft(Protocol::Tcp);
        draft.join(TrafficMode::Tcp, vec![bytes(&[]), bytes(&["10.0.0.0/8"])]);
        draft.join(TrafficMode::Tcp, vec![bytes(&["10.9.9.9/8"]), bytes(&["10.0.0.0/16"])]);
        let ranges: Vec<_> = draft.chains.iter().map(|c| c.ranges.clone()).collect();
        let expected: [&[&str]; 3] = [&[], &["10.0.0.0/8"], &["10.0.0.0/16"]];
        assert_eq!(ranges, expected);
        assert!(draft.has_conflict);
    }
}
