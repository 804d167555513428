//! Renders endpoints as a ClusterLoadAssignment, for EDS and for clusters with inlined endpoints.

use std::collections::BTreeMap;

use api::envoy::config::core::v3::address::Address as AddressKind;
use api::envoy::config::core::v3::socket_address::PortSpecifier;
use api::envoy::config::core::v3::{Address, HealthStatus, Locality, Metadata, Pipe, SocketAddress};
use api::envoy::config::endpoint::v3::endpoint::AdditionalAddress;
use api::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use api::envoy::config::endpoint::v3::{ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints};
use api::{Struct, Value, value};
use model::endpoint::Health;

use crate::plan::endpoints::{self as plan, EndpointsPlan, LocalityEndpoints, WorkloadLabel};

const UNIX_PREFIX: &str = "unix://";
const ISTIO: &str = "istio";
const TRANSPORT_SOCKET_MATCH: &str = "envoy.transport_socket_match";

/// The load assignment.
pub fn endpoints(plan: &EndpointsPlan) -> ClusterLoadAssignment {
    assignment(&plan.name, &plan.localities)
}

/// The load assignment of a cluster.
pub(super) fn assignment(cluster: &str, groups: &[LocalityEndpoints]) -> ClusterLoadAssignment {
    ClusterLoadAssignment {
        cluster_name: cluster.to_owned(),
        endpoints: groups.iter().map(locality).collect(),
        ..ClusterLoadAssignment::default()
    }
}

/// An IP address or name with a port, or a Unix path if the port is 0.
pub(super) fn address(text: &str, port: u32) -> Address {
    let kind = if port > 0 {
        AddressKind::SocketAddress(socket_address(text, port))
    } else {
        let path = text.strip_prefix(UNIX_PREFIX).unwrap_or(text).to_owned();
        AddressKind::Pipe(Pipe { path, ..Pipe::default() })
    };
    Address { address: Some(kind) }
}

pub(super) fn socket_address(text: &str, port: u32) -> SocketAddress {
    SocketAddress {
        address: text.to_owned(),
        port_specifier: Some(PortSpecifier::PortValue(port)),
        ..SocketAddress::default()
    }
}

/// A string value of a Struct.
pub(super) fn text(value: impl Into<String>) -> Value {
    Value { kind: Some(value::Kind::StringValue(value.into())) }
}

/// A Struct with these fields.
pub(super) fn fields<const N: usize>(pairs: [(&str, Value); N]) -> Struct {
    Struct { fields: pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect() }
}

fn locality(group: &LocalityEndpoints) -> LocalityLbEndpoints {
    let place = &group.locality;
    LocalityLbEndpoints {
        locality: Some(Locality {
            region: place.region().to_owned(),
            zone: place.zone().to_owned(),
            sub_zone: place.sub_zone().to_owned(),
        }),
        lb_endpoints: group.endpoints.iter().map(endpoint).collect(),
        load_balancing_weight: group.weight,
        priority: group.priority,
        ..LocalityLbEndpoints::default()
    }
}

fn endpoint(plan: &plan::LbEndpoint) -> LbEndpoint {
    let more = plan.more_addresses.iter().map(|a| AdditionalAddress { address: Some(address(a, plan.port)) });
    LbEndpoint {
        host_identifier: Some(HostIdentifier::Endpoint(Endpoint {
            address: Some(address(&plan.address, plan.port)),
            additional_addresses: more.collect(),
            ..Endpoint::default()
        })),
        health_status: health(plan.health) as i32,
        load_balancing_weight: Some(plan.weight),
        metadata: Some(metadata(plan)),
    }
}

fn health(health: Health) -> HealthStatus {
    match health {
        Health::Unknown => HealthStatus::Unknown,
        Health::Healthy => HealthStatus::Healthy,
        Health::Unhealthy => HealthStatus::Unhealthy,
        Health::Draining | Health::Terminating => HealthStatus::Draining,
    }
}

fn metadata(plan: &plan::LbEndpoint) -> Metadata {
    let mut filter_metadata = BTreeMap::new();
    if plan.mutual_tls {
        filter_metadata.insert(TRANSPORT_SOCKET_MATCH.to_owned(), fields([("tlsMode", text(ISTIO))]));
    }
    if let Some(label) = &plan.workload {
        filter_metadata.insert(ISTIO.to_owned(), fields([("workload", text(workload(label)))]));
    }
    Metadata { filter_metadata, ..Metadata::default() }
}

/// The format that Istio's telemetry filter parses.
fn workload(label: &WorkloadLabel) -> String {
    let WorkloadLabel { name, namespace, canonical_name, canonical_revision, cluster } = label;
    format!("{name};{namespace};{canonical_name};{canonical_revision};{cluster}")
}
