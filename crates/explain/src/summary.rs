//! One line for each cluster, filter chain, route and endpoint, with the columns of `istioctl proxy-config`.

use api::envoy::config::cluster::v3::Cluster;
use api::envoy::config::endpoint::v3::ClusterLoadAssignment;
use api::envoy::config::listener::v3::{FilterChain, FilterChainMatch, Listener};
use api::envoy::config::route::v3::route_match::PathSpecifier;
use api::envoy::config::route::v3::{RouteConfiguration, RouteMatch};

use crate::explanation::config_of;
use crate::listener::{Entry, address_of, entry};
use crate::target;

/// The parts of a cluster's name, and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterSummary {
    pub host: String,
    pub port: String,
    pub subset: String,
    pub direction: String,
    pub kind: String,
    /// `NAME.NAMESPACE`; empty if no DestinationRule applies.
    pub rule: String,
}

/// `outbound|80|v1|cart.shop.svc.cluster.local` in its parts; other names are the host.
pub fn summary_of_cluster(cluster: &Cluster) -> ClusterSummary {
    let rule = config_of(cluster.metadata.as_ref()).map(|path| object_name(&path)).unwrap_or_default();
    let kind = target::kind(cluster).to_owned();
    let parts: Vec<&str> = cluster.name.split('|').collect();
    let [direction, port, subset, host] = parts.as_slice() else {
        let empty = String::new;
        return ClusterSummary {
            host: cluster.name.clone(),
            port: empty(),
            subset: empty(),
            direction: empty(),
            kind,
            rule,
        };
    };
    let [direction, port, subset, host] = [direction, port, subset, host].map(|part| (*part).to_owned());
    ClusterSummary { host, port, subset, direction, kind, rule }
}

/// `NAME.NAMESPACE` of `/apis/GROUP/VERSION/namespaces/NAMESPACE/KIND/NAME`.
fn object_name(path: &str) -> String {
    let mut parts = path.rsplit('/');
    let (name, namespace) = (parts.next().unwrap_or_default(), parts.nth(1).unwrap_or_default());
    format!("{name}.{namespace}")
}

/// Address, port, match and destination of each filter chain.
pub fn summary_of_listener(listener: &Listener) -> Vec<[String; 4]> {
    let (address, port) = address_of(listener)
        .map_or((listener.name.clone(), "-".to_owned()), |(address, port)| (address.to_string(), port.to_string()));
    let chains = listener.filter_chains.iter().chain(&listener.default_filter_chain);
    chains.map(|chain| [address.clone(), port.clone(), chain_match(chain), destination(chain)]).collect()
}

fn chain_match(chain: &FilterChain) -> String {
    let Some(of) = &chain.filter_chain_match else { return "ALL".to_owned() };
    let FilterChainMatch { server_names, transport_protocol, application_protocols, prefix_ranges, .. } = of;
    let mut parts = Vec::new();
    if !server_names.is_empty() {
        parts.push(format!("SNI: {}", server_names.join(",")));
    }
    if !transport_protocol.is_empty() {
        parts.push(format!("Trans: {transport_protocol}"));
    }
    if !application_protocols.is_empty() {
        parts.push(format!("App: {}", application_protocols.join(",")));
    }
    let range = |range: &api::envoy::config::core::v3::CidrRange| {
        format!("{}/{}", range.address_prefix, range.prefix_len.unwrap_or(0))
    };
    if !prefix_ranges.is_empty() {
        parts.push(format!("Addr: {}", prefix_ranges.iter().map(range).collect::<Vec<_>>().join(",")));
    }
    if let Some(port) = of.destination_port {
        parts.push(format!("Port: {port}"));
    }
    if parts.is_empty() { "ALL".to_owned() } else { parts.join("; ") }
}

fn destination(chain: &FilterChain) -> String {
    match entry(chain).0 {
        Entry::Http(manager) => format!("Route: {}", manager.route_config),
        Entry::Tcp(clusters) => {
            let names: Vec<String> = clusters.into_iter().map(|(name, _)| name).collect();
            format!("Cluster: {}", names.join(","))
        }
        Entry::Unknown => "-".to_owned(),
    }
}

/// Name, virtual host, domains, match and VirtualService of each route.
pub fn summary_of_routes(table: &RouteConfiguration) -> Vec<[String; 5]> {
    let hosts = table.virtual_hosts.iter();
    let rows = hosts.flat_map(|host| host.routes.iter().map(move |route| (host, route))).map(|(host, route)| {
        let domains = match host.domains.as_slice() {
            [] => String::new(),
            [one] => one.clone(),
            [first, rest @ ..] => format!("{first}, + {} more", rest.len()),
        };
        let from = config_of(route.metadata.as_ref()).map(|path| object_name(&path)).unwrap_or_default();
        [table.name.clone(), host.name.clone(), domains, path_match(route.r#match.as_ref()), from]
    });
    rows.collect()
}

/// Route tables that are part of a listener. Envoy's dump has them among its routes too, other dumps do not.
pub fn inline_routes(listener: &Listener) -> Vec<RouteConfiguration> {
    let chains = listener.filter_chains.iter().chain(&listener.default_filter_chain);
    let table = |chain| match entry(chain).0 {
        Entry::Http(manager) => manager.inline,
        Entry::Tcp(_) | Entry::Unknown => None,
    };
    chains.filter_map(table).collect()
}

fn path_match(matcher: Option<&RouteMatch>) -> String {
    match matcher.and_then(|matcher| matcher.path_specifier.as_ref()) {
        Some(PathSpecifier::Prefix(prefix)) => format!("{prefix}*"),
        Some(PathSpecifier::Path(path)) => path.clone(),
        Some(PathSpecifier::PathSeparatedPrefix(prefix)) => format!("PathPrefix:{prefix}"),
        Some(PathSpecifier::SafeRegex(regex)) => format!("regex {}", regex.regex),
        Some(PathSpecifier::ConnectMatcher(_)) => "CONNECT".to_owned(),
        Some(PathSpecifier::PathMatchPolicy(policy)) => policy.name.clone(),
        None => "-".to_owned(),
    }
}

/// Address, health, locality and cluster of each endpoint.
pub fn summary_of_endpoints(assignment: &ClusterLoadAssignment) -> Vec<[String; 4]> {
    let endpoints = target::endpoints(assignment).into_iter();
    let row = |endpoint: crate::explanation::EndpointStep| {
        let locality = if endpoint.locality.is_empty() { "-".to_owned() } else { endpoint.locality };
        [endpoint.address, endpoint.health.to_uppercase(), locality, assignment.cluster_name.clone()]
    };
    endpoints.map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::{Cluster, ClusterSummary, object_name, summary_of_cluster};

    #[test]
    fn names_of_clusters_are_split() {
        let cluster = |name: &str| summary_of_cluster(&Cluster { name: name.to_owned(), ..Cluster::default() });
        let ClusterSummary { host, port, subset, direction, .. } = cluster("outbound|80|v1|cart.shop");
        assert_eq!([&*host, &port, &subset, &direction], ["cart.shop", "80", "v1", "outbound"]);
        assert_eq!(cluster("BlackHoleCluster").host, "BlackHoleCluster");
        assert_eq!(object_name("/apis/networking.istio.io/v1/namespaces/shop/destination-rule/cart"), "cart.shop");
    }
}
