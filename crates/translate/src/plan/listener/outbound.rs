//! Listeners for what the workload calls: one per address and port, from the egress listeners of the view.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::Duration;
use api::istio::networking::v1alpha3::{CaptureMode, IstioEgressListener};
use model::names::Str;
use model::port::{Port, Protocol};
use model::proxy::Interception;
use model::service::{Registry, Resolution, Service, UNSPECIFIED};
use model::shared::Part;
use model::snapshot::routing::VirtualServiceRule;
use scope::egress::EgressListener;

use super::addresses::{self, UNSPECIFIED_V6};
use super::basis::Basis;
use super::conflicts::{Bind, Body, Chain, Entry, Meeting, Mode};
use super::tcp_routes::{self, Wanted};
use super::{
    Address, Binding, ChainMatch, ChainPlan, Direction, ListenerFilter, ListenerPlan, Ports, Transport, tls_routes,
    virtual_outbound,
};
use crate::class::Class;
use crate::names;
use crate::network_filters::http_connection_manager::{self as hcm, HttpConnectionManager, HttpSettings, Routes};
use crate::network_filters::{self, Ending, NetworkFilter};

/// Listeners by address and port.
type Entries = BTreeMap<(Str, u32), Entry>;

/// The outbound listeners, by address and port.
pub(super) fn listeners(basis: &Basis<'_>) -> Vec<ListenerPlan> {
    let mut entries = Entries::new();
    for listener in &basis.view.egress {
        let egress = &Egress::of(listener);
        let bind = bind_of(basis, listener);
        match listener.spec.as_ref().and_then(|spec| spec.port.as_ref()) {
            Some(port) => {
                let port = Port {
                    name: port.name.as_str().into(),
                    number: u16::try_from(port.number).unwrap_or_default(),
                    protocol: Protocol::parse(&port.protocol),
                };
                own_port(basis, egress, &bind, &port, &mut entries);
            }
            None => every_port(basis, egress, &bind, &mut entries),
        }
    }
    let fallthrough = virtual_outbound::catch_all_filters(basis);
    entries.into_values().map(|entry| plan(basis, entry, &basis.outbound_http, &fallthrough)).collect()
}

/// The port where the workload uses the sidecar as a forward proxy, if the mesh or the node asks for it.
pub(super) fn http_proxy(basis: &Basis<'_>) -> Option<ListenerPlan> {
    let of_mesh = u32::try_from(basis.view.settings.mesh.proxy_http_port).unwrap_or_default();
    let of_node = basis.view.proxy.meta("HTTP_PROXY_PORT").and_then(|port| port.parse().ok());
    let port = Some(of_node.unwrap_or(of_mesh)).filter(|port| *port != 0)?;
    let chain =
        Chain::new(Body::Http { routes: names::HTTP_PROXY.into(), protocol: Protocol::HttpProxy, resolved_by: None });
    let bind = Bind { addresses: basis.localhosts.clone(), opens_port: true };
    let settings = Part::new(hcm::http_proxy(basis.view, &basis.view.proxy_config));
    Some(plan(basis, Entry::new(port, bind, Protocol::HttpProxy, vec![chain]), &settings, &[]))
}

/// An egress listener and those of its routes that direct bytes.
struct Egress<'a> {
    listener: &'a EgressListener,
    rules: Vec<&'a VirtualServiceRule>,
}

