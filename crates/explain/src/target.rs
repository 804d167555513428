//! Where a route sends a request: clusters with their endpoints, a redirect or a response.

use api::envoy::config::cluster::v3::Cluster;
use api::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType, LbPolicy};
use api::envoy::config::core::v3::address::Address as AddressKind;
use api::envoy::config::core::v3::data_source::Specifier;
use api::envoy::config::core::v3::socket_address::PortSpecifier;
use api::envoy::config::core::v3::{Address, HealthStatus, Locality};
use api::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use api::envoy::config::endpoint::v3::{ClusterLoadAssignment, LbEndpoint};
use api::envoy::config::route::v3::redirect_action::{PathRewriteSpecifier, SchemeRewriteSpecifier};
use api::envoy::config::route::v3::route::Action;
use api::envoy::config::route::v3::route_action::ClusterSpecifier;
use api::envoy::config::route::v3::route_match::PathSpecifier;
use api::envoy::config::route::v3::{RedirectAction, Route};

use crate::config::ProxyConfig;
use crate::explanation::{ClusterStep, EndpointStep, RequestOutcome, config_of};
use crate::request::Request;

/// The outcome of a route that matches.
pub(crate) fn of_route(config: &ProxyConfig, route: &Route, request: &Request) -> RequestOutcome {
    match &route.action {
        Some(Action::Route(action)) => match &action.cluster_specifier {
            Some(ClusterSpecifier::Cluster(name)) => forwarded(config, vec![(name.clone(), 1)]),
            Some(ClusterSpecifier::WeightedClusters(weighted)) => {
                let weighted = weighted.clusters.iter();
                forwarded(config, weighted.map(|c| (c.name.clone(), c.weight.unwrap_or(0))).collect())
            }
            Some(ClusterSpecifier::ClusterHeader(header)) => match request.value(header) {
                Some(name) => forwarded(config, vec![(name, 1)]),
                None => RequestOutcome::NotServed(format!("503: header {header}, which names the cluster, is missing")),
            },
            Some(ClusterSpecifier::ClusterSpecifierPlugin(name)) => plugin(name),
            Some(ClusterSpecifier::InlineClusterSpecifierPlugin(_)) => plugin("of the route"),
            None => RequestOutcome::NotServed("the route names no cluster".to_owned()),
        },
        Some(Action::Redirect(redirect)) => redirected(route, redirect, request),
        Some(Action::DirectResponse(direct)) => {
            let body = direct.body.as_ref().and_then(|body| body.specifier.clone());
            let body = match body {
                Some(Specifier::InlineString(text)) => text,
                Some(Specifier::InlineBytes(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
                _ => String::new(),
            };
            RequestOutcome::Answered { status: direct.status, body }
        }
        _ => RequestOutcome::NotServed("the route forwards nothing".to_owned()),
    }
}

fn plugin(name: &str) -> RequestOutcome {
    RequestOutcome::NotServed(format!("the cluster is chosen by plugin {name}, which cannot be evaluated here"))
}

fn redirected(route: &Route, redirect: &RedirectAction, request: &Request) -> RequestOutcome {
    let status = [301, 302, 303, 307, 308].get(usize::try_from(redirect.response_code).unwrap_or(0)).copied();
    let scheme = match &redirect.scheme_rewrite_specifier {
        Some(SchemeRewriteSpecifier::HttpsRedirect(true)) => "https",
        Some(SchemeRewriteSpecifier::SchemeRedirect(scheme)) => scheme,
        _ => &request.scheme,
    };
    let host = match &*redirect.host_redirect {
        "" if redirect.port_redirect == 0 => request.authority.clone(),
        "" => request.host().to_owned(),
        host => host.to_owned(),
    };
    let port = if redirect.port_redirect == 0 { String::new() } else { format!(":{}", redirect.port_redirect) };
    let query = request.path.split_once('?').filter(|_| !redirect.strip_query).map(|(_, query)| format!("?{query}"));
    let query = query.unwrap_or_default();
    let path = match &redirect.path_rewrite_specifier {
        Some(PathRewriteSpecifier::PathRedirect(path)) if path.contains('?') => path.clone(),
        Some(PathRewriteSpecifier::PathRedirect(path)) => format!("{path}{query}"),
        Some(PathRewriteSpecifier::PrefixRewrite(prefix)) => {
            let rest = request.plain_path().get(matched_length(route, request)..).unwrap_or_default();
            format!("{prefix}{rest}{query}")
        }
        _ => format!("{}{query}", request.plain_path()),
    };
    RequestOutcome::Redirected { status: status.unwrap_or(301), location: format!("{scheme}://{host}{port}{path}") }
}

/// Length of the part of the path that a prefix rewrite replaces.
pub(crate) fn matched_length(route: &Route, request: &Request) -> usize {
    match route.r#match.as_ref().and_then(|m| m.path_specifier.as_ref()) {
        Some(PathSpecifier::Prefix(prefix) | PathSpecifier::PathSeparatedPrefix(prefix)) => prefix.len(),
        _ => request.plain_path().len(),
    }
}

/// Requests divided between clusters by weight.
pub(crate) fn forwarded(config: &ProxyConfig, clusters: Vec<(String, u32)>) -> RequestOutcome {
    let total: u64 = clusters.iter().map(|(_, weight)| u64::from(*weight)).sum();
    if total == 0 {
        return RequestOutcome::NotServed("no cluster has a weight above 0".to_owned());
    }
    let taken = clusters.into_iter().filter(|(_, weight)| *weight > 0);
    let steps = taken.map(|(name, weight)| {
        let percent = f64::from(weight) * 100.0 / total as f64;
        step(config, name, (percent * 100.0).round() / 100.0)
    });
    RequestOutcome::Forwarded(steps.collect())
}

fn step(config: &ProxyConfig, name: String, percent: f64) -> ClusterStep {
    let Some(cluster) = config.clusters.get(&name) else {
        let problem = Some(format!("the proxy has no cluster {name}: it answers 503 (NC)"));
        let (discovery, endpoints) = ("unknown".to_owned(), Vec::new());
        return ClusterStep { name, percent, discovery, tls: false, config: None, endpoints, problem };
    };
    let kind = kind(cluster);
    let service = cluster.eds_cluster_config.as_ref().map_or("", |eds| &*eds.service_name);
    let service = if service.is_empty() { &name } else { service };
    let assignment = config.endpoints.get(service).or(cluster.load_assignment.as_ref());
    let endpoints: Vec<EndpointStep> = assignment.map(endpoints).unwrap_or_default();
    let needs_endpoints = matches!(kind, "EDS" | "STATIC" | "STRICT_DNS" | "LOGICAL_DNS");
    let none = needs_endpoints && !endpoints.iter().any(|endpoint| endpoint.health != "unhealthy");
    let problem = none.then(|| "no healthy endpoint: the proxy answers 503 (UH)".to_owned());
    ClusterStep {
        percent,
        discovery: format!("{kind}, {}", balancing(cluster)),
        tls: cluster.transport_socket.is_some() || !cluster.transport_socket_matches.is_empty(),
        config: config_of(cluster.metadata.as_ref()),
        endpoints,
        problem,
        name,
    }
}

/// How Envoy finds the endpoints of a cluster.
pub(crate) fn kind(cluster: &Cluster) -> &str {
    match &cluster.cluster_discovery_type {
        Some(ClusterDiscoveryType::Type(kind)) => {
            DiscoveryType::try_from(*kind).map_or("unknown", |kind| kind.as_str_name())
        }
        Some(ClusterDiscoveryType::ClusterType(kind)) => &kind.name,
        None => "STATIC",
    }
}

fn balancing(cluster: &Cluster) -> String {
    let policy = cluster.load_balancing_policy.as_ref().and_then(|policy| policy.policies.first());
    let named = policy.and_then(|policy| policy.typed_extension_config.as_ref()).map(|config| config.name.clone());
    named.unwrap_or_else(|| LbPolicy::try_from(cluster.lb_policy).map_or("unknown", |p| p.as_str_name()).to_owned())
}

/// All endpoints of a load assignment, by priority.
pub(crate) fn endpoints(assignment: &ClusterLoadAssignment) -> Vec<EndpointStep> {
    let mut found = Vec::new();
    for group in &assignment.endpoints {
        let locality = group.locality.as_ref().map(locality).unwrap_or_default();
        for endpoint in &group.lb_endpoints {
            found.push(EndpointStep {
                address: address(endpoint),
                locality: locality.clone(),
                priority: group.priority,
                weight: endpoint.load_balancing_weight.unwrap_or(1),
                health: health(endpoint).to_owned(),
            });
        }
    }
    found.sort_by_key(|endpoint| endpoint.priority);
    found
}

fn locality(locality: &Locality) -> String {
    let parts = [&*locality.region, &locality.zone, &locality.sub_zone];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
}

fn health(endpoint: &LbEndpoint) -> &'static str {
    match HealthStatus::try_from(endpoint.health_status) {
        Ok(HealthStatus::Unknown | HealthStatus::Healthy) => "healthy",
        Ok(HealthStatus::Draining) => "draining",
        Ok(HealthStatus::Degraded) => "degraded",
        _ => "unhealthy",
    }
}

fn address(endpoint: &LbEndpoint) -> String {
    match &endpoint.host_identifier {
        Some(HostIdentifier::Endpoint(endpoint)) => {
            endpoint.address.as_ref().map_or("no address".to_owned(), address_text)
        }
        Some(HostIdentifier::EndpointName(name)) => name.clone(),
        None => "no address".to_owned(),
    }
}

/// `host:port`, a socket path, or the name of an internal listener.
pub(crate) fn address_text(address: &Address) -> String {
    match &address.address {
        Some(AddressKind::SocketAddress(socket)) => {
            let port = match &socket.port_specifier {
                Some(PortSpecifier::PortValue(port)) => port.to_string(),
                Some(PortSpecifier::NamedPort(name)) => name.clone(),
                None => "0".to_owned(),
            };
            let is_v6 = socket.address.contains(':');
            if is_v6 { format!("[{}]:{port}", socket.address) } else { format!("{}:{port}", socket.address) }
        }
        Some(AddressKind::Pipe(pipe)) => pipe.path.clone(),
        Some(AddressKind::EnvoyInternalAddress(_)) => "internal listener".to_owned(),
        None => "no address".to_owned(),
    }
}
