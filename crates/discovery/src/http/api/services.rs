//! Services of all registries, with the health of their endpoints.

use std::collections::BTreeMap;

use model::endpoint::Health;
use model::service::{Resolution, Service};
use model::snapshot::Snapshot;
use schemars::JsonSchema;
use serde::Serialize;

use super::{ApiQuery, ApiResult, Pages, json_of};

/// Services in one answer unless fewer are asked for.
const MOST: usize = 10_000;

#[derive(Serialize, JsonSchema)]
pub(super) struct ServiceList {
    /// Services that match.
    total: usize,
    /// Number of all services by registry.
    registries: BTreeMap<&'static str, usize>,
    services: Vec<ServiceEntry>,
}

#[derive(Serialize, JsonSchema)]
struct ServiceEntry {
    host: String,
    namespace: String,
    registry: &'static str,
    address: String,
    resolution: &'static str,
    external: bool,
    ports: Vec<PortEntry>,
    endpoints: usize,
    healthy: usize,
}

#[derive(Serialize, JsonSchema)]
struct PortEntry {
    number: u16,
    name: String,
    protocol: &'static str,
}

/// Number of endpoints of a service, and of those that are healthy.
pub(super) fn health(snapshot: &Snapshot, service: &Service) -> (usize, usize) {
    let endpoints = snapshot.endpoints.of(&service.key());
    endpoints.fold((0, 0), |(all, healthy), endpoint| (all + 1, healthy + usize::from(is_healthy(endpoint.health))))
}

/// Endpoints without health checks count as healthy, as for Envoy.
fn is_healthy(health: Health) -> bool {
    matches!(health, Health::Healthy | Health::Unknown)
}

pub(super) fn list(pages: &Pages, query: &ApiQuery) -> ApiResult {
    let published = pages.pilot().world().now();
    let snapshot = &published.snapshot;
    let mut registries: BTreeMap<&'static str, usize> = BTreeMap::new();
    snapshot.services.iter().for_each(|service| *registries.entry(service.registry.as_str()).or_default() += 1);
    let wanted = snapshot.services.iter().filter(|service| {
        query.is_in("name", &service.hostname)
            && query.is("namespace", &service.namespace)
            && query.is("registry", service.registry.as_str())
    });
    let wanted: Vec<_> = wanted.collect();
    let (offset, limit) = (query.number("offset", 0)?, query.number("limit", MOST)?);
    let services = wanted.iter().skip(offset).take(limit.min(MOST)).map(|service| entry(snapshot, service)).collect();
    json_of(&ServiceList { total: wanted.len(), registries, services })
}

fn entry(snapshot: &Snapshot, service: &Service) -> ServiceEntry {
    let (endpoints, healthy) = health(snapshot, service);
    ServiceEntry {
        host: service.hostname.to_string(),
        namespace: service.namespace.to_string(),
        registry: service.registry.as_str(),
        address: service.address.to_string(),
        resolution: match service.resolution {
            Resolution::ClientSide => "static",
            Resolution::Passthrough => "passthrough",
            resolution if resolution.is_dns() => "dns",
            _ => "other",
        },
        external: service.mesh_external,
        ports: service
            .ports
            .iter()
            .map(|port| PortEntry {
                number: port.number,
                name: port.name.to_string(),
                protocol: port.protocol.as_str(),
            })
            .collect(),
        endpoints,
        healthy,
    }
}
