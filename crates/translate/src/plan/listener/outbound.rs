//! Outbound listeners: one per address and port, from the egress listeners of the view.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::Duration;
use api::istio::networking::v1alpha3::{CaptureMode, IstioEgressListener};
use model::hashed::Hashed;
use model::names::Str;
use model::port::{Port, Protocol};
use model::proxy::Interception;
use model::service::{Registry, Resolution, Service, UNSPECIFIED};
use model::snapshot::routing::VirtualServiceRule;
use scope::egress::EgressListener;

use super::addresses::{self, UNSPECIFIED_V6};
use super::conflicts::{BindAddresses, ChainBody, ChainDraft, Conflict, ListenerDraft, TrafficMode};
use super::context::ListenerContext;
use super::tcp_routes::{self, ServicePort};
use super::{
    Binding, ChainMatch, ChainPlan, Direction, InspectedPorts, ListenerAddress, ListenerFilter, ListenerPlan,
    TransportProtocol, tls_routes, virtual_outbound,
};
use crate::listener_side::ListenerSide;
use crate::names;
use crate::network_filters::http_connection_manager::{self as hcm, HttpConnectionManager, HttpSettings, Routes};
use crate::network_filters::{self, ChainEnd, NetworkFilter};

/// Listener drafts by bind address and port.
type ListenerDrafts = BTreeMap<(Str, u32), ListenerDraft>;

/// All outbound listeners, sorted by address and port.
pub(super) fn listeners(context: &ListenerContext<'_>) -> Vec<ListenerPlan> {
    let mut drafts = ListenerDrafts::new();
    for listener in context.view.egress.iter() {
        let egress = &EgressRules::of(listener);
        let bind = bind_of(context, listener);
        match listener.spec.as_ref().and_then(|spec| spec.port.as_ref()) {
            Some(port) => {
                let port = Port {
                    name: port.name.as_str().into(),
                    number: u16::try_from(port.number).unwrap_or_default(),
                    protocol: Protocol::parse(&port.protocol),
                };
                own_port(context, egress, &bind, &port, &mut drafts);
            }
            None => every_port(context, egress, &bind, &mut drafts),
        }
    }
    let fallthrough = virtual_outbound::catch_all_filters(context);
    drafts.into_values().map(|draft| plan(context, draft, &context.outbound_http, &fallthrough)).collect()
}

/// The listener for the workload's use of the sidecar as an HTTP forward proxy, if the mesh or the node enables it.
pub(super) fn http_proxy(context: &ListenerContext<'_>) -> Option<ListenerPlan> {
    let of_mesh = u32::try_from(context.view.settings.mesh.proxy_http_port).unwrap_or_default();
    let of_node = context.view.proxy.meta("HTTP_PROXY_PORT").and_then(|port| port.parse().ok());
    let port = Some(of_node.unwrap_or(of_mesh)).filter(|port| *port != 0)?;
    let chain = ChainDraft::new(ChainBody::Http {
        routes: names::HTTP_PROXY.into(),
        protocol: Protocol::HttpProxy,
        resolved_by: None,
    });
    let bind = BindAddresses { addresses: context.localhosts.clone(), opens_port: true };
    let settings = Hashed::new(hcm::http_proxy(context.view, &context.view.proxy_config));
    Some(plan(context, ListenerDraft::new(port, bind, Protocol::HttpProxy, vec![chain]), &settings, &[]))
}

/// An egress listener and its VirtualServices with TCP or TLS routes.
struct EgressRules<'a> {
    listener: &'a EgressListener,
    rules: Vec<&'a VirtualServiceRule>,
}

