//! Renders tracing config.

use api::envoy::config::core::v3::grpc_service::{EnvoyGrpc, TargetSpecifier};
use api::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use api::envoy::config::core::v3::{
    GrpcService, HeaderValue, HeaderValueOption, HttpService, HttpUri, TypedExtensionConfig, http_uri,
};
use api::envoy::config::trace::v3::tracing::{Http, http};
use api::envoy::config::trace::v3::{
    DatadogConfig, OpenTelemetryConfig, SkyWalkingConfig, ZipkinConfig, zipkin_config,
};
use api::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::Tracing as EnvoyTracing;
use api::envoy::r#type::metadata::v3::{MetadataKey, MetadataKind, metadata_key, metadata_kind};
use api::envoy::r#type::tracing::v3::{CustomTag, custom_tag};
use api::envoy::r#type::v3::Percent;
use api::{Any, any};

use super::{OpenTelemetryTracer, SpanTag, TagValue, Tracer, TracerHeader, Tracing, ZipkinTracer};
use crate::telemetry::Collector;

/// The tracing config.
pub fn render(tracing: &Tracing) -> EnvoyTracing {
    let percent = |value| Some(Percent { value });
    EnvoyTracing {
        client_sampling: percent(100.0),
        random_sampling: percent(tracing.sampling()),
        overall_sampling: percent(100.0),
        max_path_tag_length: tracing.max_path_tag_length,
        custom_tags: tracing.tags.iter().map(tag).collect(),
        provider: tracing.tracer.as_ref().map(provider),
        spawn_upstream_span: tracing.spawn_upstream_span.then_some(true),
        no_context_propagation: tracing.hide_context,
        ..EnvoyTracing::default()
    }
}