impl<'a> Egress<'a> {
    fn of(listener: &'a EgressListener) -> Egress<'a> {
        let directs = |rule: &&VirtualServiceRule| !rule.config.spec.tcp.is_empty() || !rule.config.spec.tls.is_empty();
        Egress { listener, rules: listener.virtual_services.iter().map(|r| &**r).filter(directs).collect() }
    }
}

/// Where an egress listener binds: its own address; else loopback if it opens ports; else where services are.
fn bind_of(basis: &Basis<'_>, egress: &EgressListener) -> Bind {
    let spec = egress.spec.as_deref();
    let unix = |s: &IstioEgressListener| s.bind.starts_with(names::UNIX_PREFIX);
    let opens_port = basis.view.proxy.interception == Interception::None
        || spec.is_some_and(|s| s.capture_mode() == CaptureMode::None || unix(s));
    let addresses = match spec {
        Some(s) if !s.bind.is_empty() => vec![s.bind.as_str().into()],
        _ if opens_port => basis.localhosts.clone(),
        _ => Vec::new(),
    };
    Bind { addresses, opens_port }
}

/// A Sidecar's listener with a port of its own.
fn own_port(basis: &Basis<'_>, egress: &Egress<'_>, bind: &Bind, port: &Port, entries: &mut Entries) {
    if can_bind(basis, bind, port) {
        for service in &egress.listener.services {
            add(basis, egress, service, port, bind.clone(), entries);
        }
    }
}

/// A listener for each port of each service, but not where a Sidecar has one of its own.
fn every_port(basis: &Basis<'_>, egress: &Egress<'_>, bind: &Bind, entries: &mut Entries) {
    entries.values_mut().for_each(|entry| entry.locked = true);
    for service in &egress.listener.services {
        for port in service.ports.iter().filter(|port| can_bind(basis, bind, port)) {
            match instances(basis, service, port, bind) {
                None => add(basis, egress, service, port, bind.clone(), entries),
                Some(instances) => {
                    for addresses in instances {
                        let bind = Bind { addresses, opens_port: bind.opens_port };
                        add(basis, egress, service, port, bind, entries);
                    }
                }
            }
        }
    }
}

fn can_bind(basis: &Basis<'_>, bind: &Bind, port: &Port) -> bool {
    let socket = addresses::Socket {
        opens_port: bind.opens_port,
        bind: bind.primary(),
        port: port.number.into(),
        protocol: port.protocol,
    };
    addresses::is_free(&basis.view.proxy, Some(&basis.view.settings), &socket, basis.wildcard())
}

/// Addresses of single instances, where bytes to a service without an address must be told apart by them.
fn instances(basis: &Basis<'_>, service: &Service, port: &Port, bind: &Bind) -> Option<Vec<Vec<Str>>> {
    let view = basis.view;
    let bytes = port.protocol.is_tcp() || port.protocol.is_unknown();
    if !bind.primary().is_empty() || !bytes || service.resolution != Resolution::Passthrough {
        return None;
    }
    if *addresses::of_service(service, &view.proxy, basis.knobs()) != *UNSPECIFIED {
        return None;
    }
    let endpoints: Vec<_> = view.endpoints(service).filter(|e| e.service_port == port.name).collect();
    // Only a ServiceEntry that lists and selects nothing falls back to a wildcard: anything else may yet
    // get instances, and the wildcard would then be in the way.
    if endpoints.is_empty() && service.registry != Registry::Kubernetes && service.selector.is_empty() {
        return None;
    }
    let own = view.proxy.ips.first().map(ToString::to_string).unwrap_or_default();
    let reachable = endpoints.into_iter().filter(|e| e.addresses.iter().all(|a| a.parse::<IpAddr>().is_ok()));
    // The workload's calls to itself do not pass through here.
    Some(reachable.filter(|e| e.address() != own).map(|e| e.addresses.clone()).collect())
}

/// Adds one port of one service to the listener it belongs to.
fn add(basis: &Basis<'_>, egress: &Egress<'_>, service: &Service, port: &Port, bind: Bind, entries: &mut Entries) {
    let Some(mode) = Mode::of(port.protocol).filter(|_| service.resolution != Resolution::Alias) else { return };
    let (bind, ranges) = placed(basis, service, mode, bind);
    let key = (Str::from(bind.primary()), u32::from(port.number));
    let current = entries.get_mut(&key);
    let meeting = match &current {
        Some(entry) if entry.locked => return,
        // A forward proxy takes the listener over.
        Some(_) if port.protocol == Protocol::HttpProxy => Meeting::Replace,
        Some(entry) => entry.meet(port.protocol, mode),
        None => Meeting::Replace,
    };
    if meeting == Meeting::Skip {
        return;
    }
    let at_wildcard = bind.primary() == &**basis.wildcard();
    let wanted = Joining { egress, service, port, ranges: &ranges, bind: &bind };
    let chains = chains(basis, &wanted, mode, at_wildcard);
    match (meeting, current) {
        (Meeting::Merge, Some(entry)) => entry.join(mode, chains),
        _ => {
            // Behind a wildcard there is a chain for other bytes too, so the port counts as undeclared.
            let shared = mode == Mode::Http && at_wildcard && port.protocol != Protocol::HttpProxy;
            let protocol = if shared { Protocol::Unknown } else { port.protocol };
            entries.insert(key, Entry::new(port.number.into(), bind, protocol, chains));
        }
    }
}

/// Where the listener of a service binds, and the blocks it then must match.
fn placed(basis: &Basis<'_>, service: &Service, mode: Mode, bind: Bind) -> (Bind, Vec<Str>) {
    if !bind.primary().is_empty() {
        return (bind, Vec::new());
    }
    let wildcards = Bind { addresses: basis.wildcards.clone(), ..bind };
    if mode == Mode::Http {
        return (wildcards, Vec::new());
    }
    let proxy = &basis.view.proxy;
    let mut first = addresses::of_service(service, proxy, basis.knobs());
    let mut extra = addresses::extra_of_service(service, proxy, basis.knobs());
    // The family of a name is not known, so a service without an address stands in all of the proxy's.
    if service.registry == Registry::External && *first == *UNSPECIFIED && proxy.has_ipv6() {
        if proxy.has_ipv4() {
            extra.push(UNSPECIFIED_V6.into());
        } else {
            first = UNSPECIFIED_V6.into();
        }
    }
    let is_block = first.contains('/');
    let addresses: Vec<Str> = std::iter::once(first).chain(extra).collect();
    if is_block { (wildcards, addresses) } else { (Bind { addresses, ..wildcards }, Vec::new()) }
}

struct Joining<'a> {
    egress: &'a Egress<'a>,
    service: &'a Service,
    port: &'a Port,
    ranges: &'a [Str],
    bind: &'a Bind,
}

