//! Inbound listeners: `virtualInbound`, which captures all ports and has filter chains for each, and one listener per
//! port that a Sidecar opens itself.

use std::collections::BTreeMap;

use api::istio::networking::v1alpha3::{CaptureMode, IstioIngressListener, ServerTlsSettings};
use model::config::{Config, Kind};
use model::hashed::Hashed;
use model::names::Str;
use model::peer_policies::{MutualTls, PeerPolicies};
use model::port::{Port, Protocol};
use model::proxy::{Interception, NO_CERTIFICATES};
use scope::View;
use scope::inbound::ServiceTarget;

use super::conflicts::TrafficMode;
use super::context::ListenerContext;
use super::mtls::{AcceptedConnection, Alpn};
use super::server_tls::{self, ServerTls};
use super::{
    Binding, ChainMatch, ChainPlan, ConfigRef, Direction, ListenerAddress, ListenerPlan, addresses, inspectors, mtls,
};
use crate::listener_side::ListenerSide;
use crate::names;
use crate::network_filters::http_connection_manager::{HttpConnectionManager, InboundRoute, Routes};
use crate::network_filters::tcp_proxy::TcpProxy;
use crate::network_filters::{self, ChainEnd, NetworkFilter};
use crate::telemetry::stat_name::{StatName, kubernetes_name};

/// A port of the workload.
struct InboundPort {
    port: Port,
    target_port: u32,
    cluster: Str,
    /// Bind addresses; for captured ports they are only used in names.
    bind: Vec<Str>,
    opens_port: bool,
    /// The host in telemetry.
    host: Str,
    kubernetes: Option<(Str, Str)>,
    /// TLS settings of the Sidecar's ingress listener.
    tls: Option<Hashed<ServerTlsSettings>>,
    config: Option<ConfigRef>,
    /// Represents all ports without their own chains.
    passthrough: bool,
}

/// TLS contexts of the mTLS chains.
struct MtlsContexts {
    http: Hashed<ServerTls>,
    bytes: Hashed<ServerTls>,
}

/// mTLS modes of the workload: the default, and per-port overrides.
struct MtlsModes {
    any: MutualTls,
    ports: BTreeMap<u32, MutualTls>,
    /// Whether the proxy has no source of certificates.
    no_certificates: bool,
}

impl MtlsModes {
    fn of(view: &View) -> MtlsModes {
        let root = view.settings.root_namespace();
        let policies = PeerPolicies::new(&view.policy, &root);
        let (namespace, labels) = (&view.proxy.namespace, &view.proxy.labels);
        MtlsModes {
            // Port 0 has no override, so this is the default.
            any: policies.of_workload(namespace, labels, 0),
            ports: policies.ports_of_workload(namespace, labels),
            no_certificates: view.proxy.flag(NO_CERTIFICATES),
        }
    }

    /// Whether connections cannot be accepted as the mode demands. Envoy would wait for a certificate without end, and serve
    /// a previous listener in plain text meanwhile.
    fn is_closed(&self, mode: MutualTls) -> bool {
        self.no_certificates && mode == MutualTls::Strict
    }

    /// Whether the listener for captured connections is closed.
    fn is_capture_closed(&self) -> bool {
        std::iter::once(&self.any).chain(self.ports.values()).any(|mode| self.is_closed(*mode))
    }

    /// A mode, and the one by which connections are accepted: without certificates a permissive port accepts plain text only.
    fn accepted(&self, mode: MutualTls) -> (MutualTls, MutualTls) {
        let is_plain = self.no_certificates && mode == MutualTls::Permissive;
        (mode, if is_plain { MutualTls::Disable } else { mode })
    }

    fn of_port(&self, port: u32) -> MutualTls {
        self.ports.get(&port).copied().unwrap_or(self.any)
    }
}

