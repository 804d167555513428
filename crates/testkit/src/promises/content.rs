//! The content of responses that promises are about: names, hashes, endpoints of load assignments, clusters of routes, and
//! the markers found in the bytes.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::envoy::config::core::v3::HealthStatus;
use api::envoy::config::core::v3::address::Address;
use api::envoy::config::endpoint::v3::ClusterLoadAssignment;
use api::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use api::envoy::config::route::v3::RouteConfiguration;
use api::envoy::config::route::v3::route::Action;
use api::envoy::config::route::v3::route_action::ClusterSpecifier;
use api::envoy::service::discovery::v3::{DeltaDiscoveryResponse, DiscoveryResponse};
use api::{Any, TypeUrl};
use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

/// The types that recorded proxies subscribe to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceKind {
    Clusters,
    Endpoints,
    Listeners,
    Routes,
    Secrets,
}

impl ResourceKind {
    pub fn of(url: &str) -> Option<ResourceKind> {
        let known = [
            (TypeUrl::CLUSTER, ResourceKind::Clusters),
            (TypeUrl::ENDPOINT, ResourceKind::Endpoints),
            (TypeUrl::LISTENER, ResourceKind::Listeners),
            (TypeUrl::ROUTE, ResourceKind::Routes),
            (TypeUrl::SECRET, ResourceKind::Secrets),
        ];
        known.into_iter().find(|(known, _)| known.as_str() == url).map(|(_, kind)| kind)
    }

    /// Whether a state-of-the-world response has all resources of the type.
    pub(super) fn is_complete(self) -> bool {
        matches!(self, ResourceKind::Clusters | ResourceKind::Listeners)
    }
}

/// Bytes that only the proxies of these names may receive.
#[derive(Clone, Debug)]
pub struct Marker {
    pub bytes: Vec<u8>,
    pub allowed: BTreeSet<Arc<str>>,
}

/// One response.
#[derive(Clone, Debug, PartialEq)]
pub struct ResponseContent {
    pub kind: ResourceKind,
    pub nonce: String,
    /// Whether resources that are not in the response no longer exist.
    pub is_complete: bool,
    pub resources: Vec<ResourceContent>,
    pub removed: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResourceContent {
    pub name: String,
    pub hash: u64,
    /// Addresses of endpoints that are not unhealthy; empty for other types.
    pub endpoints: BTreeSet<String>,
    /// Clusters that a route table leads to.
    pub targets: BTreeSet<String>,
    /// Numbers of the markers in its bytes.
    pub markers: Vec<usize>,
}

pub(super) fn of_delta(response: &DeltaDiscoveryResponse, markers: &[Marker]) -> Option<ResponseContent> {
    let kind = ResourceKind::of(&response.type_url)?;
    let empty = Any::default();
    let resources = response.resources.iter().map(|resource| {
        let body = resource.resource.as_ref().unwrap_or(&empty);
        of_resource(kind, &resource.name, &body.value, markers)
    });
    Some(ResponseContent {
        kind,
        nonce: response.nonce.clone(),
        is_complete: false,
        resources: resources.collect(),
        removed: response.removed_resources.clone(),
    })
}

pub(super) fn of_sotw(response: &DiscoveryResponse, markers: &[Marker]) -> Option<ResponseContent> {
    let kind = ResourceKind::of(&response.type_url)?;
    let resources = response.resources.iter().map(|any| of_resource(kind, &name_in(&any.value), &any.value, markers));
    Some(ResponseContent {
        kind,
        nonce: response.nonce.clone(),
        is_complete: kind.is_complete(),
        resources: resources.collect(),
        removed: Vec::new(),
    })
}

fn of_resource(kind: ResourceKind, name: &str, body: &[u8], markers: &[Marker]) -> ResourceContent {
    let found = |marker: &Marker| body.windows(marker.bytes.len()).any(|window| window == marker.bytes);
    ResourceContent {
        name: name.to_owned(),
        hash: xxh3_64(body),
        endpoints: if kind == ResourceKind::Endpoints { endpoints(body) } else { BTreeSet::new() },
        targets: if kind == ResourceKind::Routes { targets(body) } else { BTreeSet::new() },
        markers: markers.iter().enumerate().filter(|(_, marker)| found(marker)).map(|(number, _)| number).collect(),
    }
}

/// The name of a resource: field 1 of all types that are subscribed to.
pub(super) fn name_in(body: &[u8]) -> String {
    /// Any of them, reduced to its name.
    #[derive(Clone, PartialEq, Message)]
    struct NamedResource {
        #[prost(string, tag = "1")]
        name: String,
    }
    NamedResource::decode(body).unwrap_or_default().name
}

fn endpoints(body: &[u8]) -> BTreeSet<String> {
    let assignment = ClusterLoadAssignment::decode(body).unwrap_or_default();
    let all = assignment.endpoints.into_iter().flat_map(|locality| locality.lb_endpoints);
    let usable = all.filter(|endpoint| endpoint.health_status != HealthStatus::Unhealthy as i32);
    let address = |host| match host {
        HostIdentifier::Endpoint(endpoint) => match endpoint.address?.address? {
            Address::SocketAddress(socket) => Some(socket.address),
            _ => None,
        },
        HostIdentifier::EndpointName(_) => None,
    };
    usable.filter_map(|endpoint| address(endpoint.host_identifier?)).collect()
}

fn targets(body: &[u8]) -> BTreeSet<String> {
    let table = RouteConfiguration::decode(body).unwrap_or_default();
    let routes = table.virtual_hosts.into_iter().flat_map(|host| host.routes);
    let actions = routes.filter_map(|route| match route.action {
        Some(Action::Route(action)) => action.cluster_specifier,
        _ => None,
    });
    let names = |target| match target {
        ClusterSpecifier::Cluster(name) => vec![name],
        ClusterSpecifier::WeightedClusters(weighted) => weighted.clusters.into_iter().map(|c| c.name).collect(),
        _ => Vec::new(),
    };
    actions.flat_map(names).collect()
}