fn tag(tag: &SpanTag) -> CustomTag {
    let value = match &tag.value {
        TagValue::Literal(value) => custom_tag::Type::Literal(custom_tag::Literal { value: value.to_string() }),
        TagValue::Environment { name, default } => custom_tag::Type::Environment(custom_tag::Environment {
            name: name.to_string(),
            default_value: default.to_string(),
        }),
        TagValue::Header { name, default } => custom_tag::Type::RequestHeader(custom_tag::Header {
            name: name.to_string(),
            default_value: default.to_string(),
        }),
        TagValue::Formatted(pattern) => custom_tag::Type::Value(pattern.to_string()),
        TagValue::Rbac(key) => custom_tag::Type::Metadata(rbac_metadata(key)),
    };
    CustomTag { tag: tag.name.to_string(), r#type: Some(value), ..CustomTag::default() }
}

fn rbac_metadata(key: &str) -> custom_tag::Metadata {
    use metadata_key::path_segment::Segment;
    let path = metadata_key::PathSegment { segment: Some(Segment::Key(key.into())) };
    custom_tag::Metadata {
        kind: Some(MetadataKind { kind: Some(metadata_kind::Kind::Request(metadata_kind::Request {})) }),
        metadata_key: Some(MetadataKey { key: "envoy.filters.http.rbac".into(), path: vec![path] }),
        ..custom_tag::Metadata::default()
    }
}

fn provider(tracer: &Tracer) -> Http {
    let (name, config) = match tracer {
        Tracer::Zipkin(plan) => ("envoy.tracers.zipkin", any(&zipkin(plan))),
        Tracer::OpenTelemetry(plan) => ("envoy.tracers.opentelemetry", any(&open_telemetry(plan))),
        Tracer::Datadog { collector, service } => {
            let config = DatadogConfig {
                collector_cluster: collector.cluster.to_string(),
                collector_hostname: collector.host.to_string(),
                service_name: service.to_string(),
                ..DatadogConfig::default()
            };
            ("envoy.tracers.datadog", any(&config))
        }
        Tracer::SkyWalking(collector) => {
            let config = SkyWalkingConfig { grpc_service: Some(grpc(collector)), ..SkyWalkingConfig::default() };
            ("envoy.tracers.skywalking", any(&config))
        }
    };
    Http { name: name.into(), config_type: Some(http::ConfigType::TypedConfig(config)) }
}

fn zipkin(plan: &ZipkinTracer) -> ZipkinConfig {
    use zipkin_config::{CollectorEndpointVersion, TraceContextOption};
    let propagation = if plan.w3c { TraceContextOption::UseB3WithW3cPropagation } else { TraceContextOption::UseB3 };
    let mut config = ZipkinConfig {
        collector_endpoint_version: CollectorEndpointVersion::HttpJson.into(),
        trace_id_128bit: plan.trace_id_128bit,
        shared_span_context: Some(false),
        trace_context_option: propagation.into(),
        ..ZipkinConfig::default()
    };
    let Collector { host, cluster } = &plan.collector;
    match &plan.limits {
        Some((timeout, headers)) => {
            config.collector_service = Some(HttpService {
                http_uri: Some(HttpUri {
                    uri: format!("http://{host}{}", plan.path),
                    http_upstream_type: Some(http_uri::HttpUpstreamType::Cluster(cluster.to_string())),
                    timeout: Some(*timeout),
                }),
                request_headers_to_add: added(headers),
                ..HttpService::default()
            });
        }
        None => {
            config.collector_cluster = cluster.to_string();
            config.collector_endpoint = plan.path.to_string();
            config.collector_hostname = host.to_string();
        }
    }
    config
}

fn open_telemetry(plan: &OpenTelemetryTracer) -> OpenTelemetryConfig {
    let mut config = OpenTelemetryConfig {
        service_name: plan.service.to_string(),
        resource_detectors: detectors(plan),
        ..OpenTelemetryConfig::default()
    };
    match &plan.uri {
        Some(uri) => {
            let cluster = plan.collector.cluster.to_string();
            config.http_service = Some(HttpService {
                http_uri: Some(HttpUri {
                    uri: uri.to_string(),
                    http_upstream_type: Some(http_uri::HttpUpstreamType::Cluster(cluster)),
                    timeout: plan.timeout,
                }),
                request_headers_to_add: added(&plan.headers),
                ..HttpService::default()
            });
        }
        None => {
            let value = |h: &TracerHeader| HeaderValue {
                key: h.name.to_string(),
                value: h.value.to_string(),
                ..HeaderValue::default()
            };
            config.grpc_service = Some(GrpcService {
                timeout: plan.timeout,
                initial_metadata: plan.headers.iter().map(value).collect(),
                ..grpc(&plan.collector)
            });
        }
    }
    config
}

fn grpc(collector: &Collector) -> GrpcService {
    let envoy = EnvoyGrpc {
        cluster_name: collector.cluster.to_string(),
        authority: collector.host.to_string(),
        ..EnvoyGrpc::default()
    };
    GrpcService { target_specifier: Some(TargetSpecifier::EnvoyGrpc(envoy)), ..GrpcService::default() }
}

fn added(headers: &[TracerHeader]) -> Vec<HeaderValueOption> {
    let option = |h: &TracerHeader| HeaderValueOption {
        header: Some(HeaderValue { key: h.name.to_string(), value: h.value.to_string(), ..HeaderValue::default() }),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        ..HeaderValueOption::default()
    };
    headers.iter().map(option).collect()
}

/// Resource detectors. Their messages have no fields.
fn detectors(plan: &OpenTelemetryTracer) -> Vec<TypedExtensionConfig> {
    let detector = |name: &str, message: &str| TypedExtensionConfig {
        name: format!("envoy.tracers.opentelemetry.resource_detectors.{name}"),
        typed_config: Some(Any {
            type_url: format!(
                "type.googleapis.com/envoy.extensions.tracers.opentelemetry.resource_detectors.v3.{message}"
            ),
            value: Vec::new(),
        }),
    };
    let environment = plan.detect_environment.then(|| detector("environment", "EnvironmentResourceDetectorConfig"));
    let dynatrace = plan.detect_dynatrace.then(|| detector("dynatrace", "DynatraceResourceDetectorConfig"));
    environment.into_iter().chain(dynatrace).collect()
}
