//! Bootstrap templates in the form of Go's text/template, with upstream's names for the values.
//! Known: fields and variables, `if`, `else`, `range`, `with`, pipes, and the functions in `evaluate`.
//! Not known, and refused with the line: `define`, `template`, `block`, methods, other functions.

mod evaluate;
mod parse;

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::families::Families;
use super::generate::{max_connections, runtime};
use super::stats::Stats;
use super::tracers::collector;
use super::{Ingredients, Transport, socket_address};

/// Renders a template.
pub fn render(text: &str, ingredients: &Ingredients) -> Result<String> {
    let nodes = parse::parse(text)?;
    evaluate::evaluate(&nodes, &Value::Object(parameters(ingredients)?))
}

/// The values that a template may name: those of upstream's template of today, and those of 0.8's.
fn parameters(ingredients: &Ingredients) -> Result<Map<String, Value>> {
    let parts = [
        identity(ingredients),
        places(ingredients)?,
        collectors(ingredients)?,
        counters(ingredients),
        switches(ingredients),
    ];
    let objects = parts.into_iter().filter_map(|part| match part {
        Value::Object(fields) => Some(fields),
        _ => None,
    });
    Ok(objects.flatten().collect())
}

fn identity(ingredients: &Ingredients) -> Value {
    let node = &ingredients.node;
    json!({
        "nodeID": node.id,
        "nodeType": node.id.split('~').next(),
        "cluster": node.cluster,
        "meta_json_str": Value::Object(node.metadata.clone()).to_string(),
        "metadata": node.metadata,
        "region": node.locality[0],
        "zone": node.locality[1],
        "sub_zone": node.locality[2],
        "load_stats_config_json_str": node.metadata.get("LOAD_STATS_CONFIG_JSON"),
    })
}

/// Addresses, ports and sockets.
fn places(ingredients: &Ingredients) -> Result<Value> {
    let families = Families::of(&ingredients.ips, ingredients.switches.dual_stack);
    let (additional_localhost, additional_wildcard) = families.additional.unzip();
    let discovery = &ingredients.config.discovery_address;
    let host = discovery.split(':').next().unwrap_or_default();
    Ok(json!({
        "localhost": families.localhost,
        "wildcard": families.wildcard,
        "dns_lookup_family": families.dns_lookup,
        "dual_stack": families.additional.is_some(),
        "additional_localhost": additional_localhost,
        "additional_wildcard": additional_wildcard,
        "envoy_status_port": ingredients.ports.status,
        "envoy_prometheus_port": ingredients.ports.prometheus,
        "secure_metrics_port": ingredients.ports.secure_metrics,
        "secure_merged_metrics_port": ingredients.ports.secure_merged_metrics,
        "discovery_address": discovery,
        "discovery_host": host,
        "pilot_grpc_address": address("discovery", discovery, ingredients)?,
        "pilot_SAN": [host],
        "workload_identity_socket_file": ingredients.sds_socket.rsplit('/').next(),
        "sds_socket": ingredients.sds_socket,
        "xds_socket": ingredients.xds.socket(),
        "custom_file_path": ingredients.sds_files_socket,
    }))
}

fn collectors(ingredients: &Ingredients) -> Result<Value> {
    let collector = collector(ingredients)?;
    let tracer = |name: &str| {
        collector.as_ref().filter(|it| it.name == name).map_or(Value::Null, |it| it.address.to_string().into())
    };
    Ok(json!({
        "statsd": address("statsd", &ingredients.config.statsd_udp_address, ingredients)?,
        "zipkin": tracer("zipkin"),
        "lightstep": tracer("lightstep"),
        "datadog": tracer("datadog_agent"),
        "tracing_tls": collector.as_ref().and_then(|it| it.transport_socket.as_ref()).map(Value::to_string),
        "outlier_log_path": ingredients.outlier_log_path,
        "log_json": ingredients.log_as_json,
    }))
}

fn counters(ingredients: &Ingredients) -> Value {
    let stats = Stats::of(ingredients);
    let config = &ingredients.config;
    let is_local = config.proxy_metadata.get("METRICS_LOCALHOST_ACCESS_ONLY").is_some_and(|it| it == "true");
    json!({
        "inclusionPrefix": stats.prefixes,
        "inclusionSuffix": stats.suffixes,
        "inclusionRegexps": stats.regexes,
        "extraStatTags": stats.extra_tags,
        "histogram_buckets": stats.buckets,
        "stats_flush_interval": stats.flush.map(|it| format!("{}s", it.as_secs_f64())),
        "stats_eviction_interval": stats.eviction.map(|it| format!("{}s", it.as_secs_f64())),
        "envoy_metrics_stats_compression": config.stats_compression.unwrap_or(true),
        "metrics_localhost_access_only": is_local,
    })
}

/// Switches, and what else Envoy is told.
fn switches(ingredients: &Ingredients) -> Value {
    let transport = match ingredients.transport {
        Transport::Delta => "DELTA_GRPC",
        Transport::Sotw => "GRPC",
    };
    json!({
        "config": go_config(ingredients),
        "runtime_flags": Value::Object(runtime(ingredients)).to_string(),
        "xds_type": transport,
        "global_downstream_max_connections": max_connections(ingredients),
        "metadata_discovery": ingredients.switches.metadata_discovery,
        "enable_self_discovery": ingredients.switches.self_discovery,
        "envoy_status_port_enable_proxy_protocol": ingredients.switches.status_proxy_protocol,
        // Pilot 0.8's; nothing sets them any more.
        "connect_timeout": "1s",
        "refresh_delay": "1s",
    })
}

/// A socket address as JSON text; nothing for no address.
fn address(what: &str, text: &str, ingredients: &Ingredients) -> Result<Value> {
    match text {
        "" => Ok(Value::Null),
        text => socket_address(what, text, ingredients.host_ip.as_deref()).map(|it| it.to_string().into()),
    }
}

/// ProxyConfig by the names of Go's fields.
fn go_config(ingredients: &Ingredients) -> Value {
    let config = &ingredients.config;
    json!({
        "ConfigPath": config.config_path,
        "BinaryPath": config.binary_path,
        "CustomConfigFile": config.custom_config_file,
        "ProxyAdminPort": config.proxy_admin_port,
        "StatusPort": config.status_port,
        "Concurrency": config.concurrency.unwrap_or_default(),
        "DiscoveryAddress": config.discovery_address,
        "StatsdUdpAddress": config.statsd_udp_address,
        "ControlPlaneAuthPolicy": config.control_plane_auth_policy,
        "AvailabilityZone": config.availability_zone,
        "StatNameLength": config.stat_name_length,
        "MeshId": config.mesh_id,
        "ProxyMetadata": config.proxy_metadata,
    })
}
