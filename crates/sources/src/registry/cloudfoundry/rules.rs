//! Maps paths and weights of routes to Istio objects, as Pilot did: a VirtualService per host, whose destinations are
//! the subsets of a DestinationRule, one for each process. Hosts without paths and weights need no rules.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::istio::networking::v1alpha3::{
    Destination, DestinationRule, HttpMatchRequest, HttpRoute, HttpRouteDestination, PortSelector, StringMatch, Subset,
    VirtualService, string_match,
};
use model::config::validate::validate;
use model::config::{Key, Meta, Object, Spec};
use model::hashed::Hashed;
use model::problem::{FileLocation, Problem, Severity, Subject};

use super::mapping::{by_host, labels};
use super::options::CloudFoundryOptions;
use super::route_table::{Route, RouteKey, RouteTable};
use crate::registry::normalize;

/// The gateway name for all sidecars.
const MESH: &str = "mesh";

type HostRoutes<'a> = [(&'a RouteKey, &'a Route)];

/// All rules, and problems of hosts whose rules are not valid.
pub(super) fn rules(route_table: &RouteTable, options: &CloudFoundryOptions) -> (BTreeMap<Key, Object>, Vec<Problem>) {
    let (mut rules, mut problems) = (BTreeMap::new(), Vec::new());
    for (host, routes) in by_host(route_table) {
        let Some(hostname) = normalize::hostname(host, &[]) else { continue };
        if options.gateways.is_empty() && !is_divided(&routes) {
            continue;
        }
        let objects = [destination_rule(&hostname, &routes, options), virtual_service(&hostname, &routes, options)];
        let faults: Vec<Problem> =
            objects.iter().flat_map(validate).filter(|problem| problem.severity == Severity::Error).collect();
        if faults.is_empty() {
            rules.extend(objects.map(|object| (object.key(), object)));
        } else {
            let reasons: Vec<&str> = faults.iter().map(|problem| &*problem.message).collect();
            let message =
                format!("could not map its paths and weights, requests go to all processes: {}", reasons.join("; "));
            problems.push(Problem::error(Subject::Route(format!("route {host}").into()), message));
        }
    }
    (rules, problems)
}

/// Whether requests to a host are distributed by path or weight.
fn is_divided(routes: &HostRoutes<'_>) -> bool {
    let has_paths = routes.iter().any(|(key, _)| !key.path.is_empty());
    has_paths || routes.len() > 1 && routes.iter().any(|(_, route)| route.weight > 0)
}

fn destination_rule(host: &str, routes: &HostRoutes<'_>, options: &CloudFoundryOptions) -> Object {
    let processes: BTreeSet<&str> = routes.iter().map(|(key, _)| key.process.as_str()).collect();
    let subset = |process: &str| Subset { name: subset(process), labels: labels(process), ..Subset::default() };
    let subsets = processes.into_iter().filter(|process| !process.is_empty()).map(subset).collect();
    let spec = DestinationRule { host: host.to_owned(), subsets, ..DestinationRule::default() };
    object(format!("dest-rule-for-{host}"), Spec::DestinationRule(Hashed::from_message(spec)), options)
}

fn virtual_service(host: &str, routes: &HostRoutes<'_>, options: &CloudFoundryOptions) -> Object {
    let mut by_path: BTreeMap<&str, Vec<(&RouteKey, &Route)>> = BTreeMap::new();
    for (key, route) in routes {
        by_path.entry(&key.path).or_default().push((key, route));
    }
    let mut paths: Vec<_> = by_path.into_iter().collect();
    // The longest matching path wins.
    paths.sort_by_key(|(path, _)| (std::cmp::Reverse(path.len()), *path));
    let http = paths.iter().map(|(path, routes)| HttpRoute {
        r#match: matches(path),
        route: destinations(host, routes, options.service_port),
        ..HttpRoute::default()
    });
    let spec = VirtualService {
        hosts: vec![host.to_owned()],
        gateways: options.gateways.iter().cloned().chain([MESH.to_owned()]).collect(),
        http: http.collect(),
        ..VirtualService::default()
    };
    object(format!("virtual-service-for-{host}"), Spec::VirtualService(Hashed::from_message(spec)), options)
}

/// Matches whole path segments: `/a` does not match `/ab`.
fn matches(path: &str) -> Vec<HttpMatchRequest> {
    if path.is_empty() {
        return Vec::new();
    }
    let exact = string_match::MatchType::Exact(path.to_owned());
    let below = string_match::MatchType::Prefix(format!("{path}/"));
    let request =
        |uri| HttpMatchRequest { uri: Some(StringMatch { match_type: Some(uri) }), ..HttpMatchRequest::default() };
    [exact, below].map(request).into()
}

fn destinations(host: &str, routes: &HostRoutes<'_>, port: u16) -> Vec<HttpRouteDestination> {
    let is_weighted = routes.iter().any(|(_, route)| route.weight > 0);
    let destination = |(key, route): &(&RouteKey, &Route)| {
        // Without weights all backends get the same share.
        let weight = if is_weighted { route.weight as usize } else { route.backends.len().max(1) };
        HttpRouteDestination {
            destination: Some(Destination {
                host: host.to_owned(),
                subset: subset(&key.process),
                port: Some(PortSelector { number: u32::from(port) }),
            }),
            weight: if routes.len() > 1 { i32::try_from(weight).unwrap_or(i32::MAX) } else { 0 },
            ..HttpRouteDestination::default()
        }
    };
    routes.iter().map(destination).collect()
}

/// The subset name of a process; empty where Copilot does not report the process.
fn subset(process: &str) -> String {
    process.to_ascii_lowercase().replace(['_', '.'], "-")
}

fn object(name: String, spec: Spec, options: &CloudFoundryOptions) -> Object {
    let location = FileLocation { file: format!("Copilot at {}", options.address).into(), line: 0 };
    let namespace = options.namespace.as_str().into();
    let meta = Meta { name: name.into(), namespace, location: Some(location), ..Meta::default() };
    Object { meta: Arc::new(meta), spec }
}