/// The inbound listeners.
pub(super) fn listeners(context: &ListenerContext<'_>) -> Vec<ListenerPlan> {
    let modes = MtlsModes::of(context.view);
    let contexts = MtlsContexts {
        http: Hashed::new(server_tls::mesh_mtls(context.view, false)),
        bytes: Hashed::new(server_tls::mesh_mtls(context.view, true)),
    };
    let mut captured = captured_elsewhere(context, &modes, &contexts);
    let mut own = Vec::new();
    for served in served_ports(context) {
        let mode = modes.of_port(served.target_port);
        if served.opens_port && modes.is_closed(mode) {
            continue;
        }
        let chains = chains(context, &served, modes.accepted(mode), &contexts);
        if served.opens_port {
            let name = names::listener(&served.bind[0], served.target_port);
            own.push(listener(context, name.into(), &served.bind, served.target_port, Binding::Port, chains));
        } else {
            captured.extend(chains);
        }
    }
    let mut listeners = Vec::with_capacity(own.len() + 1);
    if context.view.proxy.interception != Interception::None && !modes.is_capture_closed() {
        let name = names::VIRTUAL_INBOUND.into();
        listeners.push(listener(context, name, &context.wildcards, capture_port(context), Binding::Virtual, captured));
    }
    listeners.extend(own);
    listeners
}

fn capture_port(context: &ListenerContext<'_>) -> u32 {
    u32::try_from(context.view.settings.mesh.proxy_inbound_listen_port).unwrap_or_default()
}

fn listener(
    context: &ListenerContext<'_>,
    name: Str,
    bind: &[Str],
    port: u32,
    binding: Binding,
    chains: Vec<ChainPlan>,
) -> ListenerPlan {
    let proxy = &context.view.proxy;
    let further: &[Str] = if context.knobs().dual_stack { bind.get(1..).unwrap_or_default() } else { &[] };
    ListenerPlan {
        name,
        address: ListenerAddress::new(bind.first().map_or("", |a| a), port),
        additional_addresses: further.iter().map(|a| ListenerAddress::new(a, port)).collect(),
        direction: Direction::Inbound,
        // virtualInbound opens its port too; `Virtual` only selects its listener filters.
        binding: Binding::Port,
        use_original_dst: false,
        transparent: binding == Binding::Virtual && proxy.interception == Interception::Tproxy,
        exact_balance: proxy.flag("INBOUND_LISTENER_EXACT_BALANCE"),
        connections_per_event: context.connections_per_event(),
        filters: inspectors::listener_filters(proxy, &chains, binding),
        filters_timeout: context.view.settings.mesh.protocol_detection_timeout,
        continue_on_filters_timeout: true,
        access_log: context.listener_log(ListenerSide::SidecarInbound),
        chains,
        default_chain: None,
        has_conflict: false,
    }
}

/// Ports by number: of the Sidecar's ingress listeners, or else of the proxy's services.
fn served_ports(context: &ListenerContext<'_>) -> Vec<InboundPort> {
    let view = context.view;
    let sidecar = view.sidecar.as_ref().filter(|s| !s.spec.ingress.is_empty());
    let mut served = BTreeMap::new();
    match sidecar {
        // Without interception the workload itself uses these ports.
        None if view.proxy.interception == Interception::None => {}
        None => of_services(context, &mut served, &[]),
        Some(sidecar) => {
            if context.knobs().auto_inbound_ports {
                of_services(context, &mut served, &sidecar.spec.ingress);
            }
            for ingress in &sidecar.spec.ingress {
                if let Some(port) = of_ingress(context, sidecar, ingress) {
                    served.entry(port.target_port).or_insert(port);
                }
            }
        }
    }
    served.into_values().collect()
}

/// Ports of the proxy's services. If two services use one port, the older one wins.
fn of_services(
    context: &ListenerContext<'_>,
    served: &mut BTreeMap<u32, InboundPort>,
    ingress: &[IstioIngressListener],
) {
    let opens_port = context.view.proxy.interception == Interception::None;
    let mut targets: Vec<&ServiceTarget> = context.view.inbound.iter().collect();
    targets.sort_by_key(|t| (t.service.created, t.service.hostname.clone()));
    for target in targets {
        let of_sidecar = ingress.iter().any(|i| i.port.as_ref().is_some_and(|p| p.number == target.target_port));
        let socket = addresses::ListenSocket {
            opens_port,
            bind: context.wildcard(),
            port: target.target_port,
            protocol: target.port.protocol,
        };
        let free = addresses::is_free(&context.view.proxy, Some(&context.view.settings), &socket, context.wildcard());
        // 0 is a named target port that could not be resolved.
        if of_sidecar || !free || target.target_port == 0 {
            continue;
        }
        let kubernetes = kubernetes_name(&target.service).map(|(name, ns)| (name.into(), ns.into()));
        served.entry(target.target_port).or_insert_with(|| InboundPort {
            port: target.port.clone(),
            target_port: target.target_port,
            cluster: names::inbound_cluster(target.target_port).into(),
            bind: context.wildcards.clone(),
            opens_port,
            host: target.service.hostname.text().clone(),
            kubernetes,
            tls: None,
            config: None,
            passthrough: false,
        });
    }
}