/// The chains that a port brings to its listener.
fn chains(basis: &Basis<'_>, wanted: &Joining<'_>, mode: Mode, at_wildcard: bool) -> Vec<Chain> {
    let http = || {
        let routes = route_name(wanted, mode, at_wildcard);
        let resolved_by = basis.dns_cache(wanted.service);
        Chain::new(Body::Http { routes, protocol: wanted.port.protocol, resolved_by })
    };
    match mode {
        Mode::Http if at_wildcard && wanted.port.protocol != Protocol::HttpProxy => vec![detected(basis, http())],
        Mode::Http => vec![http()],
        Mode::Tcp => bytes(basis, wanted),
        Mode::Auto => {
            let mut chains = bytes(basis, wanted);
            chains.push(detected(basis, http()));
            chains
        }
    }
}

/// A chain for connections that the HTTP inspector takes for HTTP.
fn detected(basis: &Basis<'_>, chain: Chain) -> Chain {
    Chain { alpn: plaintext_alpn(basis), transport: Some(Transport::Raw), ..chain }
}

/// What the HTTP inspector reports. HTTP/1.0 would only be refused if it is not enabled, so it passes as bytes.
pub(super) fn plaintext_alpn(basis: &Basis<'_>) -> Vec<Str> {
    let versions: &[&str] = if basis.knobs().http10 { &["http/1.0", "http/1.1", "h2c"] } else { &["http/1.1", "h2c"] };
    versions.iter().map(|v| (*v).into()).collect()
}

/// The name of the route table: the port's, or a service's own where it alone is behind the listener.
fn route_name(wanted: &Joining<'_>, mode: Mode, at_wildcard: bool) -> Str {
    let number = wanted.port.number;
    if number == 0 {
        return wanted.bind.primary().into();
    }
    if mode == Mode::Auto && !at_wildcard {
        return format!("{}:{number}", wanted.service.hostname).into();
    }
    number.to_string().into()
}

fn bytes(basis: &Basis<'_>, wanted: &Joining<'_>) -> Vec<Chain> {
    let host = &wanted.service.hostname;
    let for_host = |rule: &&VirtualServiceRule| rule.config.spec.hosts.iter().any(|h| host.overlaps(h));
    let routes: Vec<&VirtualServiceRule> = wanted.egress.rules.iter().copied().filter(for_host).collect();
    let bytes = Wanted { service: wanted.service, port: wanted.port, ranges: wanted.ranges, routes: &routes };
    if wanted.port.protocol.is_tls() {
        return tls_routes::chains(basis, &bytes, wanted.bind.primary());
    }
    tcp_routes::chains(basis, &bytes)
}

