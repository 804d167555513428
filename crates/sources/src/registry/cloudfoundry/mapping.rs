//! Maps routes of Cloud Foundry to services of the mesh. Pure functions. Paths and weights are mapped by `rules`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use model::endpoint::Endpoint;
use model::labels::Labels;
use model::names::{ClusterId, Namespace, Str};
use model::port::{Port, Protocol};
use model::problem::{Problem, Subject};
use model::service::{Registry, Resolution, Service};

use super::options::CloudFoundryOptions;
use super::route_table::{InternalRoute, Route, RouteKey, RouteTable};
use super::schema::RouteBackend;
use crate::registry::diff::ServiceListing;
use crate::registry::normalize;

/// The name and merge rank of the registry.
pub(super) const REGISTRY: Registry = Registry::Adapter { rank: 30, name: "CloudFoundry" };

/// Endpoint label with the id of its application process, as in Pilot 1.0.
const PROCESS: &str = "cfapp";

/// Builds services with common settings.
struct ServiceBuilder<'a> {
    options: &'a CloudFoundryOptions,
    namespace: Namespace,
    cluster: &'a ClusterId,
}

/// All services of these routes by their name in Cloud Foundry, and their problems.
pub(super) fn listings(
    route_table: &RouteTable,
    options: &CloudFoundryOptions,
    cluster: &ClusterId,
) -> (BTreeMap<Str, ServiceListing>, Vec<Problem>) {
    let builder = ServiceBuilder { options, namespace: Namespace::from(options.namespace.as_str()), cluster };
    let (mut listed, mut problems) = (BTreeMap::new(), Vec::new());
    for (host, routes) in by_host(route_table) {
        let name = format!("route {host}");
        match builder.route(host, &routes, &mut problems) {
            Some(listing) => _ = listed.insert(Str::from(name), listing),
            None => problems.push(nameless(&name)),
        }
    }
    for (host, route) in &route_table.internal {
        let name = format!("internal route {host}");
        match builder.internal_route(host, route, &name, &mut problems) {
            Some(listing) => _ = listed.insert(Str::from(name), listing),
            None => problems.push(nameless(&name)),
        }
    }
    (listed, problems)
}

/// The routes of each host.
pub(super) fn by_host(route_table: &RouteTable) -> BTreeMap<&str, Vec<(&RouteKey, &Route)>> {
    let mut hosts: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for (key, route) in &route_table.routes {
        hosts.entry(&key.host).or_default().push((key, route));
    }
    hosts
}

/// The labels of a process; empty where Copilot does not report the process.
pub(super) fn labels(process: &str) -> BTreeMap<String, String> {
    normalize::labels(Some((PROCESS, process)).filter(|_| !process.is_empty()))
}

impl ServiceBuilder<'_> {
    fn route(&self, host: &str, routes: &[(&RouteKey, &Route)], problems: &mut Vec<Problem>) -> Option<ServiceListing> {
        let port = self.port("http", &self.options.protocol);
        let mut endpoints = Vec::new();
        for (key, route) in routes {
            let about = format!("route {host}{}", key.path);
            let labels = Labels::from(&labels(&key.process));
            let some = self.endpoints(&route.backends, &port, &about, problems);
            let process = Str::from(key.process.as_str());
            endpoints.extend(some.map(|endpoint| Endpoint {
                labels: labels.clone(),
                workload_name: process.clone(),
                ..endpoint
            }));
        }
        self.listing(host, port, endpoints, None)
    }

    fn internal_route(
        &self,
        host: &str,
        route: &InternalRoute,
        about: &str,
        problems: &mut Vec<Problem>,
    ) -> Option<ServiceListing> {
        let port = self.port("tcp", &self.options.internal_protocol);
        let endpoints = self.endpoints(&route.backends, &port, about, problems).collect();
        let vip = route.vip.parse::<IpAddr>();
        if vip.is_err() && !route.vip.is_empty() {
            let message = format!("{:?} is not an IP address; the service has no VIP", route.vip);
            problems.push(Problem::warning(Subject::Route(about.into()), message));
        }
        self.listing(host, port, endpoints, vip.ok())
    }

    fn port(&self, usual: &str, protocol: &str) -> Port {
        let protocol = Protocol::parse(protocol);
        // As in Pilot, the port is named after its protocol.
        let name = match protocol {
            Protocol::Unknown => usual.to_owned(),
            known => known.as_str().to_ascii_lowercase(),
        };
        Port { name: name.into(), number: self.options.service_port, protocol }
    }

    /// Endpoints of the backends with a valid address and port.
    fn endpoints<'a>(
        &'a self,
        backends: &'a BTreeSet<RouteBackend>,
        port: &'a Port,
        about: &'a str,
        problems: &'a mut Vec<Problem>,
    ) -> impl Iterator<Item = Endpoint> + use<'a> {
        backends.iter().filter_map(move |backend| {
            let target = u16::try_from(backend.port).ok().filter(|port| *port > 0);
            if backend.address.is_empty() || target.is_none() {
                let message = format!(
                    "backend {:?} port {} has no valid address and port; left out",
                    backend.address, backend.port
                );
                problems.push(Problem::error(Subject::Route(about.into()), message));
                return None;
            }
            Some(Endpoint {
                service_port: port.name.clone(),
                service_port_number: port.number,
                port: backend.port,
                ..normalize::endpoint(&backend.address, &self.namespace, self.cluster)
            })
        })
    }

    fn listing(&self, host: &str, port: Port, endpoints: Vec<Endpoint>, vip: Option<IpAddr>) -> Option<ServiceListing> {
        let hostname = normalize::hostname(host, &[])?;
        let mut service = Service::new(REGISTRY, hostname, self.namespace.clone(), host, vec![port]);
        if let Some(vip) = vip {
            service.address = vip.to_string().into();
        }
        if endpoints.iter().any(|e| e.address().parse::<IpAddr>().is_err()) {
            service.resolution = Resolution::Dns;
        }
        Some(ServiceListing { service: Arc::new(service), endpoints: normalize::in_order(endpoints).into() })
    }
}

fn nameless(name: &str) -> Problem {
    Problem::error(Subject::Route(name.into()), "the name cannot be used as a host name; the service is left out")
}

#[cfg(test)]
mod tests;
