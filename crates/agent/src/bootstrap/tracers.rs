//! Tracing from ProxyConfig. Envoy removed its Lightstep and OpenCensus tracers; both collectors accept OTLP, so the
//! OpenTelemetry tracer is used for them.

use anyhow::Result;
use api::istio::mesh::v1alpha1::tracing::Tracer;
use serde_json::{Value, json};
use tracing::warn;

use super::tls::{HttpVersion, transport_socket};
use super::{BootstrapInput, socket_address};

/// A trace collector.
pub(super) struct Collector {
    /// Name of its cluster.
    pub name: &'static str,
    pub address: Value,
    pub http: HttpVersion,
    pub transport_socket: Option<Value>,
    /// `tracing` of the bootstrap.
    pub tracing: Value,
}

/// The configured collector; `None` if there is none or Envoy does not support it.
pub(super) fn collector(input: &BootstrapInput) -> Result<Option<Collector>> {
    let Some(tracing) = &input.config.tracing else { return Ok(None) };
    let service = &input.node.cluster;
    let (name, address, http, provider) = match &tracing.tracer {
        Some(Tracer::Zipkin(it)) => ("zipkin", &it.address, HttpVersion::Http1, zipkin()),
        Some(Tracer::Datadog(it)) => ("datadog_agent", &it.address, HttpVersion::Http1, datadog(service)),
        Some(Tracer::Lightstep(it)) => {
            let token = [("lightstep-access-token", it.access_token.as_str())];
            ("lightstep", &it.address, HttpVersion::Http2, opentelemetry("lightstep", service, &token))
        }
        Some(Tracer::OpenCensusAgent(it)) => {
            ("opentelemetry", &it.address, HttpVersion::Http2, opentelemetry("opentelemetry", service, &[]))
        }
        Some(Tracer::Stackdriver(_)) => {
            warn!("ignoring Stackdriver tracing: Envoy no longer supports it");
            return Ok(None);
        }
        None => return Ok(None),
    };
    if address.is_empty() {
        return Ok(None);
    }
    let tls = tracing.tls_settings.as_ref();
    let transport_socket = tls.and_then(|tls| transport_socket(tls, "tracer", &input.node.metadata, http));
    let address = socket_address("tracing", address, input.host_ip.as_deref())?;
    Ok(Some(Collector { name, address, http, transport_socket, tracing: json!({"http": provider}) }))
}

fn zipkin() -> Value {
    json!({
        "name": "envoy.tracers.zipkin",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.config.trace.v3.ZipkinConfig",
            "collector_cluster": "zipkin",
            "collector_endpoint": "/api/v2/spans",
            "collector_endpoint_version": "HTTP_JSON",
            "trace_id_128bit": true,
            "shared_span_context": false,
        },
    })
}

fn datadog(service: &str) -> Value {
    json!({
        "name": "envoy.tracers.datadog",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.config.trace.v3.DatadogConfig",
            "collector_cluster": "datadog_agent",
            "service_name": service,
        },
    })
}

fn opentelemetry(cluster: &str, service: &str, headers: &[(&str, &str)]) -> Value {
    let headers: Vec<Value> = headers.iter().map(|(key, value)| json!({"key": key, "value": value})).collect();
    json!({
        "name": "envoy.tracers.opentelemetry",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
            "grpc_service": {
                "envoy_grpc": {"cluster_name": cluster},
                "timeout": "1s",
                "initial_metadata": headers,
            },
            "service_name": service,
        },
    })
}
