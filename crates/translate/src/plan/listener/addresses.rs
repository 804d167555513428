//! Addresses that listeners bind to: wildcard and loopback addresses, a service's address for one proxy, and ports
//! that are already in use.

use std::net::IpAddr;

use model::names::Str;
use model::port::Protocol;
use model::proxy::ProxyKind;
use model::service::{Service, UNSPECIFIED};
use model::settings::{Knobs, Settings};
use scope::ReadProxy;
use scope::addresses::keep_dialled;

/// The IPv6 wildcard address.
pub(super) const UNSPECIFIED_V6: &str = "::";

/// Wildcard addresses of the proxy's IP families, IPv4 first.
pub(super) fn wildcards(proxy: &ReadProxy) -> Vec<Str> {
    by_family(proxy, UNSPECIFIED, UNSPECIFIED_V6)
}

/// Loopback addresses, IPv4 first.
pub(super) fn localhosts(proxy: &ReadProxy) -> Vec<Str> {
    by_family(proxy, "127.0.0.1", "::1")
}

fn by_family(proxy: &ReadProxy, v4: &str, v6: &str) -> Vec<Str> {
    match (proxy.has_ipv4(), proxy.has_ipv6()) {
        (true, true) => vec![v4.into(), v6.into()],
        (false, true) => vec![v6.into()],
        _ => vec![v4.into()],
    }
}

/// Default bind addresses of a Sidecar's ingress listeners: the proxy's first routable address.
pub(super) fn ingress(proxy: &ReadProxy) -> Vec<Str> {
    let global = proxy.ips.iter().find(|ip| is_global_unicast(ip));
    global.map_or_else(|| wildcards(proxy), |ip| vec![ip.to_string().into()])
}

/// As Go's `net.IP.IsGlobalUnicast`: includes private addresses.
fn is_global_unicast(ip: &IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast() && !link_local
}

/// The address at which this proxy calls a service.
pub(super) fn of_service(service: &Service, proxy: &ReadProxy, knobs: &Knobs) -> Str {
    if let Some(first) = in_cluster(service, proxy).find(|a| of_family(a, proxy)) {
        return first.clone();
    }
    if *service.address == *UNSPECIFIED && uses_allocated(proxy, knobs) {
        let allocated = [(proxy.has_ipv4(), &service.auto_ipv4), (proxy.has_ipv6(), &service.auto_ipv6)];
        let found = allocated.into_iter().filter(|(wanted, _)| *wanted).find_map(|(_, address)| address.clone());
        return found.unwrap_or_else(|| service.address.clone());
    }
    service.address.clone()
}

/// Addresses of the service other than the one `of_service` returns.
pub(super) fn extra_of_service(service: &Service, proxy: &ReadProxy, knobs: &Knobs) -> Vec<Str> {
    let mut all: Vec<&Str> = in_cluster(service, proxy).collect();
    if all.is_empty() && uses_allocated(proxy, knobs) {
        all.extend(service.auto_ipv4.iter().chain(&service.auto_ipv6));
    }
    keep_dialled(&mut all, proxy, knobs);
    all.into_iter().skip(1).cloned().collect()
}

fn in_cluster<'a>(service: &'a Service, proxy: &ReadProxy) -> impl Iterator<Item = &'a Str> {
    let own = service.cluster_addresses.iter().find(|(cluster, _)| *cluster == *proxy.cluster);
    let own = own.filter(|_| !proxy.cluster.is_empty());
    own.into_iter().flat_map(|(_, addresses)| addresses)
}

/// Whether the proxy has this address's IP family. False for names.
fn of_family(address: &str, proxy: &ReadProxy) -> bool {
    let ip = address.split('/').next().unwrap_or_default();
    match ip.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => proxy.has_ipv4(),
        Ok(IpAddr::V6(_)) => proxy.has_ipv6(),
        Err(_) => false,
    }
}

/// Whether the agent's DNS proxy resolves hosts to auto-allocated addresses for this proxy's workload.
fn uses_allocated(proxy: &ReadProxy, knobs: &Knobs) -> bool {
    let allocates = knobs.ip_auto_allocate || proxy.flag("DNS_AUTO_ALLOCATE");
    allocates && (proxy.flag("DNS_CAPTURE") || proxy.kind == ProxyKind::Waypoint)
}

/// A socket that a listener would use.
pub(super) struct ListenSocket<'a> {
    pub(super) opens_port: bool,
    /// Empty means the service's address; for HTTP that is the wildcard.
    pub(super) bind: &'a str,
    pub(super) port: u32,
    pub(super) protocol: Protocol,
}

/// Whether a listener can use the socket: unprivileged proxies cannot open low ports, and the proxy's own ports are
/// reserved.
pub(super) fn is_free(
    proxy: &ReadProxy,
    captured_by: Option<&Settings>,
    socket: &ListenSocket<'_>,
    wildcard: &str,
) -> bool {
    if socket.opens_port && (1..1024).contains(&socket.port) && proxy.flag("UNPRIVILEGED_POD") {
        return false;
    }
    let at_wildcard = if socket.bind.is_empty() { socket.protocol.is_http() } else { socket.bind == wildcard };
    !at_wildcard || !is_reserved(proxy, captured_by, socket.port)
}

fn is_reserved(proxy: &ReadProxy, captured_by: Option<&Settings>, port: u32) -> bool {
    let own =
        ["ENVOY_STATUS_PORT", "ENVOY_PROMETHEUS_PORT", "ENVOY_SECURE_METRICS_PORT", "ENVOY_SECURE_MERGED_METRICS_PORT"];
    let of_proxy = own.iter().any(|key| proxy.meta(key).and_then(|v| v.parse().ok()) == Some(port) && port != 0);
    let capturing = |settings: &Settings| {
        let ports = [settings.mesh.proxy_listen_port, settings.mesh.proxy_inbound_listen_port];
        ports.iter().any(|p| u32::try_from(*p) == Ok(port))
    };
    of_proxy || captured_by.is_some_and(capturing)
}
