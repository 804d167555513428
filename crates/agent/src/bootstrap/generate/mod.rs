//! Generates the bootstrap, equivalent to upstream's, as JSON. `clusters` and `listeners` generate the static resources.

mod clusters;
mod listeners;

use std::time::Duration;

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::families::Families;
use super::stats::StatsSettings;
use super::tracers::{Collector, collector};
use super::{AdsApiType, BootstrapInput, Xds, socket_address};

/// Runtime flags that upstream sets. ProxyConfig may override or remove them.
const RUNTIME: &[(&str, RuntimeFlag)] = &[
    ("re2.max_program_size.error_level", RuntimeFlag::Text("32768")),
    (
        "envoy.deprecated_features:envoy.config.listener.v3.Listener.hidden_envoy_deprecated_use_original_dst",
        RuntimeFlag::On(true),
    ),
    ("envoy.reloadable_features.http_reject_path_with_fragment", RuntimeFlag::On(false)),
    ("envoy.reloadable_features.fixed_heap_use_allocated", RuntimeFlag::On(true)),
    // envoyproxy/envoy#45212
    ("envoy.reloadable_features.coalesce_lb_rebuilds_on_batch_update", RuntimeFlag::On(false)),
];
const MAX_CONNECTIONS: &str = "overload.global_downstream_max_connections";
const MAX_CONNECTIONS_METADATA: &str = "ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS";

enum RuntimeFlag {
    Text(&'static str),
    On(bool),
}

/// Generates the bootstrap.
pub fn generate(input: &BootstrapInput) -> Result<Value> {
    let families = Families::of(&input.ips, input.features.dual_stack);
    let collector = collector(input)?;
    let mut bootstrap = json!({
        "application_log_config": {"log_format": log_format(input.log_as_json)},
        "node": node(input),
        "layered_runtime": {"layers": [
            {"name": "global config", "static_layer": runtime(input)},
            {"name": "admin", "admin_layer": {}},
        ]},
        "bootstrap_extensions": extensions(input),
        "admin": admin(input, families),
        "dynamic_resources": dynamic_resources(input.api_type, &input.xds),
        "static_resources": {
            "clusters": clusters::all(input, families, collector.as_ref())?,
            "listeners": listeners::all(input, families),
        },
        "overload_manager": overload_manager(input),
        "deferred_stat_options": {"enable_deferred_creation_stats": true},
    });
    add_stats(&mut bootstrap, input)?;
    if let Some(Collector { tracing, .. }) = collector {
        bootstrap["tracing"] = tracing;
    }
    if let Some(manager) = cluster_manager(input) {
        bootstrap["cluster_manager"] = manager;
    }
    Ok(bootstrap)
}

fn log_format(as_json: bool) -> Value {
    match as_json {
        true => json!({"json_format": {
            "time": "%Y-%m-%dT%T.%fZ",
            "level": "%l",
            "scope": "envoy %n",
            "msg": "%j",
            "caller": "%g:%#",
            "thread": "%t",
        }}),
        false => json!({"text_format": "%Y-%m-%dT%T.%fZ\t%l\tenvoy %n %g:%#\t%v\tthread=%t"}),
    }
}

fn node(input: &BootstrapInput) -> Value {
    let node = &input.node;
    let parts = ["region", "zone", "sub_zone"].into_iter().zip(&node.locality).filter(|(_, text)| !text.is_empty());
    let locality: Map<String, Value> = parts.map(|(key, text)| (key.to_owned(), text.as_str().into())).collect();
    json!({"id": node.id, "cluster": node.cluster, "locality": locality, "metadata": node.metadata})
}

/// Runtime values: booleans as such, everything else as text. An empty value removes a default flag.
pub(super) fn runtime(input: &BootstrapInput) -> Map<String, Value> {
    let own = RUNTIME.iter().map(|(name, flag)| match flag {
        RuntimeFlag::Text(text) => ((*name).to_owned(), Value::from(*text)),
        RuntimeFlag::On(on) => ((*name).to_owned(), Value::from(*on)),
    });
    let mut flags: Map<String, Value> = own.collect();
    if input.features.keep_path_fragment {
        let name = "envoy.reloadable_features.http_strip_fragment_from_path_unsafe_if_disabled";
        flags.insert(name.to_owned(), "false".into());
    }
    for (name, value) in &input.config.runtime_values {
        match value.as_str() {
            "" => flags.remove(name),
            "true" => flags.insert(name.clone(), true.into()),
            "false" => flags.insert(name.clone(), false.into()),
            text => flags.insert(name.clone(), text.into()),
        };
    }
    flags
}

fn extensions(input: &BootstrapInput) -> Value {
    let extension = |name: &str, message: &str, value: Value| {
        let config = json!({
            "@type": "type.googleapis.com/udpa.type.v1.TypedStruct",
            "type_url": format!("type.googleapis.com/{message}"),
            "value": value,
        });
        json!({"name": name, "typed_config": config})
    };
    let internal_listener = extension(
        "envoy.bootstrap.internal_listener",
        "envoy.extensions.bootstrap.internal_listener.v3.InternalListener",
        json!({"buffer_size_kb": 64}),
    );
    let discovery = input.features.metadata_discovery.then(|| {
        let source = json!({"config_source": {"ads": {}}});
        extension("metadata_discovery", "istio.workload.BootstrapExtension", source)
    });
    discovery.into_iter().chain([internal_listener]).collect()
}

fn admin(input: &BootstrapInput, families: Families) -> Value {
    json!({
        "access_log": [{
            "name": "envoy.access_loggers.file",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
                "path": "/dev/null",
            },
        }],
        "profile_path": "/var/lib/istio/data/envoy.prof",
        "address": address(families.localhost, input.config.proxy_admin_port),
    })
}

