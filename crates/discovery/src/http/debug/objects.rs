//! Services and endpoints as JSON in the format of upstream's Go structs, including their capital letters.

use model::endpoint::{Endpoint, Health, TlsMode};
use model::labels::Labels;
use model::port::Port;
use model::service::{Resolution, Service, Visibility};
use serde_json::{Map, Value, json};

/// A service.
pub(super) fn service(service: &Service) -> Value {
    let mut shown = json!({
        "Attributes": {
            "ServiceRegistry": service.registry.as_str(),
            "Name": &*service.name,
            "Namespace": service.namespace.as_str(),
            "Labels": labels(&service.labels),
            "ExportTo": export_to(service),
            "LabelSelectors": labels(&service.selector),
        },
        "ports": service.ports.iter().map(port).collect::<Value>(),
        "creationTime": created(service.created),
        "hostname": service.hostname.as_str(),
        "clusterVIPs": {"Addresses": cluster_addresses(service)},
        "defaultAddress": &*service.address,
        "Resolution": resolution(service.resolution),
        "MeshExternal": service.mesh_external,
        "ResourceVersion": "",
    });
    let mut put = |name: &str, value: Value| {
        if let Some(fields) = shown.as_object_mut() {
            fields.insert(name.to_owned(), value);
        }
    };
    if !service.service_accounts.is_empty() {
        put("serviceAccounts", service.service_accounts.iter().map(|account| json!(&**account)).collect());
    }
    if let Some(address) = &service.auto_ipv4 {
        put("autoAllocatedIPv4Address", json!(&**address));
    }
    if let Some(address) = &service.auto_ipv6 {
        put("autoAllocatedIPv6Address", json!(&**address));
    }
    shown
}

/// The creation time; Go's zero time if unknown.
fn created(seconds: i64) -> String {
    match seconds {
        0 => "0001-01-01T00:00:00Z".to_owned(),
        seconds => model::config::timestamp::format(seconds),
    }
}

/// A service's port.
pub(super) fn port(port: &Port) -> Value {
    json!({"name": &*port.name, "port": port.number, "protocol": port.protocol.as_str()})
}

/// An endpoint as JSON.
pub(super) fn endpoint(endpoint: &Endpoint) -> Value {
    json!({
        "Labels": labels(&endpoint.labels),
        "Addresses": endpoint.addresses.iter().map(|address| json!(&**address)).collect::<Value>(),
        "ServicePortName": &*endpoint.service_port,
        "LegacyClusterPortKey": endpoint.service_port_number,
        "ServiceAccount": &*endpoint.service_account,
        "Network": endpoint.network.as_str(),
        "Locality": {"Label": endpoint.locality.to_string(), "ClusterID": endpoint.cluster.as_str()},
        "EndpointPort": endpoint.port,
        "LbWeight": endpoint.weight,
        "TLSMode": match endpoint.tls {
            TlsMode::Disabled => "disabled",
            TlsMode::Istio => "istio",
        },
        "Namespace": endpoint.namespace.as_str(),
        "WorkloadName": &*endpoint.workload_name,
        "HostName": &*endpoint.host_name,
        "SubDomain": &*endpoint.sub_domain,
        "HealthStatus": match endpoint.health {
            Health::Unknown => 0,
            Health::Healthy => 1,
            Health::Unhealthy => 2,
            Health::Draining => 3,
            Health::Terminating => 4,
        },
        "SendUnhealthyEndpoints": false,
        "NodeName": &*endpoint.node_name,
    })
}

/// Labels; null if there are none, as Go prints a nil map.
pub(super) fn labels(labels: &Labels) -> Value {
    if labels.is_empty() {
        return Value::Null;
    }
    labels.iter().map(|(key, value)| (key.to_string(), json!(&**value))).collect::<Map<_, _>>().into()
}

/// A set, which upstream prints as a map to empty objects.
fn export_to(service: &Service) -> Value {
    if service.export_to.is_unset() {
        return Value::Null;
    }
    let spelled = |visibility: &Visibility| match visibility {
        Visibility::Public => "*".to_owned(),
        Visibility::Private => ".".to_owned(),
        Visibility::None => "~".to_owned(),
        Visibility::Namespace(namespace) => namespace.to_string(),
    };
    service.export_to.iter().map(|visibility| (spelled(visibility), json!({}))).collect::<Map<_, _>>().into()
}

fn cluster_addresses(service: &Service) -> Value {
    if service.cluster_addresses.is_empty() {
        return Value::Null;
    }
    let of_cluster = service.cluster_addresses.iter().map(|(cluster, addresses)| {
        (cluster.to_string(), addresses.iter().map(|address| json!(&**address)).collect::<Value>())
    });
    of_cluster.collect::<Map<_, _>>().into()
}

/// Upstream's enum values.
fn resolution(resolution: Resolution) -> u8 {
    match resolution {
        Resolution::ClientSide => 0,
        Resolution::Dns => 1,
        Resolution::Passthrough => 2,
        Resolution::DnsRoundRobin => 3,
        Resolution::Alias => 4,
        Resolution::DynamicDns => 5,
    }
}