fn of_ingress(
    context: &ListenerContext<'_>,
    sidecar: &Config<api::istio::networking::v1alpha3::Sidecar>,
    ingress: &IstioIngressListener,
) -> Option<InboundPort> {
    let proxy = &context.view.proxy;
    let port = ingress.port.as_ref()?;
    let protocol = Protocol::parse(&port.protocol);
    let opens_port = match ingress.capture_mode() {
        CaptureMode::Default => proxy.interception == Interception::None,
        explicit => explicit == CaptureMode::None,
    };
    let socket = addresses::ListenSocket { opens_port, bind: &ingress.bind, port: port.number, protocol };
    if !addresses::is_free(proxy, None, &socket, context.wildcard()) {
        return None;
    }
    let tls = ingress.tls.clone().filter(|_| context.knobs().tls_on_sidecar_ingress).map(Hashed::from_message);
    let meta = &sidecar.meta;
    Some(InboundPort {
        port: Port {
            name: port.name.as_str().into(),
            number: u16::try_from(port.number).unwrap_or_default(),
            protocol: if tls.is_some() { after_tls(protocol) } else { protocol },
        },
        target_port: port.number,
        cluster: names::inbound_cluster(port.number).into(),
        bind: if ingress.bind.is_empty() { addresses::ingress(proxy) } else { vec![ingress.bind.as_str().into()] },
        opens_port,
        host: format!("{}.{}", meta.name, meta.namespace).into(),
        kubernetes: None,
        tls,
        config: Some(ConfigRef { kind: Kind::Sidecar, namespace: meta.namespace.clone(), name: meta.name.clone() }),
        passthrough: false,
    })
}

/// The protocol inside TLS.
fn after_tls(protocol: Protocol) -> Protocol {
    match protocol {
        Protocol::Https => Protocol::Http,
        Protocol::Tls => Protocol::Tcp,
        other => other,
    }
}

/// Chains for the capture port itself and for ports of no service or Sidecar.
fn captured_elsewhere(context: &ListenerContext<'_>, modes: &MtlsModes, contexts: &MtlsContexts) -> Vec<ChainPlan> {
    let mut all = vec![black_hole(context)];
    let undeclared = modes.ports.keys().copied().filter(|port| !is_declared(context, *port));
    for port in std::iter::once(0).chain(undeclared) {
        all.extend(chains(context, &passthrough(port), modes.accepted(modes.of_port(port)), contexts));
    }
    all
}

fn is_declared(context: &ListenerContext<'_>, port: u32) -> bool {
    let ingress = context.view.sidecar.as_ref().map_or(&[][..], |s| &s.spec.ingress);
    if ingress.is_empty() {
        return context.view.inbound.iter().any(|t| t.target_port == port);
    }
    ingress.iter().any(|i| i.port.as_ref().is_some_and(|p| p.number == port))
}

fn passthrough(target_port: u32) -> InboundPort {
    InboundPort {
        port: Port { name: names::VIRTUAL_INBOUND.into(), number: 0, protocol: Protocol::Unknown },
        target_port,
        cluster: names::INBOUND_PASSTHROUGH_CLUSTER.into(),
        bind: Vec::new(),
        opens_port: false,
        host: "".into(),
        kubernetes: None,
        tls: None,
        config: None,
        passthrough: true,
    }
}

/// Drops connections to the capture port itself, which would loop forever.
fn black_hole(context: &ListenerContext<'_>) -> ChainPlan {
    let proxy = TcpProxy::to_cluster(names::BLACK_HOLE_CLUSTER, context.no_log.clone());
    let input = context.filter_input(ListenerSide::SidecarInbound, 0, ChainEnd::Unknown);
    ChainPlan {
        name: names::VIRTUAL_INBOUND_BLACKHOLE_CHAIN.into(),
        matching: Some(ChainMatch { port: Some(capture_port(context)), ..ChainMatch::default() }),
        config: None,
        tls: None,
        handshake_timeout: None,
        filters: network_filters::chain(&input, vec![NetworkFilter::TcpProxy(proxy)]),
    }
}

