//! Listener plans: address, listener filters, filter chains and their matches.
//! `sidecar` and `gateway` return all listeners of a client; the other files plan parts of them.

mod addresses;
mod conflicts;
mod context;
mod gateway;
mod inbound;
mod inspectors;
mod mtls;
mod outbound;
mod server_tls;
mod tcp_routes;
mod tls_routes;
mod virtual_outbound;

use api::Duration;
use ipnet::IpNet;
use model::hashed::Hashed;
use model::names::{Namespace, Str};
use scope::View;

use crate::names::UNIX_PREFIX;
use crate::network_filters::NetworkFilter;
use crate::telemetry::access_log::AccessLog;
use context::ListenerContext;
pub use gateway::gateway;
pub use server_tls::{ClientValidation, SecretRef, SecretSource, ServerTls, TlsParams, TlsVersion};

/// One listener.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ListenerPlan {
    pub name: Str,
    pub address: ListenerAddress,
    /// Further addresses of a dual-stack listener.
    pub additional_addresses: Vec<ListenerAddress>,
    pub direction: Direction,
    pub binding: Binding,
    /// Hands connections over to the listener of their original destination.
    pub use_original_dst: bool,
    /// Preserves the client's address (TPROXY).
    pub transparent: bool,
    pub exact_balance: bool,
    /// Limit on connections accepted per socket event.
    pub connections_per_event: Option<u32>,
    pub filters: Vec<ListenerFilter>,
    pub filters_timeout: Option<Duration>,
    pub continue_on_filters_timeout: bool,
    pub access_log: Hashed<Vec<AccessLog>>,
    pub chains: Vec<ChainPlan>,
    pub default_chain: Option<ChainPlan>,
    /// A filter chain was left out because another service has one with the same match.
    pub has_conflict: bool,
}

/// The address of a listener.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ListenerAddress {
    Socket { ip: Str, port: u32 },
    Pipe(Str),
}

impl ListenerAddress {
    /// A socket address, or a Unix path if `port` is 0.
    fn new(bind: &str, port: u32) -> ListenerAddress {
        if port == 0 {
            return ListenerAddress::Pipe(bind.strip_prefix(UNIX_PREFIX).unwrap_or(bind).into());
        }
        ListenerAddress::Socket { ip: bind.into(), port }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    Inbound,
    Outbound,
}

/// Whether a listener opens its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binding {
    Port,
    /// Receives connections from a capturing listener.
    Virtual,
}

/// Runs before a filter chain is selected.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ListenerFilter {
    OriginalDst,
    OriginalSrc,
    ProxyProtocol,
    TlsInspector(InspectedPorts),
    HttpInspector(InspectedPorts),
}

/// Destination ports that an inspector applies to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum InspectedPorts {
    All,
    /// Sorted; never empty.
    AllBut(Vec<u32>),
    /// Sorted; never empty.
    Only(Vec<u32>),
}

/// One filter chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChainPlan {
    pub name: Str,
    pub matching: Option<ChainMatch>,
    /// The config object it comes from.
    pub config: Option<ConfigRef>,
    pub tls: Option<Hashed<ServerTls>>,
    pub handshake_timeout: Option<Duration>,
    pub filters: Vec<NetworkFilter>,
}

/// A filter chain match; all conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ChainMatch {
    pub port: Option<u32>,
    pub ranges: Vec<IpNet>,
    pub server_names: Vec<Str>,
    pub transport: Option<TransportProtocol>,
    pub alpn: Vec<Str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransportProtocol {
    Raw,
    Tls,
}

/// Reference to a config object, for metadata.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConfigRef {
    pub kind: model::config::Kind,
    pub namespace: Namespace,
    pub name: Str,
}

/// All listeners of a sidecar: outbound, HTTP proxy, virtualOutbound, inbound. Empty if `proxyListenPort` is not
/// positive.
pub fn sidecar(view: &View) -> Vec<ListenerPlan> {
    let mut listeners = of_direction(view, Direction::Outbound);
    listeners.extend(of_direction(view, Direction::Inbound));
    listeners
}

/// The listeners of a sidecar for one direction.
pub(crate) fn of_direction(view: &View, direction: Direction) -> Vec<ListenerPlan> {
    if view.settings.mesh.proxy_listen_port <= 0 {
        return Vec::new();
    }
    let context = ListenerContext::new(view);
    if direction == Direction::Inbound {
        return inbound::listeners(&context);
    }
    let mut listeners = outbound::listeners(&context);
    listeners.extend(outbound::http_proxy(&context));
    listeners.extend(virtual_outbound::listener(&context));
    listeners
}
