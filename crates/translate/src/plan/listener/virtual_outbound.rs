//! `virtualOutbound`: captures the workload's outbound connections and handles those that match no other listener.

use model::port::Protocol;
use model::proxy::Interception;

use super::context::ListenerContext;
use super::{Binding, ChainMatch, ChainPlan, Direction, InspectedPorts, ListenerAddress, ListenerFilter, ListenerPlan};
use crate::listener_side::ListenerSide;
use crate::names;
use crate::network_filters::http_connection_manager::{AnyNameRoute, HttpConnectionManager, Routes};
use crate::network_filters::tcp_proxy::TcpProxy;
use crate::network_filters::{self, ChainEnd, NetworkFilter};
use crate::plan::route::destination;

/// The listener; `None` without traffic interception.
pub(super) fn listener(context: &ListenerContext<'_>) -> Option<ListenerPlan> {
    let proxy = &context.view.proxy;
    if proxy.interception == Interception::None {
        return None;
    }
    let port = u32::try_from(context.view.settings.mesh.proxy_listen_port).unwrap_or_default();
    let further: &[_] = if context.knobs().dual_stack { &context.wildcards[1..] } else { &[] };
    let ipv4 = || ListenerAddress::new(model::service::UNSPECIFIED, port);
    let for_ipv6_only = context.knobs().ipv4_outbound_on_ipv6 && !proxy.has_ipv4();
    let mut additional: Vec<ListenerAddress> = further.iter().map(|a| ListenerAddress::new(a, port)).collect();
    additional.extend(for_ipv6_only.then(ipv4));
    let resolves = context.view.resolves_any_outbound();
    let mut chains = vec![black_hole(context, port)];
    chains.extend(resolves.then(|| any_name(context)));
    chains.push(catch_all(context));
    Some(ListenerPlan {
        name: names::VIRTUAL_OUTBOUND.into(),
        address: ListenerAddress::new(context.wildcard(), port),
        additional_addresses: additional,
        direction: Direction::Outbound,
        binding: Binding::Port,
        use_original_dst: true,
        transparent: proxy.interception == Interception::Tproxy,
        exact_balance: false,
        connections_per_event: context.connections_per_event(),
        filters: resolves.then_some(ListenerFilter::HttpInspector(InspectedPorts::All)).into_iter().collect(),
        filters_timeout: None,
        continue_on_filters_timeout: false,
        access_log: context.listener_log(ListenerSide::SidecarOutbound),
        chains,
        default_chain: None,
        has_conflict: false,
    })
}

/// Drops connections to the capture port itself, which would loop forever.
fn black_hole(context: &ListenerContext<'_>, port: u32) -> ChainPlan {
    let proxy = TcpProxy::to_cluster(names::BLACK_HOLE_CLUSTER, context.no_log.clone());
    ChainPlan {
        name: names::VIRTUAL_OUTBOUND_BLACKHOLE_CHAIN.into(),
        matching: Some(ChainMatch { port: Some(port), ..ChainMatch::default() }),
        config: None,
        tls: None,
        handshake_timeout: None,
        filters: stack(context, proxy),
    }
}

/// HTTP to hosts of no service: forwarded to the addresses that the host resolves to.
fn any_name(context: &ListenerContext<'_>) -> ChainPlan {
    let headers = context.view.proxy_config.proxy_headers.clone().unwrap_or_default();
    let manager = HttpConnectionManager {
        stat_prefix: "outbound_virtualOutbound_allow_any_dynamic_dns;".into(),
        routes: Routes::AnyName(AnyNameRoute {
            attempt_count: !headers.attempt_count.and_then(|a| a.disabled).unwrap_or(false),
            append_forwarded_host: headers.x_forwarded_host.and_then(|h| h.enabled).unwrap_or(false),
        }),
        http2: false,
        settings: context.outbound_http.clone(),
        filters: context.http_filters(ListenerSide::SidecarOutbound, 0, Protocol::Http),
    };
    ChainPlan {
        name: format!("{}-http", names::VIRTUAL_OUTBOUND_CATCH_ALL_CHAIN).into(),
        matching: Some(ChainMatch { alpn: context.plaintext_alpn(), ..ChainMatch::default() }),
        config: None,
        tls: None,
        handshake_timeout: None,
        filters: vec![NetworkFilter::Http(Box::new(manager))],
    }
}

fn catch_all(context: &ListenerContext<'_>) -> ChainPlan {
    ChainPlan {
        name: names::VIRTUAL_OUTBOUND_CATCH_ALL_CHAIN.into(),
        matching: None,
        config: None,
        tls: None,
        handshake_timeout: None,
        filters: catch_all_filters(context),
    }
}

/// Filters for unknown destinations: pass through, to the Sidecar's egress proxy, or drop.
pub(super) fn catch_all_filters(context: &ListenerContext<'_>) -> Vec<NetworkFilter> {
    let view = context.view;
    let cluster = match &view.outbound_policy.egress_proxy {
        _ if !view.allows_any_outbound() && !view.resolves_any_outbound() => names::BLACK_HOLE_CLUSTER.into(),
        Some(destination) => destination::cluster_name(destination, None, 0),
        None => names::PASSTHROUGH_CLUSTER.into(),
    };
    let proxy = TcpProxy::to_cluster(&cluster, context.outbound_tcp_log.clone());
    stack(context, TcpProxy { idle_timeout: context.idle_timeout, ..proxy })
}

fn stack(context: &ListenerContext<'_>, proxy: TcpProxy) -> Vec<NetworkFilter> {
    // Policies do not apply to unknown destinations; metrics do.
    let input = context.filter_input(ListenerSide::SidecarOutbound, 0, ChainEnd::Unknown);
    network_filters::chain(&input, vec![NetworkFilter::TcpProxy(proxy)])
}
