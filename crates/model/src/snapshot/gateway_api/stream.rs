//! Converts rules of TCPRoutes and TLSRoutes to routes of a VirtualService.

use api::istio::networking::v1alpha3::{
    Destination, L4MatchAttributes, PortSelector, RouteDestination, TcpRoute, TlsMatchAttributes, TlsRoute,
};

use super::backends::{self, Referrer};
use super::conditions::ConditionFault;
use super::conversion::RouteConversion;
use crate::config::gateway_api::{StreamRoute, StreamRule};
use crate::names::Hostname;

/// The rules of a TCPRoute.
pub(super) fn tcp_rules(referrer: Referrer<'_>, rules: &[StreamRule]) -> RouteConversion<TcpRoute> {
    RouteConversion::collect(rules.iter().map(|rule| {
        let (route, fault) = destinations(referrer, rule)?;
        Ok((TcpRoute { route, ..TcpRoute::default() }, fault))
    }))
}

/// The rules of a TLSRoute. A rule without a weighted backend gets no match, so no connection reaches it.
pub(super) fn tls_rules(referrer: Referrer<'_>, written: &StreamRoute) -> RouteConversion<TlsRoute> {
    RouteConversion::collect(written.rules.iter().map(|rule| {
        let (route, fault) = destinations(referrer, rule)?;
        let matching = TlsMatchAttributes { sni_hosts: or_every(&written.hostnames), ..TlsMatchAttributes::default() };
        let matching = (!backends::is_empty(&rule.backend_refs)).then_some(matching);
        Ok((TlsRoute { r#match: matching.into_iter().collect(), route }, fault))
    }))
}

fn destinations(
    referrer: Referrer<'_>,
    rule: &StreamRule,
) -> Result<(Vec<RouteDestination>, Option<ConditionFault>), ConditionFault> {
    if backends::is_empty(&rule.backend_refs) {
        return Ok((vec![nowhere()], None));
    }
    let mut routes = Vec::new();
    let mut newest = None;
    for (backend, weight) in backends::shares(&rule.backend_refs) {
        let (destination, fault) = referrer.destination(backend)?;
        newest = fault.or(newest);
        routes.push(RouteDestination { destination: Some(destination), weight });
    }
    Ok((routes, newest))
}

/// A cluster that does not exist, so that Envoy closes the connection.
fn nowhere() -> RouteDestination {
    let destination = Destination {
        host: "internal.cluster.local".to_owned(),
        subset: "zero-weight".to_owned(),
        port: Some(PortSelector { number: 65535 }),
    };
    RouteDestination { destination: Some(destination), weight: 0 }
}

/// The host names of a route, or `*`.
pub(super) fn or_every(hostnames: &[String]) -> Vec<String> {
    if hostnames.is_empty() { vec!["*".to_owned()] } else { hostnames.to_vec() }
}

/// The routes for one port of a Service.
pub(super) fn tcp_on_port(routes: &[TcpRoute], port: u16) -> Vec<TcpRoute> {
    let on_port = |route: &TcpRoute| {
        let matching = L4MatchAttributes { port: u32::from(port), ..L4MatchAttributes::default() };
        TcpRoute { r#match: vec![matching], route: route.route.clone() }
    };
    routes.iter().map(on_port).collect()
}

/// The routes for a Service; its own hosts are used if the route has none.
pub(super) fn tls_in_mesh(routes: &[TlsRoute], port: Option<u16>, hosts: &[String]) -> Vec<TlsRoute> {
    let mut routes = routes.to_vec();
    for route in &mut routes {
        if let [only] = route.r#match.as_mut_slice()
            && only.sni_hosts == ["*"]
        {
            only.sni_hosts = hosts.to_vec();
        }
        for matching in &mut route.r#match {
            matching.port = port.map_or(matching.port, u32::from);
        }
    }
    routes
}

/// The routes with only the server names that match this host.
pub(super) fn tls_for_host(routes: &[TlsRoute], host: &str) -> Vec<TlsRoute> {
    let mut routes = routes.to_vec();
    for route in &mut routes {
        if let [only] = route.r#match.as_mut_slice()
            && only.sni_hosts.len() > 1
        {
            only.sni_hosts.retain(|sni| Hostname::from(host).overlaps(sni));
        }
    }
    routes
}

/// The routes restricted to the host of a listener.
pub(super) fn tls_within(routes: &[TlsRoute], listener: &str) -> Vec<TlsRoute> {
    let mut routes = routes.to_vec();
    for route in &mut routes {
        for matching in &mut route.r#match {
            matching.sni_hosts = within(&matching.sni_hosts, listener);
        }
    }
    routes.retain(|route| route.r#match.is_empty() || route.r#match.iter().any(|m| !m.sni_hosts.is_empty()));
    routes
}

/// The intersection of the hosts with the host of a listener.
pub(super) fn within(hosts: &[String], listener: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let ours = Hostname::from(listener);
    for host in hosts {
        let narrower = if Hostname::from(host.as_str()).is_subset_of(listener) {
            host.as_str()
        } else if ours.is_subset_of(host) {
            listener
        } else {
            continue;
        };
        if !found.iter().any(|f| f == narrower) {
            found.push(narrower.to_owned());
        }
    }
    found
}
