//! Static clusters: Envoy's admin port, the agent, its SDS and xDS sockets, and collectors. Grafana and istioctl use the
//! names `xds-grpc`, `agent` and `prometheus_stats`.

use anyhow::{Context, Result};
use api::istio::mesh::v1alpha1::RemoteService;
use api::istio::networking::v1alpha3::connection_pool_settings::tcp_settings::TcpKeepalive;
use model::proxy::REQUEST_METRICS_CLUSTER;
use serde_json::{Map, Value, json};

use super::super::families::Families;
use super::super::tls::{self, HttpVersion, transport_socket};
use super::super::tracers::Collector;
use super::super::{BootstrapInput, Xds, XdsSecurity, socket_address};
use super::address;
use crate::settings::discovery_addresses;

pub(super) const METRICS_SERVICE: &str = "envoy_metrics_service";
pub(super) const LOCAL: &str = "local_cluster";
const ACCESS_LOG_SERVICE: &str = "envoy_accesslog_service";

pub(super) fn all(input: &BootstrapInput, families: Families, collector: Option<&Collector>) -> Result<Vec<Value>> {
    let config = &input.config;
    let mut clusters = vec![
        local("prometheus_stats", families, config.proxy_admin_port),
        local("agent", families, config.status_port),
        pipe("sds-grpc", &input.sds_socket),
    ];
    clusters.extend(input.sds_files_socket.iter().map(|path| pipe("sds-files-grpc", path)));
    clusters.extend(input.access_log_socket.iter().map(|path| pipe(REQUEST_METRICS_CLUSTER, path)));
    clusters.push(xds(input, families)?);
    clusters.extend(collector.map(|collector| tracer(collector, families)));
    let remote = |name, address: &str, service| remote(name, address, service, input, families);
    let metrics = metrics_service(input);
    if !metrics.is_empty() {
        clusters.push(remote(METRICS_SERVICE, metrics, config.envoy_metrics_service.as_ref())?);
    }
    if let Some(service) = config.envoy_access_log_service.as_ref().filter(|service| !service.address.is_empty()) {
        clusters.push(remote(ACCESS_LOG_SERVICE, &service.address, Some(service))?);
    }
    if input.features.self_discovery {
        clusters.push(own_endpoints());
    }
    Ok(clusters)
}

/// Address of the metrics service from the new or the deprecated field; empty if unset.
pub(super) fn metrics_service(input: &BootstrapInput) -> &str {
    let config = &input.config;
    let new = config.envoy_metrics_service.as_ref().map_or("", |service| service.address.as_str());
    if new.is_empty() { &config.envoy_metrics_service_address } else { new }
}

/// A cluster with the common fields and those in `more`.
fn cluster(name: &str, kind: &str, timeout: &str, endpoint: Value, more: Value) -> Value {
    let mut cluster = json!({
        "name": name,
        // The semicolon marks the end of the name for tag extraction.
        "alt_stat_name": format!("{name};"),
        "type": kind,
        "connect_timeout": timeout,
        "lb_policy": "ROUND_ROBIN",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": endpoint}}]}],
        },
    });
    if let (Some(fields), Value::Object(more)) = (cluster.as_object_mut(), more) {
        fields.extend(more);
    }
    cluster
}

fn http2() -> Value {
    protocol(json!({}))
}

fn protocol(http2: Value) -> Value {
    json!({
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": http2},
        },
    })
}

fn local(name: &str, families: Families, port: i32) -> Value {
    cluster(name, "STATIC", "0.250s", address(families.localhost, port), json!({}))
}

fn pipe(name: &str, path: &str) -> Value {
    let more = json!({"typed_extension_protocol_options": http2()});
    cluster(name, "STATIC", "1s", json!({"pipe": {"path": path}}), more)
}

