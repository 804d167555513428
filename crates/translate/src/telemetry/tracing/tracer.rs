//! Tracing providers of mesh config.

use api::Duration;
use api::istio::mesh::v1alpha1::mesh_config::extension_provider::zipkin_tracing_provider::TraceContextOption;
use api::istio::mesh::v1alpha1::mesh_config::extension_provider::{
    HttpHeader, OpenTelemetryTracingProvider, Provider, ServiceAttributeEnrichment, ZipkinTracingProvider, http_header,
};
use model::names::Str;
use model::proxy::ProxyKind;
use scope::ReadProxy;
use scope::View;

use crate::telemetry::{Collector, collector};

/// A tracing provider and its collector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Tracer {
    Zipkin(ZipkinTracer),
    OpenTelemetry(OpenTelemetryTracer),
    Datadog { collector: Collector, service: Str },
    SkyWalking(Collector),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ZipkinTracer {
    pub collector: Collector,
    pub path: Str,
    pub trace_id_128bit: bool,
    /// Propagate W3C headers in addition to B3.
    pub w3c: bool,
    /// Timeout and headers, for proxies that support them (1.29 and later).
    pub limits: Option<(Duration, Vec<TracerHeader>)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OpenTelemetryTracer {
    pub collector: Collector,
    /// URI of the HTTP collector; `None` for gRPC.
    pub uri: Option<Str>,
    pub timeout: Option<Duration>,
    pub headers: Vec<TracerHeader>,
    /// The service name in spans.
    pub service: Str,
    /// Resource detectors: environment variables, Dynatrace files.
    pub detect_environment: bool,
    pub detect_dynatrace: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TracerHeader {
    pub name: Str,
    pub value: Str,
}

/// A provider's tracer and settings for connection managers.
pub(super) struct ProviderTracer {
    pub(super) tracer: Tracer,
    /// 0 for the proxy's default.
    pub(super) max_tag_length: u32,
    pub(super) spawn_upstream_span: bool,
}

/// The provider's tracer; `None` if it is no tracing provider or its service is unknown.
pub(super) fn of_provider(view: &View, provider: &Provider) -> Option<ProviderTracer> {
    let is_gateway = view.proxy.kind == ProxyKind::Router;
    let found = |tracer, max_tag_length| ProviderTracer { tracer, max_tag_length, spawn_upstream_span: is_gateway };
    match provider {
        Provider::Zipkin(zipkin) => Some(found(self::zipkin(view, zipkin)?, zipkin.max_tag_length)),
        Provider::Opentelemetry(otel) => Some(found(open_telemetry(view, otel)?, otel.max_tag_length)),
        Provider::Datadog(datadog) => {
            let collector = collector(view, &datadog.service, datadog.port)?;
            let service = Str::clone(&view.proxy.service_cluster);
            Some(found(Tracer::Datadog { collector, service }, datadog.max_tag_length))
        }
        Provider::Skywalking(skywalking) => {
            let collector = collector(view, &skywalking.service, skywalking.port)?;
            Some(ProviderTracer { tracer: Tracer::SkyWalking(collector), max_tag_length: 0, spawn_upstream_span: true })
        }
        _ => None,
    }
}

fn zipkin(view: &View, zipkin: &ZipkinTracingProvider) -> Option<Tracer> {
    /// Default timeout; Envoy requires one.
    const LIMIT: Duration = Duration { seconds: 5, nanos: 0 };
    let limits = || (zipkin.timeout.unwrap_or(LIMIT), headers(&zipkin.headers));
    Some(Tracer::Zipkin(ZipkinTracer {
        collector: collector(view, &zipkin.service, zipkin.port)?,
        path: if zipkin.path.is_empty() { "/api/v2/spans".into() } else { zipkin.path.as_str().into() },
        trace_id_128bit: !zipkin.enable_64bit_trace_id,
        w3c: zipkin.trace_context_option() == TraceContextOption::UseB3WithW3cPropagation
            && view.proxy.is_at_least(1, 28),
        limits: view.proxy.is_at_least(1, 29).then(limits),
    }))
}

fn open_telemetry(view: &View, otel: &OpenTelemetryTracingProvider) -> Option<Tracer> {
    if otel.sampling.is_some() {
        // The Dynatrace sampler is not supported; without it, no sampling decision would be made.
        return None;
    }
    let collector = collector(view, &otel.service, otel.port)?;
    let conventional = otel.service_attribute_enrichment() == ServiceAttributeEnrichment::OtelSemanticConventions;
    let detectors = otel.resource_detectors.unwrap_or_default();
    let grpc = otel.grpc.clone().unwrap_or_default();
    let (uri, timeout, sent) = match &otel.http {
        Some(http) => (Some(joined(&collector.host, &http.path).into()), http.timeout, headers(&http.headers)),
        None => (None, grpc.timeout, headers(&grpc.initial_metadata)),
    };
    Some(Tracer::OpenTelemetry(OpenTelemetryTracer {
        collector,
        uri,
        timeout,
        headers: sent,
        service: if conventional { conventional_name(&view.proxy) } else { Str::clone(&view.proxy.service_cluster) },
        detect_environment: detectors.environment.is_some() || conventional,
        detect_dynatrace: detectors.dynatrace.is_some(),
    }))
}

/// Header values from the control plane's environment are not supported: config must not depend on it.
fn headers(headers: &[HttpHeader]) -> Vec<TracerHeader> {
    let value = |header: &HttpHeader| match &header.header_value {
        Some(http_header::HeaderValue::Value(value)) => Str::from(value.as_str()),
        Some(http_header::HeaderValue::EnvName(_)) | None => "".into(),
    };
    headers.iter().map(|header| TracerHeader { name: header.name.as_str().into(), value: value(header) }).collect()
}

/// Joins host and path with single slashes; keeps a trailing slash.
fn joined(host: &str, path: &str) -> String {
    let mut parts = vec![host];
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part != ".." {
            parts.push(part);
        } else if parts.len() > 1 {
            parts.pop();
        }
    }
    let mut uri = parts.join("/");
    if path.ends_with('/') {
        uri.push('/');
    }
    uri
}

/// The service name by OpenTelemetry's conventions for Kubernetes.
fn conventional_name(proxy: &ReadProxy) -> Str {
    let label = |key: &str| proxy.labels.get(key).filter(|v| !v.is_empty()).cloned();
    let pod = proxy.id.split_once('.').map(|(pod, _)| pod).filter(|pod| !pod.is_empty());
    let container = proxy.meta("APP_CONTAINERS").filter(|list| !list.is_empty() && !list.contains(','));
    label("app.kubernetes.io/instance")
        .or_else(|| label("app.kubernetes.io/name"))
        .or_else(|| proxy.meta("WORKLOAD_NAME").filter(|name| !name.is_empty()).map(Str::from))
        .or_else(|| pod.map(Str::from))
        .or_else(|| container.map(Str::from))
        .unwrap_or_else(|| "unknown_service".into())
}

#[cfg(test)]
mod tests {
    use super::joined;

    #[test]
    fn paths_join_with_single_slashes() {
        assert_eq!(joined("host", "/v1/traces"), "host/v1/traces");
        assert_eq!(joined("host", "v1//traces/"), "host/v1/traces/");
        assert_eq!(joined("host", ""), "host");
        assert_eq!(joined("host", "../../v1"), "host/v1");
    }
}
