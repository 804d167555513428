//! Static listeners for Prometheus and for readiness probes. They bypass overload protection.

use serde_json::{Value, json};

use super::super::families::Families;
use super::super::tls;
use super::super::{BootstrapInput, FeatureFlags};
use super::address;

/// Path prefixes and their clusters.
type PathRoutes<'a> = &'a [(&'a str, &'a str)];

pub(super) fn all(input: &BootstrapInput, families: Families) -> Vec<Value> {
    let ports = input.ports;
    let mut listeners = Vec::new();
    if ports.prometheus != 0 {
        listeners.push(prometheus(input, families));
    }
    let merged: PathRoutes<'_> = &[("/stats/prometheus", "agent"), ("/metrics", "agent")];
    let own: PathRoutes<'_> = &[("/stats/prometheus", "prometheus_stats")];
    let secured =
        [(ports.secure_metrics, "secure_stats", own), (ports.secure_merged_metrics, "secure_merged_stats", merged)];
    for (port, stat_prefix, routes) in secured.into_iter().filter(|(port, ..)| *port != 0) {
        listeners.push(secure(families.wildcard, port, stat_prefix, routes));
    }
    if ports.status != 0 && input.config.status_port != 0 {
        listeners.push(readiness(ports.status, families, input.features));
    }
    listeners
}

fn listener(ip: &str, port: u16, chain: Value) -> Value {
    json!({
        "name": format!("{ip}_{port}"),
        "address": address(ip, port),
        "ignore_global_conn_limit": true,
        "bypass_overload_manager": true,
        "filter_chains": [chain],
    })
}

fn also_on(listener: &mut Value, ip: Option<&str>, port: u16) {
    if let Some(ip) = ip {
        listener["additional_addresses"] = json!([{"address": address(ip, port)}]);
    }
}

fn prometheus(input: &BootstrapInput, families: Families) -> Value {
    let metadata = &input.config.proxy_metadata;
    let is_local = metadata.get("METRICS_LOCALHOST_ACCESS_ONLY").is_some_and(|value| value == "true");
    let ip = if is_local { families.localhost } else { families.wildcard };
    let filters = if input.config.stats_compression.unwrap_or(true) { compressors() } else { Vec::new() };
    let filter = http("stats", &[("/stats/prometheus", "prometheus_stats")], filters);
    let port = input.ports.prometheus;
    let mut listener = listener(ip, port, json!({"filters": [filter]}));
    let additional = families.additional.map(|(localhost, wildcard)| if is_local { localhost } else { wildcard });
    also_on(&mut listener, additional, port);
    listener
}

fn readiness(port: u16, families: Families, features: FeatureFlags) -> Value {
    let filter = http("agent", &[("/healthz/ready", "agent")], Vec::new());
    let mut listener = listener(families.wildcard, port, json!({"filters": [filter]}));
    also_on(&mut listener, families.additional.map(|(_, wildcard)| wildcard), port);
    if features.status_proxy_protocol {
        listener["listener_filters"] = json!([{
            "name": "envoy.filters.listener.proxy_protocol",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol",
                "allow_requests_without_proxy_protocol": true,
            },
        }]);
    }
    listener
}

fn secure(ip: &str, port: u16, stat_prefix: &str, routes: PathRoutes<'_>) -> Value {
    let chain = json!({
        "filter_chain_match": {"transport_protocol": "tls"},
        "transport_socket": tls::required_of_clients(),
        "filters": [http(stat_prefix, routes, Vec::new())],
    });
    let mut listener = listener(ip, port, chain);
    listener["listener_filters"] = json!([{
        "name": "envoy.filters.listener.tls_inspector",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector",
        },
    }]);
    listener
}

fn http(stat_prefix: &str, routes: PathRoutes<'_>, mut filters: Vec<Value>) -> Value {
    let route = |(path, cluster): &(&str, &str)| json!({"match": {"prefix": path}, "route": {"cluster": cluster}});
    let routes: Vec<Value> = routes.iter().map(route).collect();
    filters.push(json!({
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
    }));
    json!({
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "codec_type": "AUTO",
            "stat_prefix": stat_prefix,
            "route_config": {"virtual_hosts": [{"name": "backend", "domains": ["*"], "routes": routes}]},
            "http_filters": filters,
        },
    })
}

/// Compression of metrics, negotiated with the client.
fn compressors() -> Vec<Value> {
    let compressor = |(name, message): (&str, &str)| {
        json!({
            "name": format!("envoy.filters.http.compressor.{name}"),
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.compressor.v3.Compressor",
                "compressor_library": {
                    "name": format!("stats_{name}"),
                    "typed_config": {
                        "@type": format!("type.googleapis.com/envoy.extensions.compression.{name}.compressor.v3.{message}"),
                    },
                },
                "response_direction_config": {"common_config": {"content_type": [
                    "text/plain",
                    "application/vnd.google.protobuf",
                    "application/openmetrics-text",
                    "application/openmetrics-protobuf",
                ]}},
            },
        })
    };
    [("brotli", "Brotli"), ("zstd", "Zstd"), ("gzip", "Gzip")].map(compressor).into()
}
