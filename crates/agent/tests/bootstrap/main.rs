//! Every bootstrap setting, from flags and environment to validation by a real Envoy.

#![allow(clippy::unwrap_used, reason = "a test has no better answer than a panic")]

use std::fs;
use std::process::Command;

use agent::args::{Cli, ProxyArgs};
use agent::bootstrap::{self, BootstrapInput, BootstrapSource};
use agent::environment::Environment;
use agent::plan::plan;
use serde_json::{Value, json};
use testkit::servers;

mod bootstrap_sources;

/// One setting: its source, and where it appears in the bootstrap.
struct Case {
    name: &'static str,
    flags: &'static str,
    env: &'static [(&'static str, &'static str)],
    config: &'static str,
    annotations: &'static [(&'static str, &'static str)],
    shows: (&'static str, Value),
}

fn case(name: &'static str, pointer: &'static str, value: Value) -> Case {
    Case { name, flags: "", env: &[], config: "", annotations: &[], shows: (pointer, value) }
}

fn proxy(flags: &str) -> ProxyArgs {
    let line = format!("pilot-agent proxy --ip 10.0.0.1 --id a-1.shop {flags}");
    match Cli::read(line.split_whitespace().map(String::from)).unwrap().command {
        agent::args::AgentCommand::Proxy(proxy) => *proxy,
        other => panic!("not proxy: {other:?}"),
    }
}

fn plan_of(case: &Case) -> (BootstrapSource, BootstrapInput) {
    let config = [("PROXY_CONFIG", case.config)];
    let environment: Environment = case.env.iter().chain(&config).copied().collect();
    let plan = plan(&proxy(case.flags), &environment).unwrap_or_else(|e| panic!("{}: {e:#}", case.name));
    let mut bootstrap_input = plan.bootstrap_input;
    bootstrap_input.node.annotations = case.annotations.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    (plan.bootstrap_source, bootstrap_input)
}

/// Validates a bootstrap with Envoy; returns the error.
fn validation_error(text: &str, extension: &str) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(format!("bootstrap.{extension}"));
    fs::write(&path, text).unwrap();
    let mut envoy = Command::new(servers::binary("envoy"));
    // Stricter than the agent, which allows unknown fields.
    envoy.args(["--mode", "validate", "--disable-hot-restart", "-l", "error", "-c"]);
    let output = envoy.arg(&path).output().unwrap();
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

fn check(case: &Case) {
    let (bootstrap_source, bootstrap_input) = plan_of(case);
    assert_eq!(bootstrap_source, BootstrapSource::Generated, "{}", case.name);
    let generated = bootstrap::generate(&bootstrap_input).unwrap();
    let (pointer, expected) = &case.shows;
    let actual = generated.pointer(pointer).unwrap_or(&Value::Null);
    assert_eq!(actual, expected, "{}: {pointer} of {generated:#}", case.name);
    assert_eq!(validation_error(&generated.to_string(), "json"), None, "{}", case.name);
}

#[test]
fn envoy_accepts_identity_and_xds_settings() {
    if servers::without("envoy") {
        return;
    }
    let api_type = "/dynamic_resources/ads_config/api_type";
    let xds = "/static_resources/clusters/3/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address";
    let cases = [
        case("defaults", api_type, json!("DELTA_GRPC")),
        Case { env: &[("ISTIO_DELTA_XDS", "false")], ..case("state of the world", api_type, json!("GRPC")) },
        Case { flags: "--configPath ./d", ..case("relay", xds, json!({"pipe": {"path": "./d/XDS"}})) },
        Case {
            flags: "--xdsRelay=false --discoveryAddress pilot:15010",
            ..case("no relay", xds, json!({"socket_address": {"address": "pilot", "port_value": 15010}}))
        },
        Case {
            flags: "--xdsRelay=false --discoveryAddress pilot:15012",
            ..case("no relay, TLS", "/static_resources/clusters/3/transport_socket/typed_config/sni", json!("pilot"))
        },
        Case {
            flags: "--availabilityZone r/z/s",
            ..case("locality", "/node/locality", json!({"region": "r", "zone": "z", "sub_zone": "s"}))
        },
        Case {
            flags: "router --serviceregistry Consul --id x",
            ..case("another registry", "/node/id", json!("router~10.0.0.1~x~service.consul"))
        },
        Case {
            env: &[("ISTIO_META_CLUSTER_ID", "west"), ("ISTIO_METAJSON_X", r#"{"nested": {"a": [1]}}"#)],
            ..case("metadata", "/node/metadata/nested/a/0", json!(1))
        },
        Case {
            flags: "--ip fd00::1 --proxyAdminPort 15001",
            ..case("IPv6", "/admin/address/socket_address/address", json!("::1"))
        },
        Case {
            env: &[("ISTIO_META_ENABLE_SELF_DISCOVERY", "true")],
            ..case("zones of the replicas", "/cluster_manager/local_cluster_name", json!("local_cluster"))
        },
    ];
    cases.iter().for_each(check);
}

#[test]
fn envoy_accepts_stats_settings() {
    if servers::without("envoy") {
        return;
    }
    let prefix = "/stats_config/stats_matcher/inclusion_list/patterns/1/prefix";
    let cases = [
        Case {
            config: "{proxyStatsMatcher: {inclusionPrefixes: ['http.{pod_ip}_'], inclusionRegexps: ['a.*']}}",
            ..case("counters by setting", prefix, json!("http.10.0.0.1_"))
        },
        Case {
            annotations: &[("sidecar.istio.io/statsInclusionPrefixes", "mine,yours")],
            ..case("counters by annotation", prefix, json!("mine"))
        },
        Case {
            config: "{extraStatTags: [destination_port]}",
            ..case("tags", "/stats_config/stats_tags/9/tag_name", json!("destination_port"))
        },
        Case {
            annotations: &[("sidecar.istio.io/statsHistogramBuckets", r#"{"istiocustom": [1, 5, 10]}"#)],
            ..case("buckets", "/stats_config/histogram_bucket_settings/0/match/prefix", json!("istiocustom"))
        },
        Case {
            annotations: &[
                ("sidecar.istio.io/statsFlushInterval", "1m"),
                ("sidecar.istio.io/statsEvictionInterval", "10m"),
            ],
            ..case("intervals", "/stats_eviction_interval", json!("600s"))
        },
        Case {
            flags: "--statsdUdpAddress localhost:8125",
            ..case(
                "statsd by name",
                "/stats_sinks/0/typed_config/address/socket_address",
                json!({"address": "127.0.0.1", "port_value": 8125}),
            )
        },
        Case {
            flags: "--statsdUdpAddress statsd.invalid:8125",
            ..case("statsd without address", "/stats_sinks", Value::Null)
        },
        Case {
            flags: "--statsdUdpAddress 127.0.0.1:8125",
            ..case("statsd", "/stats_sinks/0/name", json!("envoy.stat_sinks.statsd"))
        },
        Case {
            config: "{envoyMetricsService: {address: 'm:1', tcpKeepalive: {probes: 3}, tlsSettings: {mode: ISTIO_MUTUAL}}}",
            ..case("metrics service", "/stats_sinks/0/name", json!("envoy.stat_sinks.metrics_service"))
        },
        Case {
            config: "{envoyAccessLogService: {address: 'a:1', tlsSettings: {mode: SIMPLE, caCertificates: /ca.pem}}}",
            ..case("access log service", "/static_resources/clusters/4/name", json!("envoy_accesslog_service"))
        },
    ];
    cases.iter().for_each(check);
}

#[test]
fn envoy_accepts_tracing_settings() {
    if servers::without("envoy") {
        return;
    }
    let name = "/tracing/http/name";
    let cases = [
        Case { flags: "--zipkinAddress zipkin:9411", ..case("zipkin", name, json!("envoy.tracers.zipkin")) },
        Case {
            config: "{tracing: {zipkin: {address: 'zipkin:9411'}, tlsSettings: {mode: SIMPLE, caCertificates: /c.pem}}}",
            ..case("zipkin with TLS", "/static_resources/clusters/4/transport_socket/typed_config/sni", json!(""))
        },
        Case {
            config: "{tracing: {datadog: {address: '$(HOST_IP):8126'}}}",
            env: &[("HOST_IP", "10.9.9.9")],
            ..case("datadog", name, json!("envoy.tracers.datadog"))
        },
        Case {
            config: "{tracing: {lightstep: {address: 'lightstep:443', accessToken: t}}}",
            ..case("lightstep", name, json!("envoy.tracers.opentelemetry"))
        },
        Case {
            config: "{tracing: {openCensusAgent: {address: 'collector:4317'}}}",
            ..case("opentelemetry", name, json!("envoy.tracers.opentelemetry"))
        },
    ];
    cases.iter().for_each(check);
}

#[test]
fn envoy_accepts_listener_and_limit_settings() {
    if servers::without("envoy") {
        return;
    }
    let listener = "/static_resources/listeners/0/name";
    let max = "/overload_manager/resource_monitors/0/typed_config/max_active_downstream_connections";
    let cases = [
        Case {
            env: &[("ENVOY_PROMETHEUS_PORT", "1590"), ("ENVOY_STATUS_PORT", "1521")],
            ..case("ports", listener, json!("0.0.0.0_1590"))
        },
        Case {
            env: &[("ENVOY_PROMETHEUS_PORT", "0"), ("ENVOY_STATUS_PORT", "0")],
            ..case("no listeners", "/static_resources/listeners", json!([]))
        },
        Case { flags: "--statusPort 0", ..case("no status port", "/static_resources/listeners/1", Value::Null) },
        Case {
            env: &[("ENVOY_SECURE_METRICS_PORT", "1591"), ("ENVOY_SECURE_MERGED_METRICS_PORT", "1592")],
            ..case("counters over mTLS", "/static_resources/listeners/2/name", json!("0.0.0.0_1592"))
        },
        Case {
            config: "{proxyMetadata: {METRICS_LOCALHOST_ACCESS_ONLY: 'true'}, statsCompression: false}",
            ..case("counters for this machine", listener, json!("127.0.0.1_15090"))
        },
        Case {
            env: &[("ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL", "true")],
            ..case(
                "readiness behind a load balancer",
                "/static_resources/listeners/1/listener_filters/0/name",
                json!("envoy.filters.listener.proxy_protocol"),
            )
        },
        Case {
            config: "{proxyMetadata: {ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS: '4000'}}",
            ..case("connections at most", max, json!(4000))
        },
        Case {
            config: "{runtimeValues: {re2.max_program_size.error_level: '1000', envoy.x: 'true'}}",
            ..case(
                "runtime values",
                "/layered_runtime/layers/0/static_layer/re2.max_program_size.error_level",
                json!("1000"),
            )
        },
        Case {
            flags: "--log_as_json --outlierLogPath /dev/null",
            ..case("logs", "/cluster_manager/outlier_detection/event_log_path", json!("/dev/null"))
        },
    ];
    cases.iter().for_each(check);
}

#[test]
fn invalid_bootstrap_is_rejected() {
    if servers::without("envoy") {
        return;
    }
    let (_, bootstrap_input) = plan_of(&case("broken", "", Value::Null));
    let mut generated = bootstrap::generate(&bootstrap_input).unwrap();
    generated["static_resources"]["clusters"][0]["lb_policy"] = "NO_SUCH".into();
    assert!(validation_error(&generated.to_string(), "json").is_some_and(|why| why.contains("NO_SUCH")));
}
