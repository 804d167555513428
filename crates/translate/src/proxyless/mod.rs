//! Resources of gRPC applications without an Envoy (`GENERATOR: grpc`), made from those that an Envoy in their place would
//! get: listeners by `host:port` and for servers, routes by cluster name, and plain clusters. Load assignments are the same
//! for both. Fields that gRPC rejects are left out.

use api::envoy::config::cluster::v3::circuit_breakers::Thresholds;
use api::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType, EdsClusterConfig, LbPolicy};
use api::envoy::config::cluster::v3::{CircuitBreakers, Cluster};
use api::envoy::config::core::v3::{AggregatedConfigSource, ConfigSource, config_source};
use api::envoy::config::listener::v3::{ApiListener, Listener};
use api::envoy::config::route::v3::{RouteConfiguration, VirtualHost, route, route_action};
use api::envoy::extensions::filters::http::fault::v3::HttpFault;
use api::envoy::extensions::filters::http::router::v3::Router;
use api::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, HttpFilter, Rds, http_connection_manager, http_filter,
};
use api::{Any, Resource, TypeUrl, any};
use model::host::resolve_short_name;
use model::proxy::Proxy;
use prost::Message;

use crate::names::{outbound_cluster, parse_outbound_cluster};

mod server;
mod tls;

const FAULT: &str = "envoy.filters.http.fault";
const ROUTER: &str = "envoy.filters.http.router";

/// The resources that an Envoy in the client's place would get.
pub trait EnvoyResources {
    /// A resource by type and name.
    fn get(&self, kind: &TypeUrl, name: &str) -> Option<Resource>;
    /// All listeners.
    fn listeners(&self) -> Vec<Resource>;
}

/// A gRPC application without an Envoy.
#[derive(Clone, Copy, Debug)]
pub struct GrpcClient<'a> {
    pub proxy: &'a Proxy,
    /// DNS suffix of the mesh.
    pub domain: &'a str,
}

/// The resource of this type and name for a client without an Envoy; `None` if there is none.
pub fn resource(client: GrpcClient<'_>, envoy: &impl EnvoyResources, kind: &TypeUrl, name: &str) -> Option<Resource> {
    let body = match kind {
        kind if *kind == TypeUrl::LISTENER => listener(client, envoy, name)?.encode_to_vec(),
        kind if *kind == TypeUrl::ROUTE => routes(envoy, name)?.encode_to_vec(),
        kind if *kind == TypeUrl::CLUSTER => cluster(envoy, name)?.encode_to_vec(),
        _ => return None,
    };
    Some(Resource::encoded(name, body))
}

fn listener(client: GrpcClient<'_>, envoy: &impl EnvoyResources, name: &str) -> Option<Listener> {
    if let Some(address) = name.strip_prefix(server::PREFIX) {
        return server::listener(client.proxy, envoy, name, address);
    }
    let (host, port) = name.rsplit_once(':')?;
    let cluster = known_cluster(client, envoy, host, port.parse().ok()?)?;
    let manager = HttpConnectionManager {
        http_filters: vec![filter(FAULT, any(&HttpFault::default())), router()],
        route_specifier: Some(http_connection_manager::RouteSpecifier::Rds(Rds {
            config_source: Some(aggregated()),
            route_config_name: cluster,
        })),
        ..HttpConnectionManager::default()
    };
    let api_listener = Some(ApiListener { api_listener: Some(any(&manager)) });
    Some(Listener { name: name.to_owned(), api_listener, ..Listener::default() })
}

/// The cluster of a host that may be written short: `web`, `web.shop`, `web.shop.svc`.
fn known_cluster(client: GrpcClient<'_>, envoy: &impl EnvoyResources, host: &str, port: u16) -> Option<String> {
    let domain = client.domain;
    let short = resolve_short_name(host, client.proxy.namespace.as_str(), domain).to_string();
    let hosts = [host.to_owned(), short, format!("{host}.svc.{domain}"), format!("{host}.{domain}")];
    let clusters = hosts.iter().map(|host| outbound_cluster(port, "", host));
    clusters.into_iter().find(|cluster| envoy.get(&TypeUrl::CLUSTER, cluster).is_some())
}