/// The chains of one port, one per kind of connection that it accepts.
fn chains(
    context: &ListenerContext<'_>,
    served: &InboundPort,
    (mtls_mode, accepted_mode): (MutualTls, MutualTls),
    contexts: &MtlsContexts,
) -> Vec<ChainPlan> {
    // Upstream treats a UDP port as TCP here.
    let mode = TrafficMode::of(served.port.protocol).unwrap_or(TrafficMode::Tcp);
    if let Some(tls) = served.tls.as_deref().filter(|_| mtls_mode == MutualTls::Disable) {
        let tls_context = Hashed::new(server_tls::terminated(context.view, tls));
        let accepted = mtls::terminated(mode);
        return accepted.iter().map(|a| chain(context, served, a, Some(tls_context.clone()))).collect();
    }
    let context_of = |accepted: &AcceptedConnection| if accepted.http { &contexts.http } else { &contexts.bytes };
    let accepted = mtls::accepted(accepted_mode, mode);
    accepted.iter().map(|a| chain(context, served, a, a.terminates.then(|| context_of(a).clone()))).collect()
}

fn chain(
    context: &ListenerContext<'_>,
    served: &InboundPort,
    accepted: &AcceptedConnection,
    tls: Option<Hashed<ServerTls>>,
) -> ChainPlan {
    let alpn = match accepted.alpn {
        Alpn::PlainHttp => context.plaintext_alpn(),
        other => other.values().iter().map(|v| (*v).into()).collect(),
    };
    ChainPlan {
        name: chain_name(served, accepted.http),
        matching: Some(ChainMatch {
            port: Some(served.target_port).filter(|port| *port > 0),
            transport: Some(accepted.transport),
            alpn,
            ..ChainMatch::default()
        }),
        config: served.config.clone(),
        tls,
        handshake_timeout: None,
        filters: if accepted.http { http(context, served) } else { bytes(context, served) },
    }
}

fn chain_name(served: &InboundPort, http: bool) -> Str {
    match (served.passthrough, http) {
        (true, true) => names::VIRTUAL_INBOUND_CATCH_ALL_HTTP_CHAIN.into(),
        (true, false) => names::VIRTUAL_INBOUND.into(),
        (false, _) => names::listener(served.bind.first().map_or("", |a| a), served.target_port).into(),
    }
}

fn http(context: &ListenerContext<'_>, served: &InboundPort) -> Vec<NetworkFilter> {
    let stat_prefix = if served.passthrough {
        format!("{};", served.cluster)
    } else {
        format!("inbound_{};", chain_name(served, true))
    };
    let protocol = served.port.protocol;
    let manager = HttpConnectionManager {
        stat_prefix: stat_prefix.into(),
        routes: Routes::Inbound(InboundRoute {
            cluster: served.cluster.clone(),
            host: served.host.clone(),
            port: served.port.number,
            retry: !matches!(protocol, Protocol::Grpc | Protocol::GrpcWeb),
        }),
        http2: protocol.is_http2(),
        settings: context.inbound_http.clone(),
        filters: context.http_filters(ListenerSide::SidecarInbound, served.target_port, protocol),
    };
    let input = context.filter_input(ListenerSide::SidecarInbound, served.target_port, ChainEnd::Http);
    network_filters::chain(&input, vec![NetworkFilter::Http(Box::new(manager))])
}

fn bytes(context: &ListenerContext<'_>, served: &InboundPort) -> Vec<NetworkFilter> {
    let mut proxy = TcpProxy::to_cluster(&served.cluster, context.inbound_tcp_log.clone());
    proxy.idle_timeout = context.idle_timeout;
    let pattern = &context.view.settings.mesh.inbound_cluster_stat_name;
    if !pattern.is_empty() {
        let name = StatName {
            host: &served.host,
            kubernetes: served.kubernetes.as_ref().map(|(name, ns)| (&**name, &**ns)),
            subset: "",
            port: served.port.number,
            port_name: &served.port.name,
            target_port: None,
        };
        proxy.stat_prefix = name.fill(pattern).into();
    }
    let last = network_filters::for_protocol(context.knobs(), served.port.protocol, proxy);
    let input = context.filter_input(ListenerSide::SidecarInbound, served.port.number.into(), ChainEnd::Bytes);
    network_filters::chain(&input, last)
}
