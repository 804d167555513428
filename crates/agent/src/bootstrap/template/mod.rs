//! Renders bootstrap templates in Go text/template syntax, with upstream's parameter names.
//! Supported: fields and variables, `if`, `else`, `range`, `with`, pipes, and the functions in `evaluate`.
//! Rejected with the line number: `define`, `template`, `block`, methods, other functions.

mod evaluate;
mod parse;

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::families::Families;
use super::generate::{max_connections, runtime, seconds};
use super::stats::StatsSettings;
use super::tracers::collector;
use super::{AdsApiType, BootstrapInput, socket_address};
use crate::settings::discovery_addresses;

/// Renders a template.
pub fn render(text: &str, input: &BootstrapInput) -> Result<String> {
    let nodes = parse::parse(text)?;
    evaluate::evaluate(&nodes, &Value::Object(parameters(input)?))
}

/// The parameters of upstream's current template and of Pilot 0.8's.
fn parameters(input: &BootstrapInput) -> Result<Map<String, Value>> {
    let parts = [identity(input), places(input)?, collectors(input)?, counters(input), features(input)];
    let objects = parts.into_iter().filter_map(|part| match part {
        Value::Object(fields) => Some(fields),
        _ => None,
    });
    Ok(objects.flatten().collect())
}

fn identity(input: &BootstrapInput) -> Value {
    let node = &input.node;
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
fn places(input: &BootstrapInput) -> Result<Value> {
    let families = Families::of(&input.ips, input.features.dual_stack);
    let (additional_localhost, additional_wildcard) = families.additional.unzip();
    // Templates know one address.
    let discovery = discovery_addresses(&input.config).first().copied().unwrap_or_default();
    let host = discovery.split(':').next().unwrap_or_default();
    Ok(json!({
        "localhost": families.localhost,
        "wildcard": families.wildcard,
        "dns_lookup_family": families.dns_lookup,
        "dual_stack": families.additional.is_some(),
        "additional_localhost": additional_localhost,
        "additional_wildcard": additional_wildcard,
        "envoy_status_port": input.ports.status,
        "envoy_prometheus_port": input.ports.prometheus,
        "secure_metrics_port": input.ports.secure_metrics,
        "secure_merged_metrics_port": input.ports.secure_merged_metrics,
        "discovery_address": discovery,
        "discovery_host": host,
        "pilot_grpc_address": address("discovery", discovery, input)?,
        "pilot_SAN": Some(&input.control_plane_names).filter(|names| !names.is_empty()),
        "workload_identity_socket_file": input.sds_socket.rsplit('/').next(),
        "sds_socket": input.sds_socket,
        "xds_socket": input.xds.socket(),
        "custom_file_path": input.sds_files_socket,
    }))
}

fn collectors(input: &BootstrapInput) -> Result<Value> {
    let collector = collector(input)?;
    let tracer = |name: &str| {
        collector.as_ref().filter(|it| it.name == name).map_or(Value::Null, |it| it.address.to_string().into())
    };
    Ok(json!({
        "statsd": address("statsd", &input.config.statsd_udp_address, input)?,
        "zipkin": tracer("zipkin"),
        "lightstep": tracer("lightstep"),
        "datadog": tracer("datadog_agent"),
        "tracing_tls": collector.as_ref().and_then(|it| it.transport_socket.as_ref()).map(Value::to_string),
        "outlier_log_path": input.outlier_log_path,
        "log_json": input.log_as_json,
    }))
}

fn counters(input: &BootstrapInput) -> Value {
    let stats = StatsSettings::of(input);
    let config = &input.config;
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

/// Boolean settings, runtime flags and limits.
fn features(input: &BootstrapInput) -> Value {
    let api_type = match input.api_type {
        AdsApiType::Delta => "DELTA_GRPC",
        AdsApiType::Sotw => "GRPC",
    };
    json!({
        "config": go_config(input),
        "runtime_flags": Value::Object(runtime(input)).to_string(),
        "xds_type": api_type,
        "global_downstream_max_connections": max_connections(input),
        "metadata_discovery": input.features.metadata_discovery,
        "enable_self_discovery": input.features.self_discovery,
        "envoy_status_port_enable_proxy_protocol": input.features.status_proxy_protocol,
        "connect_timeout": seconds(input.connect_timeout),
        "refresh_delay": seconds(input.refresh_delay),
    })
}

/// A socket address as JSON text; null if empty.
fn address(what: &str, text: &str, input: &BootstrapInput) -> Result<Value> {
    match text {
        "" => Ok(Value::Null),
        text => socket_address(what, text, input.host_ip.as_deref()).map(|it| it.to_string().into()),
    }
}

/// ProxyConfig with Go's field names.
fn go_config(input: &BootstrapInput) -> Value {
    let config = &input.config;
    json!({
        "ConfigPath": config.config_path,
        "BinaryPath": config.binary_path,
        "CustomConfigFile": config.custom_config_file,
        "ProxyAdminPort": config.proxy_admin_port,
        "StatusPort": config.status_port,
        "Concurrency": config.concurrency.unwrap_or_default(),
        "DiscoveryAddress": discovery_addresses(config).first(),
        "StatsdUdpAddress": config.statsd_udp_address,
        "ControlPlaneAuthPolicy": config.control_plane_auth_policy,
        "AvailabilityZone": config.availability_zone,
        "StatNameLength": config.stat_name_length,
        "MeshId": config.mesh_id,
        "ProxyMetadata": config.proxy_metadata,
    })
}
