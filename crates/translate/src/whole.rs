//! Everything that an Envoy asks for, found as Envoy finds it: clusters and listeners, the load assignments of discovered
//! clusters, and the route tables that listeners refer to.

use std::collections::{BTreeMap, BTreeSet};

use api::envoy::config::cluster::v3::Cluster;
use api::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType};
use api::envoy::config::listener::v3::Listener;
use api::envoy::config::listener::v3::filter::ConfigType;
use api::envoy::extensions::filters::network::http_connection_manager::v3::HttpConnectionManager;
use api::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use api::{Resource, TypeUrl};
use model::problem::Problem;
use prost::Message;
use scope::View;

use crate::recipe::{recipe, recipes};

/// The resources of a client by type.
pub fn whole(view: &View, problems: &mut Vec<Problem>) -> BTreeMap<TypeUrl, Vec<Resource>> {
    let mut found = BTreeMap::new();
    for kind in [TypeUrl::CLUSTER, TypeUrl::LISTENER, TypeUrl::EXTENSION] {
        let made = recipes(view, &kind, problems).iter().map(|recipe| recipe.render()).collect();
        found.insert(kind, made);
    }
    let none = Vec::new();
    let clusters: &Vec<Resource> = found.get(&TypeUrl::CLUSTER).unwrap_or(&none);
    let discovered = clusters.iter().filter(|cluster| is_discovered(cluster));
    let assignments = discovered.filter_map(|cluster| recipe(view, &TypeUrl::ENDPOINT, &cluster.name, problems));
    let assignments: Vec<Resource> = assignments.map(|recipe| recipe.render()).collect();
    let listeners = found.get(&TypeUrl::LISTENER).unwrap_or(&none);
    let names: BTreeSet<String> = listeners.iter().flat_map(route_names).collect();
    let tables = names.iter().filter_map(|name| recipe(view, &TypeUrl::ROUTE, name, problems));
    let tables: Vec<Resource> = tables.map(|recipe| recipe.render()).collect();
    found.insert(TypeUrl::ENDPOINT, assignments);
    found.insert(TypeUrl::ROUTE, tables);
    found
}

/// Whether Envoy asks for the load assignment of a cluster.
pub fn is_discovered(cluster: &Resource) -> bool {
    let cluster = Cluster::decode(&*cluster.body.joined()).unwrap_or_default();
    matches!(cluster.cluster_discovery_type, Some(ClusterDiscoveryType::Type(kind)) if kind == DiscoveryType::Eds as i32)
}

/// The route tables that a listener refers to.
pub fn route_names(listener: &Resource) -> Vec<String> {
    let listener = Listener::decode(&*listener.body.joined()).unwrap_or_default();
    let chains = listener.filter_chains.iter().chain(&listener.default_filter_chain);
    let configs = chains.flat_map(|chain| &chain.filters).filter_map(|filter| match &filter.config_type {
        Some(ConfigType::TypedConfig(any)) if any.type_url.ends_with("HttpConnectionManager") => Some(&any.value),
        _ => None,
    });
    let name = |body: &Vec<u8>| match HttpConnectionManager::decode(&**body).unwrap_or_default().route_specifier {
        Some(RouteSpecifier::Rds(rds)) => Some(rds.route_config_name),
        _ => None,
    };
    configs.filter_map(name).collect()
}
