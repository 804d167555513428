//! Tracing: sampling, span tags, and the tracing provider.
//! `tracer` has the providers; `render` renders the config.

mod render;
mod tracer;

use std::collections::BTreeMap;

use api::istio::mesh::v1alpha1::{ProxyConfig, tracing as mesh_tracing};
use api::istio::telemetry::v1alpha1::{Tracing as Asked, WorkloadMode, tracing as telemetry_tracing};
use model::names::Str;
use scope::ReadProxy;
use scope::View;

pub use render::render;
pub use tracer::{OpenTelemetryTracer, Tracer, TracerHeader, ZipkinTracer};

use super::applicable::applicable;
use super::{holds_for, provider, provider_names, workload_mode};
use crate::listener_side::ListenerSide;

/// Tracing of a connection manager.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tracing {
    /// Bits of the sampling percentage, because floats do not implement `Hash`.
    sampling: u64,
    /// Sorted by name.
    pub tags: Vec<SpanTag>,
    pub max_path_tag_length: Option<u32>,
    /// The provider; `None` for the one in the proxy's bootstrap.
    pub tracer: Option<Tracer>,
    /// Create a separate span for the upstream request.
    pub spawn_upstream_span: bool,
    pub hide_context: bool,
    pub sample_by_request_id: bool,
}

impl Tracing {
    /// Percentage of requests that start a trace.
    pub fn sampling(&self) -> f64 {
        f64::from_bits(self.sampling)
    }
}

/// One tag of every span.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpanTag {
    pub name: Str,
    pub value: TagValue,
}

/// Where a tag's value comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TagValue {
    Literal(Str),
    Environment {
        name: Str,
        default: Str,
    },
    Header {
        name: Str,
        default: Str,
    },
    /// A format string as in access logs.
    Formatted(Str),
    /// This key of the RBAC filter's dynamic metadata.
    Rbac(Str),
}

/// Tracing of listeners on this side; `None` if disabled.
pub fn tracing(view: &View, config: &ProxyConfig, side: ListenerSide) -> Option<Tracing> {
    let asked = applicable(view).tracing;
    let defaults = view.settings.mesh.default_providers.clone().unwrap_or_default().tracing;
    if asked.is_empty() && defaults.is_empty() {
        return view.settings.mesh.enable_tracing.then(|| by_proxy_config(view, config));
    }
    let settings = merge(&asked, defaults.first().map(String::as_str), workload_mode(side));
    by_telemetry(view, config, &settings)
}

/// Tracing by ProxyConfig, without Telemetry and providers.
fn by_proxy_config(view: &View, config: &ProxyConfig) -> Tracing {
    let wanted = config.tracing.clone().unwrap_or_default();
    let own = wanted.enable_istio_tags.unwrap_or(true);
    Tracing {
        sampling: default_sampling(view, config).to_bits(),
        tags: tags(&view.proxy, own, proxy_tags(&wanted.custom_tags)),
        max_path_tag_length: Some(wanted.max_path_tag_length).filter(|length| *length != 0),
        tracer: None,
        spawn_upstream_span: false,
        hide_context: false,
        sample_by_request_id: true,
    }
}

/// Merged settings of all Telemetry objects; later ones override field by field.
struct TracingSettings<'a> {
    provider: Option<&'a str>,
    disabled: bool,
    sampling: Option<f64>,
    tags: Option<&'a BTreeMap<String, telemetry_tracing::CustomTag>>,
    sample_by_request_id: bool,
    own_tags: bool,
    hide_context: bool,
}

