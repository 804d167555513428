//! Traces: how many requests are traced and what each span is tagged with.

use std::collections::BTreeMap;

use api::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::Tracing as EnvoyTracing;
use api::envoy::r#type::metadata::v3::{MetadataKey, MetadataKind, metadata_key, metadata_kind};
use api::envoy::r#type::tracing::v3::{CustomTag, custom_tag};
use api::envoy::r#type::v3::Percent;
use api::istio::mesh::v1alpha1::{ProxyConfig, tracing as mesh_tracing};
use model::names::Text;
use model::proxy::Proxy;
use scope::View;

use crate::class::Class;

/// How a connection manager traces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tracing {
    /// The bits of the percentage of requests that start a trace; a float itself has no hash.
    sampling: u64,
    /// By name.
    pub tags: Vec<Tag>,
    pub max_path_tag_length: Option<u32>,
}

impl Tracing {
    /// Percent of requests that start a trace.
    pub fn sampling(&self) -> f64 {
        f64::from_bits(self.sampling)
    }
}

/// One tag of every span.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tag {
    pub name: Text,
    pub value: TagValue,
}

/// Where a tag's value comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TagValue {
    Literal(Text),
    Environment {
        name: Text,
        default: Text,
    },
    Header {
        name: Text,
        default: Text,
    },
    /// What the RBAC filter left in the request's metadata under this key.
    Rbac(Text),
}

/// How this client traces requests of a class; `None` if it does not.
pub fn tracing(view: &View, proxy_config: &ProxyConfig, _class: Class) -> Option<Tracing> {
    if !view.settings.mesh.enable_tracing {
        return None;
    }
    let wanted = proxy_config.tracing.clone().unwrap_or_default();
    let mut tags = Vec::new();
    if wanted.enable_istio_tags.unwrap_or(true) {
        tags = service_tags(&view.proxy);
        tags.extend(dry_run_tags());
    }
    tags.extend(custom_tags(&wanted.custom_tags));
    tags.sort_by(|a, b| a.name.cmp(&b.name));
    Some(Tracing {
        sampling: sampling(wanted.sampling, view.settings.knobs.trace_sampling.value()).to_bits(),
        tags,
        max_path_tag_length: Some(wanted.max_path_tag_length).filter(|length| *length != 0),
    })
}

/// Mesh config's percentage, or the knob's where none is set. Upstream turns more than all into one percent.
fn sampling(wanted: f64, default: f64) -> f64 {
    match wanted {
        0.0 => default,
        too_many if too_many > 100.0 => 1.0,
        percent => percent,
    }
}

/// Who reported the span.
fn service_tags(proxy: &Proxy) -> Vec<Tag> {
    let or = |text: &str, default: &str| Text::from(if text.is_empty() { default } else { text });
    let label = |key: &str, default: &str| or(proxy.labels.get(key).map_or("", |v| v), default);
    let meta = |key: &str, default: &str| or(proxy.meta(key).unwrap_or_default(), default);
    let tag = |name: &str, value: Text| Tag { name: name.into(), value: TagValue::Literal(value) };
    vec![
        tag("istio.canonical_revision", label("service.istio.io/canonical-revision", "latest")),
        tag("istio.canonical_service", label("service.istio.io/canonical-name", "unknown")),
        tag("istio.mesh_id", meta("MESH_ID", "unknown")),
        tag("istio.namespace", meta("NAMESPACE", "default")),
        tag("istio.cluster_id", or(&proxy.cluster, "unknown")),
    ]
}

/// What policies on trial would have decided.
fn dry_run_tags() -> impl Iterator<Item = Tag> {
    let tags = [
        ("istio.authorization.dry_run.allow_policy.name", "istio_dry_run_allow_shadow_effective_policy_id"),
        ("istio.authorization.dry_run.allow_policy.result", "istio_dry_run_allow_shadow_engine_result"),
        ("istio.authorization.dry_run.deny_policy.name", "istio_dry_run_deny_shadow_effective_policy_id"),
        ("istio.authorization.dry_run.deny_policy.result", "istio_dry_run_deny_shadow_engine_result"),
    ];
    tags.into_iter().map(|(name, key)| Tag { name: name.into(), value: TagValue::Rbac(key.into()) })
}

fn custom_tags(wanted: &BTreeMap<String, mesh_tracing::CustomTag>) -> impl Iterator<Item = Tag> + '_ {
    use mesh_tracing::custom_tag::Type;
    wanted.iter().filter_map(|(name, tag)| {
        let text = |text: &str| Text::from(text);
        let value = match tag.r#type.as_ref()? {
            Type::Literal(literal) => TagValue::Literal(text(&literal.value)),
            Type::Environment(env) => {
                TagValue::Environment { name: text(&env.name), default: text(&env.default_value) }
            }
            Type::Header(header) => TagValue::Header { name: text(&header.name), default: text(&header.default_value) },
        };
        Some(Tag { name: text(name), value })
    })
}

/// Tracing as Envoy's message.
pub fn render(tracing: &Tracing) -> EnvoyTracing {
    let percent = |value| Some(Percent { value });
    EnvoyTracing {
        client_sampling: percent(100.0),
        random_sampling: percent(tracing.sampling()),
        overall_sampling: percent(100.0),
        max_path_tag_length: tracing.max_path_tag_length,
        custom_tags: tracing.tags.iter().map(tag).collect(),
        ..EnvoyTracing::default()
    }
}

fn tag(tag: &Tag) -> CustomTag {
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

#[cfg(test)]
mod tests {
    use super::sampling;

    #[test]
    fn unset_sampling_falls_back_and_too_much_becomes_one_percent() {
        assert_eq!([sampling(0.0, 1.0), sampling(12.5, 1.0), sampling(150.0, 7.0)], [1.0, 12.5, 1.0]);
    }
}
