//! TCP chains to a service, from TCP routes of VirtualServices or directly to the service's cluster.

use api::Duration;
use api::istio::networking::v1alpha3::load_balancer_settings::consistent_hash_lb::HashKey;
use api::istio::networking::v1alpha3::load_balancer_settings::{ConsistentHashLb, LbPolicy};
use api::istio::networking::v1alpha3::{
    DestinationRule, L4MatchAttributes, LoadBalancerSettings, RouteDestination, TrafficPolicy,
};
use model::config::{Config, Kind};
use model::names::Str;
use model::port::Port;
use model::service::Service;
use model::snapshot::routing::VirtualServiceRule;

use super::ConfigRef;
use super::conflicts::{ChainBody, ChainDraft};
use super::context::ListenerContext;
use crate::dns_cache::DnsCache;
use crate::names;
use crate::network_filters::tcp_proxy::{TcpDestination, TcpProxy, Tunnel};
use crate::network_filters::{self, ChainEnd, NetworkFilter};
use crate::plan::route::destination;
use crate::telemetry::stat_name::StatName;

/// A service port that chains are made for.
pub(super) struct ServicePort<'a> {
    pub(super) service: &'a Service,
    pub(super) port: &'a Port,
    /// CIDR blocks of the service, if it has no single address.
    pub(super) ranges: &'a [Str],
    /// VirtualServices for the service's host.
    pub(super) routes: &'a [&'a VirtualServiceRule],
}

/// Chains from TCP routes, in order; the last one is the default for the service.
pub(super) fn chains(context: &ListenerContext<'_>, target: &ServicePort<'_>) -> Vec<ChainDraft> {
    let mut chains = Vec::new();
    let mut has_default = false;
    'routes: for rule in target.routes {
        for route in rule.config.spec.tcp.iter().filter(|r| !r.route.is_empty()) {
            let Some(filters) = routed(context, &route.route, target.port, &rule.config) else { continue };
            let matching = || route.r#match.iter().filter(|m| admits(context, m, target.port));
            let unbounded = |m: &L4MatchAttributes| m.destination_subnets.is_empty() || target.port.number == 0;
            if route.r#match.is_empty() || matching().any(unbounded) {
                let config = Some(config_ref(&rule.config));
                chains.push(ChainDraft {
                    ranges: target.ranges.to_vec(),
                    config,
                    ..ChainDraft::new(ChainBody::Network(filters))
                });
                has_default = true;
                break 'routes;
            }
            let subnets = matching().flat_map(|m| &m.destination_subnets).map(|s| Str::from(s.as_str()));
            let subnets: Vec<Str> = subnets.collect();
            if subnets.is_empty() {
                continue;
            }
            // Envoy rejects two chains with the same match.
            has_default |= sorted(&subnets) == sorted(target.ranges);
            chains.push(ChainDraft { ranges: subnets, ..ChainDraft::new(ChainBody::Network(filters)) });
        }
    }
    if !has_default {
        chains.push(to_service(context, target, Vec::new()));
    }
    chains
}

fn sorted(ranges: &[Str]) -> Vec<Str> {
    let mut ranges = ranges.to_vec();
    ranges.sort();
    ranges
}

/// The chain to the service's own cluster.
pub(super) fn to_service(
    context: &ListenerContext<'_>,
    target: &ServicePort<'_>,
    server_names: Vec<Str>,
) -> ChainDraft {
    let service = target.service;
    // A Sidecar's listener may have a port that the service lacks. A service's only port is used then.
    let port = if let [only] = &service.ports[..] { only.number } else { target.port.number };
    let cluster = names::outbound_cluster(port, "", &service.hostname);
    let rule = context.view.destination_rule(&service.hostname).map(|r| &*r.rule.spec);
    let mut proxy = TcpProxy::to_cluster(&cluster, context.outbound_tcp_log.clone());
    if let Some(name) = stat_prefix(context, service, "", port, "") {
        proxy.stat_prefix = name;
    }
    apply_rule(&mut proxy, rule, "", context.idle_timeout);
    let resolving = context.dns_cache(service);
    let filters = stack(context, target.port, proxy, resolving);
    ChainDraft { server_names, ranges: target.ranges.to_vec(), ..ChainDraft::new(ChainBody::Network(filters)) }
}

/// Filters that forward to one cluster of a service, selected by SNI (AUTO_PASSTHROUGH).
pub(super) fn to_cluster(
    context: &ListenerContext<'_>,
    service: &Service,
    port: &Port,
    subset: &str,
    cluster: &str,
) -> Vec<NetworkFilter> {
    let mut proxy = TcpProxy::to_cluster(cluster, context.outbound_tcp_log.clone());
    if let Some(name) = stat_prefix(context, service, subset, port.number, &port.name) {
        proxy.stat_prefix = name;
    }
    let rule = context.view.destination_rule(&service.hostname).map(|r| &*r.rule.spec);
    apply_rule(&mut proxy, rule, subset, context.idle_timeout);
    proxy.tunnel = None;
    let last = network_filters::for_protocol(context.knobs(), port.protocol, proxy);
    let input = context.filter_input(context.outbound_side, port.number.into(), ChainEnd::Sealed);
    network_filters::chain(&input, last)
}

