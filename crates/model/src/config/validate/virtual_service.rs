//! Rules of VirtualService: hosts, gateways, TLS and TCP routes. HTTP routes are in `http_route`, warnings for unreachable
//! rules in `unreachable`.

use std::collections::BTreeSet;

use api::istio::networking::v1alpha3::{
    L4MatchAttributes, RouteDestination, TcpRoute, TlsMatchAttributes, TlsRoute, VirtualService,
};

use super::names;
use super::report::Report;
use super::route_parts::{destination, gateway_names, match_port, total_weight, weight};
use super::selector::{self, ExportOf};
use super::{headers, http_route, unreachable};
use crate::config::Meta;
use crate::host::is_wildcard;
use crate::names::Hostname;

pub(super) fn check(meta: &Meta, service: &VirtualService, report: &mut Report) {
    if service.hosts.is_empty() {
        delegate(service, report);
    }
    gateway_names(&service.gateways, report);
    if !is_bound_to_gateway(service) {
        no_claim_routes(service, report);
    }
    if hosts(service, report) {
        no_duplicate_hosts(&service.hosts, report);
    }
    let empty = service.http.is_empty() && service.tcp.is_empty() && service.tls.is_empty();
    report.error_if(empty, "http, tcp or tls must be provided in virtual service");
    let is_delegate = service.hosts.is_empty();
    report.each("http", &service.http, |report, route| http_route::check(route, is_delegate, report));
    report.each("tls", &service.tls, |report, route| tls_route(route, service, report));
    report.each("tcp", &service.tcp, tcp_route);
    selector::export_to(&meta.namespace, &service.export_to, ExportOf::Rules, report);
    unreachable::check(service, report);
}

/// Whether it has gateways and none of them is `mesh`.
fn is_bound_to_gateway(service: &VirtualService) -> bool {
    !service.gateways.is_empty() && !service.gateways.iter().any(|name| name == "mesh")
}

/// A VirtualService without hosts can only be a delegate.
fn delegate(service: &VirtualService, report: &mut Report) {
    let given = [
        (!service.gateways.is_empty(), "gateways"),
        (!service.tls.is_empty(), "tls route"),
        (!service.tcp.is_empty(), "tcp route"),
    ];
    for (given, name) in given {
        report.error_if(given, format_args!("delegate virtual service must have no {name} specified"));
    }
}

fn no_claim_routes(service: &VirtualService, report: &mut Report) {
    let matches = service.http.iter().flat_map(|route| &route.r#match);
    let names = matches.flat_map(|one| one.headers.keys().chain(one.without_headers.keys()));
    for key in names.filter(|key| headers::is_jwt_claim(key)) {
        report.error(format_args!(
            "JWT claim based routing (key: {key}) is only supported for gateway, found no gateways: [{}]",
            service.gateways.join(" ")
        ));
    }
}

/// Checks hosts. True if all are valid, so that they can be compared.
fn hosts(service: &VirtualService, report: &mut Report) -> bool {
    let on_gateway = is_bound_to_gateway(service);
    let sni = service.tls.iter().flat_map(|route| &route.r#match).any(|one| !one.sni_hosts.is_empty());
    let mut all_valid = true;
    for host in &service.hosts {
        let rule = if on_gateway { names::gateway_domain(sni, host) } else { names::wildcard_domain(host) };
        match rule {
            Err(_) if names::is_ip(host) => continue,
            Err(message) => report.error(message),
            Ok(()) if !on_gateway && host == "*" => {
                report.error("wildcard host * is not allowed for virtual services bound to the mesh gateway");
            }
            Ok(()) => continue,
        }
        all_valid = false;
    }
    all_valid
}

/// `*.foo.com` and `*.com` in one object also count as duplicates.
fn no_duplicate_hosts(hosts: &[String], report: &mut Report) {
    let mut seen = BTreeSet::new();
    let wildcards: Vec<(usize, Hostname)> = hosts
        .iter()
        .enumerate()
        .filter(|(_, host)| is_wildcard(host))
        .map(|(i, host)| (i, host.as_str().into()))
        .collect();
    for (index, host) in hosts.iter().enumerate() {
        let other = wildcards.iter().find(|(at, wildcard)| *at < index && wildcard.overlaps(host));
        let later =
            wildcards.iter().find(|(at, wildcard)| *at > index && !is_wildcard(host) && wildcard.overlaps(host));
        if !seen.insert(host.as_str()) {
            report.error(format_args!("duplicate hosts in virtual service: {host} & {host}"));
        } else if let Some((_, other)) = other {
            report.error(format_args!("duplicate hosts in virtual service: {other} & {host}"));
        } else if let Some((_, other)) = later {
            report.error(format_args!("duplicate hosts in virtual service: {host} & {other}"));
        }
    }
}

fn tls_route(route: &TlsRoute, service: &VirtualService, report: &mut Report) {
    report.error_if(route.r#match.is_empty(), "TLS route must have at least one match condition");
    report.each("match", &route.r#match, |report, one| tls_match(one, service, report));
    report.error_if(route.route.is_empty(), "TLS route is required");
    destinations(&route.route, report);
}

fn tls_match(one: &TlsMatchAttributes, service: &VirtualService, report: &mut Report) {
    report.error_if(one.sni_hosts.is_empty(), "TLS match must have at least one SNI host");
    for host in &one.sni_hosts {
        sni_host(host, service, report);
    }
    for subnet in &one.destination_subnets {
        report.check(names::subnet(subnet));
    }
    match_port(one.port, report);
    names::labels(&one.source_labels, report);
    gateway_names(&one.gateways, report);
}

fn sni_host(host: &str, service: &VirtualService, report: &mut Report) {
    // Upstream only checks for `mesh` here, so an empty list counts as a gateway.
    let on_gateway = !service.gateways.iter().any(|name| name == "mesh");
    let rule = if on_gateway { names::gateway_domain(true, host) } else { names::wildcard_domain(host) };
    match rule {
        Err(_) if names::is_ip(host) => report.warn(format_args!(
            "using an IP address ({host:?}) goes against SNI spec and most clients do not support this"
        )),
        Err(message) => report.error(message),
        Ok(()) => {
            let name = Hostname::from(host);
            let fits = service.hosts.iter().any(|of| name.is_subset_of(of));
            report.error_if(
                !fits,
                format_args!(
                    "SNI host {host:?} is not a compatible subset of any of the virtual service hosts: [{}]",
                    service.hosts.join(", ")
                ),
            );
        }
    }
}

fn tcp_route(report: &mut Report, route: &TcpRoute) {
    report.each("match", &route.r#match, tcp_match);
    report.error_if(route.route.is_empty(), "TCP route is required");
    destinations(&route.route, report);
}

fn tcp_match(report: &mut Report, one: &L4MatchAttributes) {
    for subnet in &one.destination_subnets {
        report.check(names::subnet(subnet));
    }
    match_port(one.port, report);
    names::labels(&one.source_labels, report);
    gateway_names(&one.gateways, report);
}

fn destinations(routes: &[RouteDestination], report: &mut Report) {
    report.each("route", routes, |report, route| {
        report.error_if(route.destination.is_none(), "destination is required");
        report.given("destination", route.destination.as_ref(), destination);
        report.check(weight(route.weight));
    });
    total_weight(routes.iter().map(|route| route.weight), report);
}