fn xds(input: &BootstrapInput, families: Families) -> Result<Value> {
    let unlimited = |priority: &str| {
        json!({
            "priority": priority,
            "max_connections": 100_000,
            "max_pending_requests": 100_000,
            "max_requests": 100_000,
        })
    };
    let mut more = json!({
        "circuit_breakers": {"thresholds": [unlimited("DEFAULT"), unlimited("HIGH")]},
        "upstream_connection_options": {"tcp_keepalive": {"keepalive_time": 300}},
        "max_requests_per_connection": 1,
        "typed_extension_protocol_options": http2(),
    });
    let security = match &input.xds {
        Xds::Relay(path) => return Ok(cluster("xds-grpc", "STATIC", "1s", json!({"pipe": {"path": path}}), more)),
        Xds::Direct(security) => *security,
    };
    let targets =
        discovery_addresses(&input.config).into_iter().map(|address| socket_address("discovery", address, None));
    let mut targets = targets.collect::<Result<Vec<Value>>>()?.into_iter();
    let target = targets.next().context("could not find a discovery address")?;
    // Without the relay Envoy itself must detect a dead connection.
    let ping = json!({"connection_keepalive": {"interval": "30s", "timeout": "10s"}});
    more["typed_extension_protocol_options"] = protocol(ping);
    more["dns_lookup_family"] = families.dns_lookup.into();
    more["respect_dns_ttl"] = true.into();
    if security == XdsSecurity::MutualTls {
        let host = target["address"].as_str().context("could not find the host of the discovery address")?;
        more["transport_socket"] = tls::own(host, &input.control_plane_names);
    }
    let mut made = cluster("xds-grpc", "STRICT_DNS", "10s", json!({"socket_address": target}), more);
    let others = targets.map(|other| json!({"endpoint": {"address": {"socket_address": other}}}));
    if let Some(endpoints) = made["load_assignment"]["endpoints"][0]["lb_endpoints"].as_array_mut() {
        endpoints.extend(others);
    }
    Ok(made)
}

fn by_name(families: Families) -> Map<String, Value> {
    let fields = json!({"respect_dns_ttl": true, "dns_lookup_family": families.dns_lookup});
    fields.as_object().cloned().unwrap_or_default()
}

fn tracer(collector: &Collector, families: Families) -> Value {
    let mut more = by_name(families);
    if let Some(socket) = &collector.transport_socket {
        more.insert("transport_socket".to_owned(), socket.clone());
    }
    match collector.http {
        HttpVersion::Http2 => more.insert("typed_extension_protocol_options".to_owned(), http2()),
        HttpVersion::Http1 => more.insert("dns_refresh_rate".to_owned(), "30s".into()),
    };
    let address = json!({"socket_address": collector.address});
    cluster(collector.name, "STRICT_DNS", "1s", address, Value::Object(more))
}

fn remote(
    name: &str,
    address: &str,
    service: Option<&RemoteService>,
    input: &BootstrapInput,
    families: Families,
) -> Result<Value> {
    let mut more = by_name(families);
    more.insert("typed_extension_protocol_options".to_owned(), http2());
    let tls = service.and_then(|service| service.tls_settings.as_ref());
    if let Some(socket) = tls.and_then(|tls| transport_socket(tls, name, &input.node.metadata, HttpVersion::Http2)) {
        more.insert("transport_socket".to_owned(), socket);
    }
    if let Some(keepalive) = service.and_then(|service| service.tcp_keepalive.as_ref()) {
        more.insert("upstream_connection_options".to_owned(), tcp_keepalive(keepalive));
    }
    let target = socket_address(name, address, input.host_ip.as_deref())?;
    Ok(cluster(name, "STRICT_DNS", "1s", json!({"socket_address": target}), Value::Object(more)))
}

fn tcp_keepalive(keepalive: &TcpKeepalive) -> Value {
    let seconds = |duration: Option<api::Duration>| duration.map_or(0, |duration| duration.seconds);
    let values = [
        ("keepalive_probes", i64::from(keepalive.probes)),
        ("keepalive_time", seconds(keepalive.time)),
        ("keepalive_interval", seconds(keepalive.interval)),
    ];
    let given = values.into_iter().filter(|(_, value)| *value > 0);
    let fields: Map<String, Value> = given.map(|(name, value)| (name.to_owned(), value.into())).collect();
    json!({"tcp_keepalive": fields})
}

/// The cluster of the proxy's own service, for zone-aware routing.
fn own_endpoints() -> Value {
    let policy = json!({
        "name": "envoy.load_balancing_policies.least_request",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest",
            "locality_lb_config": {"zone_aware_lb_config": {"min_cluster_size": "1"}},
        },
    });
    json!({
        "name": LOCAL,
        "alt_stat_name": format!("{LOCAL};"),
        "type": "EDS",
        "connect_timeout": "1s",
        "load_balancing_policy": {"policies": [{"typed_extension_config": policy}]},
        "eds_cluster_config": {
            "eds_config": {"ads": {}, "resource_api_version": "V3"},
            "service_name": LOCAL,
        },
    })
}