fn merge<'a>(asked: &[&'a Asked], default: Option<&'a str>, mode: WorkloadMode) -> TracingSettings<'a> {
    let mut settings = TracingSettings {
        provider: default,
        disabled: false,
        sampling: None,
        tags: None,
        sample_by_request_id: true,
        own_tags: true,
        hide_context: false,
    };
    let here = |item: &&&Asked| holds_for(item.r#match.unwrap_or_default().mode(), mode);
    for item in asked.iter().filter(here) {
        settings.provider = provider_names(&item.providers).first().copied().or(settings.provider);
        settings.disabled = item.disable_span_reporting.unwrap_or(settings.disabled);
        settings.sampling = item.random_sampling_percentage.or(settings.sampling);
        settings.tags = Some(&item.custom_tags).filter(|tags| !tags.is_empty()).or(settings.tags);
        settings.sample_by_request_id = item.use_request_id_for_trace_sampling.unwrap_or(settings.sample_by_request_id);
        settings.own_tags = item.enable_istio_tags.unwrap_or(settings.own_tags);
        settings.hide_context = item.disable_context_propagation.unwrap_or(settings.hide_context);
    }
    settings
}

/// `None` if tracing is disabled or the provider is unknown.
fn by_telemetry(view: &View, config: &ProxyConfig, settings: &TracingSettings<'_>) -> Option<Tracing> {
    let provider = provider(view, settings.provider?).filter(|_| !settings.disabled)?;
    let found = tracer::of_provider(view, provider.provider.as_ref()?)?;
    let of_proxy = config.tracing.clone().unwrap_or_default();
    let custom = match settings.tags {
        Some(tags) => telemetry_tags(&view.proxy, tags),
        None => proxy_tags(&of_proxy.custom_tags),
    };
    let sampling = settings.sampling.unwrap_or_else(|| default_sampling(view, config));
    let length = if found.max_tag_length == 0 { of_proxy.max_path_tag_length } else { found.max_tag_length };
    Some(Tracing {
        sampling: sampling.to_bits(),
        tags: tags(&view.proxy, settings.own_tags, custom),
        max_path_tag_length: Some(length).filter(|length| *length != 0),
        tracer: Some(found.tracer),
        spawn_upstream_span: found.spawn_upstream_span,
        hide_context: settings.hide_context && view.proxy.is_at_least(1, 30),
        sample_by_request_id: settings.sample_by_request_id,
    })
}

fn default_sampling(view: &View, config: &ProxyConfig) -> f64 {
    let wanted = config.tracing.as_ref().map_or(0.0, |t| t.sampling);
    sampling(wanted, view.settings.knobs.trace_sampling.value())
}

/// The configured percentage, or the default if 0. As upstream, values above 100 become 1.
fn sampling(wanted: f64, default: f64) -> f64 {
    match wanted {
        0.0 => default,
        too_many if too_many > 100.0 => 1.0,
        percent => percent,
    }
}

/// Istio's tags, if enabled, and custom tags, sorted by name.
fn tags(proxy: &ReadProxy, own: bool, custom: Vec<SpanTag>) -> Vec<SpanTag> {
    let mut tags = custom;
    if own {
        tags.extend(service_tags(proxy));
        tags.extend(dry_run_tags());
    }
    tags.sort_by(|a, b| a.name.cmp(&b.name));
    tags
}

/// Tags of the reporting workload.
fn service_tags(proxy: &ReadProxy) -> Vec<SpanTag> {
    let or = |text: &str, default: &str| Str::from(if text.is_empty() { default } else { text });
    let label = |key: &str, default: &str| or(proxy.labels.get(key).map_or("", |v| v), default);
    let meta = |key: &str, default: &str| or(proxy.meta(key).unwrap_or_default(), default);
    let tag = |name: &str, value: Str| SpanTag { name: name.into(), value: TagValue::Literal(value) };
    vec![
        tag("istio.canonical_revision", label("service.istio.io/canonical-revision", "latest")),
        tag("istio.canonical_service", label("service.istio.io/canonical-name", "unknown")),
        tag("istio.mesh_id", meta("MESH_ID", "unknown")),
        tag("istio.namespace", meta("NAMESPACE", "default")),
        tag("istio.cluster_id", or(&proxy.cluster, "unknown")),
    ]
}

/// Results of dry-run authorization policies.
fn dry_run_tags() -> impl Iterator<Item = SpanTag> {
    let tags = [
        ("istio.authorization.dry_run.allow_policy.name", "istio_dry_run_allow_shadow_effective_policy_id"),
        ("istio.authorization.dry_run.allow_policy.result", "istio_dry_run_allow_shadow_engine_result"),
        ("istio.authorization.dry_run.deny_policy.name", "istio_dry_run_deny_shadow_effective_policy_id"),
        ("istio.authorization.dry_run.deny_policy.result", "istio_dry_run_deny_shadow_engine_result"),
    ];
    tags.into_iter().map(|(name, key)| SpanTag { name: name.into(), value: TagValue::Rbac(key.into()) })
}

fn proxy_tags(wanted: &BTreeMap<String, mesh_tracing::CustomTag>) -> Vec<SpanTag> {
    use mesh_tracing::custom_tag::Type;
    let tag = |(name, tag): (&String, &mesh_tracing::CustomTag)| {
        let value = match tag.r#type.as_ref()? {
            Type::Literal(literal) => TagValue::Literal(text(&literal.value)),
            Type::Environment(e) => TagValue::Environment { name: text(&e.name), default: text(&e.default_value) },
            Type::Header(h) => TagValue::Header { name: text(&h.name), default: text(&h.default_value) },
        };
        Some(SpanTag { name: text(name), value })
    };
    wanted.iter().filter_map(tag).collect()
}

fn telemetry_tags(proxy: &ReadProxy, wanted: &BTreeMap<String, telemetry_tracing::CustomTag>) -> Vec<SpanTag> {
    use telemetry_tracing::custom_tag::Type;
    let tag = |(name, tag): (&String, &telemetry_tracing::CustomTag)| {
        let value = match tag.r#type.as_ref()? {
            Type::Literal(literal) => TagValue::Literal(text(&literal.value)),
            Type::Environment(e) => TagValue::Environment { name: text(&e.name), default: text(&e.default_value) },
            Type::Header(h) => TagValue::Header { name: text(&h.name), default: text(&h.default_value) },
            Type::Formatter(_) if !proxy.is_at_least(1, 29) => return None,
            Type::Formatter(formatter) => TagValue::Formatted(text(&formatter.value)),
        };
        Some(SpanTag { name: text(name), value })
    };
    wanted.iter().filter_map(tag).collect()
}

fn text(text: &str) -> Str {
    text.into()
}

#[cfg(test)]
mod tests {
    use api::istio::telemetry::v1alpha1::{ProviderRef, Tracing as Asked, WorkloadMode};

    use super::{merge, sampling};

    #[test]
    fn unset_sampling_uses_the_default_and_over_100_becomes_1() {
        assert_eq!([sampling(0.0, 1.0), sampling(12.5, 1.0), sampling(150.0, 7.0)], [1.0, 12.5, 1.0]);
    }

    #[test]
    fn narrower_object_overrides_only_fields_it_sets() {
        let wide = Asked {
            providers: vec![ProviderRef { name: "zip".into() }],
            random_sampling_percentage: Some(3.0),
            ..Asked::default()
        };
        let narrow = Asked { disable_span_reporting: Some(true), ..Asked::default() };
        let settings = merge(&[&wide, &narrow], Some("default"), WorkloadMode::Client);
        assert_eq!((settings.provider, settings.sampling, settings.disabled), (Some("zip"), Some(3.0), true));
    }
}