/// No initial fetch timeout: Envoy must not start serving without its configuration.
fn dynamic_resources(api_type: AdsApiType, xds: &Xds) -> Value {
    let from_ads = json!({"ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"});
    let api_type = match api_type {
        AdsApiType::Delta => "DELTA_GRPC",
        AdsApiType::Sotw => "GRPC",
    };
    json!({
        "lds_config": from_ads.clone(),
        "cds_config": from_ads,
        "ads_config": {
            "api_type": api_type,
            "set_node_on_first_message_only": true,
            "transport_api_version": "V3",
            "grpc_services": [{"envoy_grpc": ads_service(xds)}],
        },
    })
}

/// With the relay Envoy retries quickly instead of every 30 s: the relay itself backs off from the control plane, so
/// Envoy reconnects as soon as the control plane is back.
fn ads_service(xds: &Xds) -> Value {
    let mut service = json!({"cluster_name": "xds-grpc"});
    if let Xds::Relay(_) = xds {
        service["retry_policy"] = json!({"retry_back_off": {"base_interval": "0.5s", "max_interval": "2s"}});
    }
    service
}

fn overload_manager(input: &BootstrapInput) -> Value {
    json!({"resource_monitors": [{
        "name": "envoy.resource_monitors.global_downstream_max_connections",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
            "max_active_downstream_connections": max_connections(input),
        },
    }]})
}

/// From metadata, else from the deprecated runtime value, else unlimited.
pub(super) fn max_connections(input: &BootstrapInput) -> i64 {
    let config = &input.config;
    let metadata = config.proxy_metadata.get(MAX_CONNECTIONS_METADATA);
    let number = |text: Option<&String>| text.and_then(|text| text.parse().ok());
    number(metadata).or_else(|| number(config.runtime_values.get(MAX_CONNECTIONS))).unwrap_or(i32::MAX.into())
}

fn add_stats(bootstrap: &mut Value, input: &BootstrapInput) -> Result<()> {
    let stats = StatsSettings::of(input);
    bootstrap["stats_config"] = stats.json(input.features.metadata_discovery);
    for (name, interval) in [("stats_flush_interval", stats.flush), ("stats_eviction_interval", stats.eviction)] {
        if let Some(interval) = interval {
            bootstrap[name] = seconds(interval).into();
        }
    }
    let mut sinks = Vec::new();
    if !clusters::metrics_service(input).is_empty() {
        sinks.push(json!({
            "name": "envoy.stat_sinks.metrics_service",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.config.metrics.v3.MetricsServiceConfig",
                "transport_api_version": "V3",
                "grpc_service": {"envoy_grpc": {"cluster_name": clusters::METRICS_SERVICE}},
            },
        }));
    }
    let statsd = &input.config.statsd_udp_address;
    if !statsd.is_empty() {
        let address = socket_address("statsd", statsd, input.host_ip.as_deref())?;
        sinks.push(json!({
            "name": "envoy.stat_sinks.statsd",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.config.metrics.v3.StatsdSink",
                "address": {"socket_address": address},
            },
        }));
    }
    if !sinks.is_empty() {
        bootstrap["stats_sinks"] = sinks.into();
    }
    Ok(())
}

fn cluster_manager(input: &BootstrapInput) -> Option<Value> {
    let load_stats = input.node.metadata.get("LOAD_STATS_CONFIG_JSON").and_then(Value::as_str);
    let load_stats = load_stats.and_then(|text| serde_json::from_str::<Value>(text).ok());
    let has_log = !input.outlier_log_path.is_empty();
    if !has_log && load_stats.is_none() && !input.features.self_discovery {
        return None;
    }
    let mut manager = json!({"enable_deferred_cluster_creation": true});
    if input.features.self_discovery {
        manager["local_cluster_name"] = clusters::LOCAL.into();
    }
    if has_log {
        manager["outlier_detection"] = json!({"event_log_path": input.outlier_log_path});
    }
    if let Some(config) = load_stats {
        manager["load_stats_config"] = config;
    }
    Some(manager)
}

/// A duration in protobuf JSON format.
pub(super) fn seconds(duration: Duration) -> String {
    match duration.subsec_nanos() {
        0 => format!("{}s", duration.as_secs()),
        nanos => format!("{}.{nanos:09}s", duration.as_secs()),
    }
}

fn address(ip: &str, port: impl Into<i64>) -> Value {
    json!({"socket_address": {"protocol": "TCP", "address": ip, "port_value": port.into()}})
}

impl Xds {
    /// The socket of the relay, if Envoy uses it.
    pub(super) fn socket(&self) -> Option<&str> {
        match self {
            Xds::Relay(path) => Some(path),
            Xds::Direct(_) => None,
        }
    }
}