impl<'a> EgressRules<'a> {
    fn of(listener: &'a EgressListener) -> EgressRules<'a> {
        let directs = |rule: &&VirtualServiceRule| !rule.config.spec.tcp.is_empty() || !rule.config.spec.tls.is_empty();
        EgressRules { listener, rules: listener.virtual_services.iter().map(|r| &**r).filter(directs).collect() }
    }
}

/// Bind address of an egress listener: its own; else loopback if it opens ports; else empty, for the services'.
fn bind_of(context: &ListenerContext<'_>, egress: &EgressListener) -> BindAddresses {
    let spec = egress.spec.as_deref();
    let unix = |s: &IstioEgressListener| s.bind.starts_with(names::UNIX_PREFIX);
    let opens_port = context.view.proxy.interception == Interception::None
        || spec.is_some_and(|s| s.capture_mode() == CaptureMode::None || unix(s));
    let addresses = match spec {
        Some(s) if !s.bind.is_empty() => vec![s.bind.as_str().into()],
        _ if opens_port => context.localhosts.clone(),
        _ => Vec::new(),
    };
    BindAddresses { addresses, opens_port }
}

/// Adds a Sidecar's egress listener that has its own port.
fn own_port(
    context: &ListenerContext<'_>,
    egress: &EgressRules<'_>,
    bind: &BindAddresses,
    port: &Port,
    drafts: &mut ListenerDrafts,
) {
    if can_bind(context, bind, port) {
        for service in &egress.listener.services {
            add(context, egress, service, port, bind.clone(), drafts);
        }
    }
}

/// Adds a listener for each port of each service, except on ports that the Sidecar has its own listener for.
fn every_port(
    context: &ListenerContext<'_>,
    egress: &EgressRules<'_>,
    bind: &BindAddresses,
    drafts: &mut ListenerDrafts,
) {
    drafts.values_mut().for_each(|draft| draft.locked = true);
    for service in &egress.listener.services {
        for port in service.ports.iter().filter(|port| can_bind(context, bind, port)) {
            match instances(context, service, port, bind) {
                None => add(context, egress, service, port, bind.clone(), drafts),
                Some(instances) => {
                    for addresses in instances {
                        let bind = BindAddresses { addresses, opens_port: bind.opens_port };
                        add(context, egress, service, port, bind, drafts);
                    }
                }
            }
        }
    }
}

fn can_bind(context: &ListenerContext<'_>, bind: &BindAddresses, port: &Port) -> bool {
    let socket = addresses::ListenSocket {
        opens_port: bind.opens_port,
        bind: bind.primary(),
        port: port.number.into(),
        protocol: port.protocol,
    };
    addresses::is_free(&context.view.proxy, Some(&context.view.settings), &socket, context.wildcard())
}

/// Addresses of the endpoints of a headless service: each gets its own TCP listener.
fn instances(
    context: &ListenerContext<'_>,
    service: &Service,
    port: &Port,
    bind: &BindAddresses,
) -> Option<Vec<Vec<Str>>> {
    let view = context.view;
    let bytes = port.protocol.is_tcp() || port.protocol.is_unknown();
    if !bind.primary().is_empty() || !bytes || service.resolution != Resolution::Passthrough {
        return None;
    }
    if *addresses::of_service(service, &view.proxy, context.knobs()) != *UNSPECIFIED {
        return None;
    }
    let endpoints: Vec<_> = view.endpoints(service).filter(|e| e.service_port == port.name).collect();
    // Only a ServiceEntry without endpoints and selector falls back to a wildcard listener. Others may get endpoints
    // later, which the wildcard listener would conflict with.
    if endpoints.is_empty() && service.registry != Registry::Kubernetes && service.selector.is_empty() {
        return None;
    }
    let own = view.proxy.ips.first().map(ToString::to_string).unwrap_or_default();
    let reachable = endpoints.into_iter().filter(|e| e.addresses.iter().all(|a| a.parse::<IpAddr>().is_ok()));
    // Calls of the workload to itself are not captured.
    Some(reachable.filter(|e| e.address() != own).map(|e| e.addresses.clone()).collect())
}

/// Adds one port of one service to its listener.
fn add(
    context: &ListenerContext<'_>,
    egress: &EgressRules<'_>,
    service: &Service,
    port: &Port,
    bind: BindAddresses,
    drafts: &mut ListenerDrafts,
) {
    let Some(mode) = TrafficMode::of(port.protocol).filter(|_| service.resolution != Resolution::Alias) else { return };
    let (bind, ranges) = placed(context, service, mode, bind);
    let key = (Str::from(bind.primary()), u32::from(port.number));
    let current = drafts.get_mut(&key);
    let conflict = match &current {
        Some(draft) if draft.locked => return,
        // An HTTP proxy port replaces the listener.
        Some(_) if port.protocol == Protocol::HttpProxy => Conflict::Replace,
        Some(draft) => draft.conflict_with(port.protocol, mode),
        None => Conflict::Replace,
    };
    if conflict == Conflict::Skip {
        return;
    }
    let at_wildcard = bind.primary() == &**context.wildcard();
    let new = NewPort { egress, service, port, ranges: &ranges, bind: &bind };
    let chains = chains(context, &new, mode, at_wildcard);
    match (conflict, current) {
        (Conflict::Merge, Some(draft)) => draft.join(mode, chains),
        _ => {
            // A wildcard listener also has a chain for other TCP traffic, so its protocol counts as unknown.
            let shared = mode == TrafficMode::Http && at_wildcard && port.protocol != Protocol::HttpProxy;
            let protocol = if shared { Protocol::Unknown } else { port.protocol };
            drafts.insert(key, ListenerDraft::new(port.number.into(), bind, protocol, chains));
        }
    }
}

/// Bind address of a service's listener, and the CIDR blocks that its chains must match.
fn placed(
    context: &ListenerContext<'_>,
    service: &Service,
    mode: TrafficMode,
    bind: BindAddresses,
) -> (BindAddresses, Vec<Str>) {
    if !bind.primary().is_empty() {
        return (bind, Vec::new());
    }
    let wildcards = BindAddresses { addresses: context.wildcards.clone(), ..bind };
    if mode == TrafficMode::Http {
        return (wildcards, Vec::new());
    }
    let proxy = &context.view.proxy;
    let mut first = addresses::of_service(service, proxy, context.knobs());
    let mut extra = addresses::extra_of_service(service, proxy, context.knobs());
    // The IP family of a DNS name is unknown, so bind to the wildcards of all families of the proxy.
    if service.registry == Registry::External && *first == *UNSPECIFIED && proxy.has_ipv6() {
        if proxy.has_ipv4() {
            extra.push(UNSPECIFIED_V6.into());
        } else {
            first = UNSPECIFIED_V6.into();
        }
    }
    let is_block = first.contains('/');
    let addresses: Vec<Str> = std::iter::once(first).chain(extra).collect();
    if is_block { (wildcards, addresses) } else { (BindAddresses { addresses, ..wildcards }, Vec::new()) }
}

struct NewPort<'a> {
    egress: &'a EgressRules<'a>,
    service: &'a Service,
    port: &'a Port,
    ranges: &'a [Str],
    bind: &'a BindAddresses,
}

