//! The clusters and route tables of a gateway.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::istio::mesh::v1alpha1::mesh_config::extension_provider::Provider;
use api::istio::networking::v1alpha3::{Destination, VirtualService};
use model::service::Service;
use scope::View;

use crate::names::ClusterForm;
use crate::plan::cluster::{self, ClusterPlan, outbound};
use crate::plan::route::{self, RoutePlan};

/// All clusters, sorted by name.
pub fn clusters(view: &View) -> Vec<ClusterPlan> {
    let context = Arc::new(cluster::ClusterContext::new(view));
    let mut found = if view.settings.knobs.filter_gateway_clusters {
        let referenced = ReferencedHosts::new(view);
        let services = view.services().iter().filter(|service| referenced.includes(service));
        outbound::plans(view, &context, services, ClusterForm::Plain)
    } else {
        outbound::plans(view, &context, view.services(), ClusterForm::Plain)
    };
    if view.gateway.as_ref().is_some_and(|g| g.auto_passthrough_hosts.is_some()) {
        let inside = view.services().iter().filter(|service| !service.mesh_external);
        found.extend(outbound::plans(view, &context, inside, ClusterForm::ServerName));
    }
    found.extend(cluster::router_fixed(&context));
    cluster::by_name(found)
}

/// The route table of this name; empty if no server uses it.
pub fn route(view: &View, name: &str) -> Option<RoutePlan> {
    Some(route::gateway::table(view, name))
}

/// Hosts that a gateway's config refers to: route destinations, extension providers, EnvoyFilter references.
#[derive(Debug, Default)]
struct ReferencedHosts {
    hosts: BTreeSet<String>,
    /// Namespace and host.
    namespaced: BTreeSet<(String, String)>,
}

impl ReferencedHosts {
    fn new(view: &View) -> ReferencedHosts {
        let mut referenced = ReferencedHosts::default();
        let providers = view.settings.mesh.extension_providers.iter().filter_map(|p| p.provider.as_ref());
        let patches = view.patches.referenced_services.iter().map(|name| &**name);
        for name in providers.filter_map(called_service).chain(patches) {
            match name.split_once('/') {
                Some((namespace, host)) => _ = referenced.namespaced.insert((namespace.to_owned(), host.to_owned())),
                None => _ = referenced.hosts.insert(name.to_owned()),
            }
        }
        let servers = view.gateway.iter().flat_map(|g| g.ports.iter()).flat_map(|port| port.servers.iter());
        let gateways: BTreeSet<&str> = servers.map(|server| &*server.gateway).collect();
        for gateway in gateways {
            for rule in view.gateway_routes(gateway) {
                referenced.hosts.extend(destinations(&rule.config.spec).map(|d| d.host.clone()));
            }
        }
        referenced
    }

    fn includes(&self, service: &Service) -> bool {
        let (namespace, host) = (service.namespace.to_string(), service.hostname.to_string());
        self.hosts.contains(&host) || self.namespaced.contains(&(namespace, host))
    }
}

/// The service that a provider calls, as `host` or `namespace/host`.
fn called_service(provider: &Provider) -> Option<&str> {
    match provider {
        Provider::EnvoyExtAuthzHttp(p) => Some(&p.service),
        Provider::EnvoyExtAuthzGrpc(p) => Some(&p.service),
        Provider::Zipkin(p) => Some(&p.service),
        Provider::Datadog(p) => Some(&p.service),
        Provider::Skywalking(p) => Some(&p.service),
        Provider::Opentelemetry(p) => Some(&p.service),
        Provider::EnvoyHttpAls(p) => Some(&p.service),
        Provider::EnvoyTcpAls(p) => Some(&p.service),
        Provider::EnvoyOtelAls(p) => Some(&p.service),
        Provider::Sds(p) => Some(&p.service),
        Provider::Lightstep(_)
        | Provider::Opencensus(_)
        | Provider::Stackdriver(_)
        | Provider::Prometheus(_)
        | Provider::EnvoyFileAccessLog(_) => None,
    }
}

/// All destinations of a VirtualService, including mirrors.
fn destinations(rule: &VirtualService) -> impl Iterator<Item = &Destination> {
    let http = rule.http.iter().flat_map(|route| {
        let routed = route.route.iter().filter_map(|r| r.destination.as_ref());
        routed.chain(route.mirror.iter()).chain(route.mirrors.iter().filter_map(|m| m.destination.as_ref()))
    });
    let tcp = rule.tcp.iter().flat_map(|t| t.route.iter()).filter_map(|r| r.destination.as_ref());
    let tls = rule.tls.iter().flat_map(|t| t.route.iter()).filter_map(|r| r.destination.as_ref());
    http.chain(tcp).chain(tls)
}