/// The finished listener. Connections that no chain takes go where unknown destinations go.
fn plan(basis: &Basis<'_>, entry: Entry, settings: &Part<HttpSettings>, fallthrough: &[NetworkFilter]) -> ListenerPlan {
    let port = entry.port;
    let name: Str = names::listener(entry.bind.primary(), port).into();
    let needs_tls = entry.chains.iter().any(|c| !c.server_names.is_empty() || c.resolves_server_names());
    let needs_http = entry.chains.iter().any(|c| !c.alpn.is_empty());
    let mut chains = Vec::with_capacity(entry.chains.len());
    let mut default_chain = None;
    for chain in entry.chains {
        let everything = chain.takes_everything();
        let finished = chain_plan(basis, chain, &name, port, settings);
        if everything {
            default_chain = Some(ChainPlan { matching: None, ..finished });
        } else {
            chains.push(finished);
        }
    }
    match default_chain.take() {
        Some(only) if chains.is_empty() => chains.push(only),
        Some(default) => default_chain = Some(default),
        None => default_chain = Some(passthrough(fallthrough)),
    }
    let extra = entry.bind.addresses.iter().skip(1).filter(|a| !a.is_empty());
    let opens_port = entry.bind.opens_port;
    ListenerPlan {
        address: Address::new(entry.bind.primary(), port),
        additional_addresses: extra.map(|a| Address::new(a, port)).collect(),
        name,
        direction: Direction::Outbound,
        binding: if opens_port { Binding::Port } else { Binding::Virtual },
        use_original_dst: false,
        transparent: false,
        exact_balance: basis.view.proxy.flag("OUTBOUND_LISTENER_EXACT_BALANCE"),
        connections_per_event: basis.connections_per_event().filter(|_| opens_port),
        filters: inspectors(needs_tls, needs_http),
        filters_timeout: filters_timeout(basis, needs_http),
        continue_on_filters_timeout: true,
        access_log: basis.no_log.clone(),
        chains,
        default_chain,
    }
}

fn inspectors(tls: bool, http: bool) -> Vec<ListenerFilter> {
    let tls = tls.then_some(ListenerFilter::TlsInspector(Ports::All));
    let http = http.then_some(ListenerFilter::HttpInspector(Ports::All));
    tls.into_iter().chain(http).collect()
}

/// Detection may be given up after the mesh's timeout; listeners that detect nothing wait without end.
fn filters_timeout(basis: &Basis<'_>, detects: bool) -> Option<Duration> {
    if detects { basis.view.settings.mesh.protocol_detection_timeout } else { Some(Duration::default()) }
}

fn chain_plan(basis: &Basis<'_>, chain: Chain, listener: &str, port: u32, settings: &Part<HttpSettings>) -> ChainPlan {
    let matching = chain.matching();
    let filters = match chain.body {
        Body::Network(filters) => filters,
        Body::Http { routes, protocol, resolved_by } => {
            let manager = HttpConnectionManager {
                stat_prefix: format!("outbound_{listener};").into(),
                routes: Routes::Rds(routes),
                http2: false,
                settings: settings.clone(),
                filters: basis.http_filters_resolving(Class::SidecarOutbound, port, protocol, resolved_by.as_ref()),
            };
            let connection = basis.connection(Class::SidecarOutbound, port, Ending::Http);
            network_filters::chain(&connection, vec![NetworkFilter::Http(Box::new(manager))])
        }
    };
    ChainPlan {
        name: "".into(),
        matching: Some(matching),
        config: chain.config,
        tls: None,
        handshake_timeout: basis.handshake_timeout,
        filters,
    }
}

fn passthrough(filters: &[NetworkFilter]) -> ChainPlan {
    ChainPlan {
        name: names::PASSTHROUGH_CHAIN.into(),
        matching: Some(ChainMatch::default()),
        config: None,
        tls: None,
        handshake_timeout: None,
        filters: filters.to_vec(),
    }
}