/// The chains of a port.
fn chains(context: &ListenerContext<'_>, new: &NewPort<'_>, mode: TrafficMode, at_wildcard: bool) -> Vec<ChainDraft> {
    let http = || {
        let routes = route_name(new, mode, at_wildcard);
        let resolved_by = context.dns_cache(new.service);
        ChainDraft::new(ChainBody::Http { routes, protocol: new.port.protocol, resolved_by })
    };
    match mode {
        TrafficMode::Http if at_wildcard && new.port.protocol != Protocol::HttpProxy => vec![detected(context, http())],
        TrafficMode::Http => vec![http()],
        TrafficMode::Tcp => bytes(context, new),
        TrafficMode::Auto => {
            let mut chains = bytes(context, new);
            chains.push(detected(context, http()));
            chains
        }
    }
}

/// Restricts a chain to connections that the HTTP inspector detected as HTTP.
fn detected(context: &ListenerContext<'_>, chain: ChainDraft) -> ChainDraft {
    ChainDraft { alpn: context.plaintext_alpn(), transport: Some(TransportProtocol::Raw), ..chain }
}

/// Name of the route table: the port, or `host:port` if the listener serves only one host.
fn route_name(new: &NewPort<'_>, mode: TrafficMode, at_wildcard: bool) -> Str {
    let number = new.port.number;
    if number == 0 {
        return new.bind.primary().into();
    }
    if mode == TrafficMode::Auto && !at_wildcard {
        return format!("{}:{number}", new.service.hostname).into();
    }
    number.to_string().into()
}

