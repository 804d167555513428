//! Hosts and the destinations of their routes: weights, faults, mirrors, and the health of endpoints.

use std::collections::BTreeMap;

use api::istio::networking::v1alpha3::{Destination, HttpRoute, VirtualService};
use model::config::Config;
use model::snapshot::Snapshot;
use schemars::JsonSchema;
use serde::Serialize;

use super::{ApiQuery, ApiResult, Pages, json_of, services};

/// Edges and services in one answer.
const MOST: usize = 1000;

#[derive(Serialize, JsonSchema)]
pub(super) struct Topology {
    nodes: Vec<TopologyNode>,
    edges: Vec<TopologyEdge>,
    /// Some routes or services were left out.
    truncated: bool,
}

#[derive(Serialize, JsonSchema)]
struct TopologyNode {
    host: String,
    namespace: String,
    registry: Option<&'static str>,
    endpoints: usize,
    healthy: usize,
}

#[derive(Serialize, JsonSchema)]
struct TopologyEdge {
    /// `mesh`, or the Gateways that the route is of.
    from: String,
    host: String,
    /// Name or number of the route.
    route: String,
    to: String,
    subset: String,
    /// Percent of the requests of the route.
    weight: u32,
    mirror: bool,
    /// Delays and aborts, in words.
    fault: String,
    /// `NAMESPACE/NAME` of the VirtualService.
    object: String,
}

pub(super) fn graph(pages: &Pages, query: &ApiQuery) -> ApiResult {
    let published = pages.pilot().world().now();
    let snapshot = &published.snapshot;
    let rules = snapshot.routing.virtual_services.iter().map(|rule| &rule.config);
    let rules = rules.filter(|config| query.is("namespace", &config.meta.namespace));
    let mut edges: Vec<TopologyEdge> = rules.flat_map(edges_of).take(MOST + 1).collect();
    let mut truncated = edges.len() > MOST;
    edges.truncate(MOST);
    let mut nodes: BTreeMap<String, TopologyNode> = BTreeMap::new();
    for service in snapshot.services.iter().filter(|service| query.is("namespace", &service.namespace)) {
        if nodes.len() >= MOST {
            truncated = true;
            break;
        }
        nodes.insert(service.hostname.to_string(), node(snapshot, service));
    }
    for host in edges.iter().map(|edge| &edge.to) {
        let unknown =
            || TopologyNode { host: host.clone(), namespace: String::new(), registry: None, endpoints: 0, healthy: 0 };
        if !nodes.contains_key(host) {
            let known = snapshot.services.owners(host).next();
            nodes.insert(host.clone(), known.map_or_else(unknown, |service| node(snapshot, service)));
        }
    }
    json_of(&Topology { nodes: nodes.into_values().collect(), edges, truncated })
}

fn node(snapshot: &Snapshot, service: &model::service::Service) -> TopologyNode {
    let (endpoints, healthy) = services::health(snapshot, service);
    TopologyNode {
        host: service.hostname.to_string(),
        namespace: service.namespace.to_string(),
        registry: Some(service.registry.as_str()),
        endpoints,
        healthy,
    }
}

fn edges_of(config: &Config<VirtualService>) -> Vec<TopologyEdge> {
    let (spec, meta) = (&config.spec, &config.meta);
    let from = if spec.gateways.is_empty() { "mesh".to_owned() } else { spec.gateways.join(", ") };
    let object = format!("{}/{}", meta.namespace, meta.name);
    let mut edges = Vec::new();
    for host in &spec.hosts {
        let mut add = |route: String, destination: Option<&Destination>, weight: u32, mirror: bool, fault: &str| {
            let Some(destination) = destination else { return };
            edges.push(TopologyEdge {
                from: from.clone(),
                host: host.clone(),
                route,
                to: destination.host.clone(),
                subset: destination.subset.clone(),
                weight,
                mirror,
                fault: fault.to_owned(),
                object: object.clone(),
            });
        };
        for (at, route) in spec.http.iter().enumerate() {
            let name = if route.name.is_empty() { format!("http {}", at + 1) } else { route.name.clone() };
            let fault = fault(route);
            let weights: Vec<i32> = route.route.iter().map(|to| to.weight).collect();
            for (to, percent) in route.route.iter().zip(percents(&weights)) {
                add(name.clone(), to.destination.as_ref(), percent, false, &fault);
            }
            let mirrors = route.mirror.iter().chain(route.mirrors.iter().filter_map(|of| of.destination.as_ref()));
            mirrors.for_each(|to| add(name.clone(), Some(to), 0, true, ""));
        }
        let plain = spec.tcp.iter().map(|of| (&of.route, "tcp")).chain(spec.tls.iter().map(|of| (&of.route, "tls")));
        for (at, (routes, kind)) in plain.enumerate() {
            let weights: Vec<i32> = routes.iter().map(|to| to.weight).collect();
            for (to, percent) in routes.iter().zip(percents(&weights)) {
                add(format!("{kind} {}", at + 1), to.destination.as_ref(), percent, false, "");
            }
        }
    }
    edges
}

/// Weights in percent; a single route without a weight gets everything.
fn percents(weights: &[i32]) -> Vec<u32> {
    let weights: Vec<u64> = weights.iter().map(|weight| u64::try_from(*weight).unwrap_or_default()).collect();
    let sum: u64 = weights.iter().sum();
    if sum == 0 {
        let share = 100 / u32::try_from(weights.len().max(1)).unwrap_or(100);
        return vec![share; weights.len()];
    }
    weights.iter().map(|weight| u32::try_from((weight * 100 + sum / 2) / sum).unwrap_or(100)).collect()
}

fn fault(route: &HttpRoute) -> String {
    let Some(fault) = &route.fault else { return String::new() };
    let share = |percentage: &Option<api::istio::networking::v1alpha3::Percent>| {
        percentage.as_ref().map_or("100 %".to_owned(), |percent| format!("{} %", percent.value))
    };
    let delay = fault.delay.as_ref().map(|delay| format!("delay {}", share(&delay.percentage)));
    let abort = fault.abort.as_ref().map(|abort| format!("abort {}", share(&abort.percentage)));
    delay.into_iter().chain(abort).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::percents;

    #[test]
    fn weights_are_shown_in_percent() {
        assert_eq!(percents(&[0]), [100]);
        assert_eq!(percents(&[90, 10]), [90, 10]);
        assert_eq!(percents(&[1, 2]), [33, 67]);
        assert!(percents(&[]).is_empty());
    }
}