/// The virtual hosts of one service and port.
fn routes(envoy: &impl EnvoyResources, name: &str) -> Option<RouteConfiguration> {
    let cluster = parse_outbound_cluster(name)?;
    let (host, port) = (cluster.host.to_string(), cluster.port);
    // Services whose protocol is detected have a table each.
    let tables = [port.to_string(), format!("{host}:{port}")];
    let tables = tables.iter().filter_map(|table| envoy.get(&TypeUrl::ROUTE, table));
    let mut tables = tables.filter_map(|table| RouteConfiguration::decode(table.body.joined()).ok());
    let found = tables.find_map(|table| {
        let hosts: Vec<VirtualHost> =
            table.virtual_hosts.into_iter().filter(|vhost| serves(vhost, &host, port)).collect();
        (!hosts.is_empty()).then_some(hosts)
    });
    let virtual_hosts = found?.into_iter().map(|vhost| for_grpc(vhost, port)).collect();
    Some(RouteConfiguration { name: name.to_owned(), virtual_hosts, ..RouteConfiguration::default() })
}

fn serves(vhost: &VirtualHost, host: &str, port: u16) -> bool {
    let with_port = format!("{host}:{port}");
    vhost.domains.iter().any(|domain| {
        let wildcard =
            domain.strip_prefix("*.").is_some_and(|rest| host.strip_suffix(rest).is_some_and(|h| h.ends_with('.')));
        domain.eq_ignore_ascii_case(host) || domain.eq_ignore_ascii_case(&with_port) || wildcard
    })
}

/// gRPC compares domains with `host:port`, and rejects settings of filters that it does not have.
fn for_grpc(mut vhost: VirtualHost, port: u16) -> VirtualHost {
    let suffix = format!(":{port}");
    let with_port: Vec<String> = vhost
        .domains
        .iter()
        .filter(|domain| !domain.ends_with(&suffix))
        .map(|domain| format!("{domain}{suffix}"))
        .collect();
    for domain in with_port {
        if !vhost.domains.contains(&domain) {
            vhost.domains.push(domain);
        }
    }
    let is_known = |name: &String, _: &mut Any| name == FAULT;
    vhost.typed_per_filter_config.retain(is_known);
    for route in &mut vhost.routes {
        route.typed_per_filter_config.retain(is_known);
        if let Some(route::Action::Route(action)) = &mut route.action
            && let Some(route_action::ClusterSpecifier::WeightedClusters(weighted)) = &mut action.cluster_specifier
        {
            weighted.clusters.iter_mut().for_each(|cluster| cluster.typed_per_filter_config.retain(is_known));
        }
    }
    vhost
}

/// A cluster with endpoints from EDS. gRPC balances round robin; of Envoy's settings it has ring hash, the limit of
/// requests and mutual TLS if a rule asks for it.
fn cluster(envoy: &impl EnvoyResources, name: &str) -> Option<Cluster> {
    let given = Cluster::decode(envoy.get(&TypeUrl::CLUSTER, name)?.body.joined()).ok()?;
    if given.cluster_discovery_type != Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into())) {
        return None;
    }
    let mut made = Cluster {
        name: name.to_owned(),
        cluster_discovery_type: given.cluster_discovery_type,
        eds_cluster_config: Some(EdsClusterConfig { eds_config: Some(aggregated()), service_name: name.to_owned() }),
        circuit_breakers: request_limit(given.circuit_breakers.as_ref()),
        transport_socket: given.transport_socket.as_ref().and_then(tls::client),
        ..Cluster::default()
    };
    if given.lb_policy == i32::from(LbPolicy::RingHash) {
        (made.lb_policy, made.lb_config) = (given.lb_policy, given.lb_config);
    }
    Some(made)
}

fn request_limit(given: Option<&CircuitBreakers>) -> Option<CircuitBreakers> {
    let most = given?.thresholds.first()?.max_requests.filter(|most| *most < u32::MAX)?;
    let limit = Thresholds { max_requests: Some(most), ..Thresholds::default() };
    Some(CircuitBreakers { thresholds: vec![limit], ..CircuitBreakers::default() })
}

fn aggregated() -> ConfigSource {
    let ads = config_source::ConfigSourceSpecifier::Ads(AggregatedConfigSource {});
    ConfigSource { config_source_specifier: Some(ads), ..ConfigSource::default() }
}

fn router() -> HttpFilter {
    filter(ROUTER, any(&Router::default()))
}

fn filter(name: &str, config: Any) -> HttpFilter {
    let config_type = Some(http_filter::ConfigType::TypedConfig(config));
    HttpFilter { name: name.to_owned(), config_type, ..HttpFilter::default() }
}