fn bytes(context: &ListenerContext<'_>, new: &NewPort<'_>) -> Vec<ChainDraft> {
    let host = &new.service.hostname;
    let for_host = |rule: &&VirtualServiceRule| rule.config.spec.hosts.iter().any(|h| host.overlaps(h));
    let routes: Vec<&VirtualServiceRule> = new.egress.rules.iter().copied().filter(for_host).collect();
    let bytes = ServicePort { service: new.service, port: new.port, ranges: new.ranges, routes: &routes };
    if new.port.protocol.is_tls() {
        return tls_routes::chains(context, &bytes, new.bind.primary());
    }
    tcp_routes::chains(context, &bytes)
}

/// Plans the listener. Connections that match no chain are treated as unknown destinations.
fn plan(
    context: &ListenerContext<'_>,
    draft: ListenerDraft,
    settings: &Hashed<HttpSettings>,
    fallthrough: &[NetworkFilter],
) -> ListenerPlan {
    let port = draft.port;
    let name: Str = names::listener(draft.bind.primary(), port).into();
    let needs_tls = draft.chains.iter().any(|c| !c.server_names.is_empty() || c.resolves_server_names());
    let needs_http = draft.chains.iter().any(|c| !c.alpn.is_empty());
    let mut chains = Vec::with_capacity(draft.chains.len());
    let mut default_chain = None;
    for chain in draft.chains {
        let everything = chain.takes_everything();
        let finished = chain_plan(context, chain, &name, port, settings);
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
    let extra = draft.bind.addresses.iter().skip(1).filter(|a| !a.is_empty());
    let opens_port = draft.bind.opens_port;
    ListenerPlan {
        address: ListenerAddress::new(draft.bind.primary(), port),
        additional_addresses: extra.map(|a| ListenerAddress::new(a, port)).collect(),
        name,
        direction: Direction::Outbound,
        binding: if opens_port { Binding::Port } else { Binding::Virtual },
        use_original_dst: false,
        transparent: false,
        exact_balance: context.view.proxy.flag("OUTBOUND_LISTENER_EXACT_BALANCE"),
        connections_per_event: context.connections_per_event().filter(|_| opens_port),
        filters: inspectors(needs_tls, needs_http),
        filters_timeout: filters_timeout(context, needs_http),
        continue_on_filters_timeout: true,
        access_log: context.no_log.clone(),
        chains,
        default_chain,
        has_conflict: draft.has_conflict,
    }
}

fn inspectors(tls: bool, http: bool) -> Vec<ListenerFilter> {
    let tls = tls.then_some(ListenerFilter::TlsInspector(InspectedPorts::All));
    let http = http.then_some(ListenerFilter::HttpInspector(InspectedPorts::All));
    tls.into_iter().chain(http).collect()
}

/// The mesh's detection timeout if a chain needs protocol detection, else no timeout.
fn filters_timeout(context: &ListenerContext<'_>, detects: bool) -> Option<Duration> {
    if detects { context.view.settings.mesh.protocol_detection_timeout } else { Some(Duration::default()) }
}

fn chain_plan(
    context: &ListenerContext<'_>,
    chain: ChainDraft,
    listener: &str,
    port: u32,
    settings: &Hashed<HttpSettings>,
) -> ChainPlan {
    let matching = chain.matching();
    let filters = match chain.body {
        ChainBody::Network(filters) => filters,
        ChainBody::Http { routes, protocol, resolved_by } => {
            let manager = HttpConnectionManager {
                stat_prefix: format!("outbound_{listener};").into(),
                routes: Routes::Rds(routes),
                http2: false,
                settings: settings.clone(),
                filters: context.http_filters_resolving(
                    ListenerSide::SidecarOutbound,
                    port,
                    protocol,
                    resolved_by.as_ref(),
                ),
            };
            let input = context.filter_input(ListenerSide::SidecarOutbound, port, ChainEnd::Http);
            network_filters::chain(&input, vec![NetworkFilter::Http(Box::new(manager))])
        }
    };
    ChainPlan {
        name: "".into(),
        matching: Some(matching),
        config: chain.config,
        tls: None,
        handshake_timeout: context.handshake_timeout,
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