/// Filters that forward to a route's destinations; `None` if no destination has a weight.
pub(super) fn routed(
    context: &ListenerContext<'_>,
    routes: &[RouteDestination],
    port: &Port,
    config: &Config<api::istio::networking::v1alpha3::VirtualService>,
) -> Option<Vec<NetworkFilter>> {
    let first = routes.first()?.destination.as_ref()?;
    let rule = context.view.service(&first.host).and_then(|s| context.view.destination_rule(&s.hostname));
    let rule = rule.map(|r| &*r.rule.spec);
    if routes.len() > 1 {
        let clusters: Vec<(Str, u32)> = routes.iter().filter_map(|r| weighted(context, r, port)).collect();
        let (first, _) = clusters.first()?;
        let mut proxy = TcpProxy::to_cluster(first, context.outbound_tcp_log.clone());
        proxy.stat_prefix = format!("{}.{}", config.meta.name, config.meta.namespace).into();
        proxy.to = TcpDestination::Weighted(clusters);
        apply_rule(&mut proxy, rule, "", context.idle_timeout);
        return Some(stack(context, port, proxy, None));
    }
    let service = context.view.service(&first.host);
    let cluster = destination::cluster_name(first, service.map(|s| &**s), port.number);
    let mut proxy = TcpProxy::to_cluster(&cluster, context.outbound_tcp_log.clone());
    let named = service.and_then(|s| stat_prefix(context, s, &first.subset, port.number, &port.name));
    proxy.stat_prefix = named.unwrap_or(proxy.stat_prefix);
    apply_rule(&mut proxy, rule, &first.subset, context.idle_timeout);
    Some(stack(context, port, proxy, None))
}

fn weighted(context: &ListenerContext<'_>, route: &RouteDestination, port: &Port) -> Option<(Str, u32)> {
    let destination = route.destination.as_ref()?;
    let weight = u32::try_from(route.weight).ok().filter(|w| *w > 0)?;
    let service = context.view.service(&destination.host);
    Some((destination::cluster_name(destination, service.map(|s| &**s), port.number), weight))
}

/// The stat prefix by the mesh's pattern, if it has one.
fn stat_prefix(
    context: &ListenerContext<'_>,
    service: &Service,
    subset: &str,
    port: u16,
    port_name: &str,
) -> Option<Str> {
    let pattern = &context.view.settings.mesh.outbound_cluster_stat_name;
    (!pattern.is_empty()).then(|| StatName::outbound(service, subset, port, port_name).fill(pattern).into())
}

/// All filters of a TCP chain. The SNI forward proxy, if any, is right before the TCP proxy.
fn stack(
    context: &ListenerContext<'_>,
    port: &Port,
    proxy: TcpProxy,
    resolving: Option<DnsCache>,
) -> Vec<NetworkFilter> {
    let resolver = |cache| NetworkFilter::SniForwardProxy { cache, port: port.number.into() };
    let mut last: Vec<NetworkFilter> = resolving.map(resolver).into_iter().collect();
    last.extend(network_filters::for_protocol(context.knobs(), port.protocol, proxy));
    let input = context.filter_input(context.outbound_side, port.number.into(), ChainEnd::Bytes);
    network_filters::chain(&input, last)
}

/// Applies a DestinationRule's TCP settings for a subset, or for the host if `subset` is empty.
fn apply_rule(proxy: &mut TcpProxy, rule: Option<&DestinationRule>, subset: &str, idle: Option<Duration>) {
    proxy.idle_timeout = idle;
    let Some(rule) = rule else { return };
    let policy = rule.traffic_policy.as_ref();
    let tcp = policy.and_then(|p| p.connection_pool.as_ref()).and_then(|p| p.tcp.as_ref());
    proxy.idle_timeout = tcp.and_then(|t| t.idle_timeout).or(idle);
    proxy.max_connection_duration = tcp.and_then(|t| t.max_connection_duration);
    let of_subset = rule.subsets.iter().find(|s| s.name == subset).and_then(|s| s.traffic_policy.as_ref());
    let balancer = |policy: Option<&TrafficPolicy>| policy.and_then(|p| p.load_balancer.clone());
    proxy.hash_source_ip = balancer(of_subset).or_else(|| balancer(policy)).is_some_and(|lb| hashes_source_ip(&lb));
    let tunnel = if subset.is_empty() { policy } else { of_subset }.and_then(|p| p.tunnel.as_ref());
    proxy.tunnel = tunnel.map(|t| {
        let (host, port) = (&t.target_host, t.target_port);
        let host = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        Tunnel { host: host.into(), post: t.protocol == "POST" }
    });
}

fn hashes_source_ip(balancer: &LoadBalancerSettings) -> bool {
    let hash = |hash: &ConsistentHashLb| matches!(hash.hash_key, Some(HashKey::UseSourceIp(true)));
    matches!(&balancer.lb_policy, Some(LbPolicy::ConsistentHash(h)) if hash(h))
}

fn admits(context: &ListenerContext<'_>, matching: &L4MatchAttributes, port: &Port) -> bool {
    let proxy = &context.view.proxy;
    (matching.gateways.is_empty() || matching.gateways.iter().any(|g| g == names::MESH_GATEWAY))
        && proxy.labels.is_selected_by(&matching.source_labels)
        && (matching.port == 0 || matching.port == u32::from(port.number))
        && (matching.source_namespace.is_empty() || proxy.namespace == *matching.source_namespace)
}

pub(super) fn config_ref(config: &Config<api::istio::networking::v1alpha3::VirtualService>) -> ConfigRef {
    let meta = &config.meta;
    ConfigRef { kind: Kind::VirtualService, namespace: meta.namespace.clone(), name: meta.name.clone() }
}
