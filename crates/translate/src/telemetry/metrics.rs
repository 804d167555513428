//! Istio's stats filter, configured by Telemetry. Only Istio's Envoy build has it.

use std::collections::{BTreeMap, BTreeSet};

use api::istio::mesh::v1alpha1::mesh_config::extension_provider::Provider;
use api::istio::telemetry::v1alpha1::metric_selector::{IstioMetric, MetricMatch};
use api::istio::telemetry::v1alpha1::metrics_overrides::tag_override::Operation;
use api::istio::telemetry::v1alpha1::{MetricSelector, Metrics, MetricsOverrides, WorkloadMode};
use api::{Any, Duration};
use model::names::Str;
use prost::Message;
use scope::View;

use super::applicable::applicable;
use super::{holds_for, provider, provider_names, workload_mode};
use crate::listener_side::ListenerSide;

/// One stats filter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StatsFilter {
    /// Metrics with overrides.
    pub metrics: Vec<Metric>,
    pub reporting_interval: Option<Duration>,
    /// Do not use the Host header as destination service of unknown hosts.
    pub ignore_host_header: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Metric {
    pub name: Str,
    /// Tags and their value expressions.
    pub tags: BTreeMap<Str, Str>,
    pub removed_tags: Vec<Str>,
    pub dropped: bool,
}

/// The stats filters of listeners on this side, one per provider.
pub fn stats(view: &View, side: ListenerSide) -> Vec<StatsFilter> {
    if !has_filter(view) {
        return Vec::new();
    }
    let metrics = applicable(view).metrics;
    let defaults = view.settings.mesh.default_providers.clone().unwrap_or_default().metrics;
    let defaults: Vec<&str> = defaults.iter().map(String::as_str).collect();
    let merged = merge(&metrics, &defaults, workload_mode(side));
    let of_prometheus = |(name, merged): (&str, MergedMetrics)| {
        let found = provider(view, name)?;
        let counts = matches!(found.provider, Some(Provider::Prometheus(_)));
        (counts && !merged.disabled).then(|| StatsFilter {
            metrics: merged.metrics.into_iter().map(|(name, metric)| metric.named(name)).collect(),
            reporting_interval: merged.interval,
            ignore_host_header: side != ListenerSide::SidecarOutbound,
        })
    };
    merged.into_iter().filter_map(of_prometheus).collect()
}

/// Whether this Envoy has the filter. An Envoy that does not list its extensions is assumed to have it.
fn has_filter(view: &View) -> bool {
    let extensions = &view.proxy.extensions;
    extensions.is_empty() || extensions.iter().any(|name| name.ends_with("istio_stats"))
}

/// Merged metrics settings of one provider.
#[derive(Default)]
struct MergedMetrics<'a> {
    disabled: bool,
    interval: Option<Duration>,
    metrics: BTreeMap<&'a str, MetricOverride<'a>>,
}

#[derive(Default)]
struct MetricOverride<'a> {
    dropped: Option<bool>,
    /// `None` removes the tag.
    tags: BTreeMap<&'a str, Option<&'a str>>,
}

impl MetricOverride<'_> {
    fn named(self, name: &str) -> Metric {
        let kept = self.tags.iter().filter_map(|(tag, value)| Some(((*tag).into(), (*value)?.into())));
        Metric {
            name: prometheus_name(name).into(),
            tags: kept.collect(),
            removed_tags: self.tags.iter().filter(|(_, v)| v.is_none()).map(|(tag, _)| (*tag).into()).collect(),
            dropped: self.dropped.unwrap_or(false),
        }
    }
}

/// The providers of the last object that lists any, with their overrides from all objects, widest first.
fn merge<'a>(
    metrics: &[&'a Metrics],
    defaults: &[&'a str],
    mode: WorkloadMode,
) -> BTreeMap<&'a str, MergedMetrics<'a>> {
    if metrics.is_empty() {
        return defaults.iter().map(|name| (*name, MergedMetrics::default())).collect();
    }
    let named = |m: &&'a Metrics| Some(provider_names(&m.providers)).filter(|names| !names.is_empty());
    let last = metrics.iter().filter_map(named).next_back().unwrap_or_else(|| defaults.to_vec());
    let wanted: BTreeSet<&str> = last.into_iter().collect();
    let mut merged: BTreeMap<&str, MergedMetrics<'_>> = BTreeMap::new();
    let mut inherited = defaults.to_vec();
    for item in metrics {
        inherited = named(item).unwrap_or(inherited);
        for provider in inherited.iter().filter(|p| wanted.contains(**p)) {
            let entry = merged.entry(provider).or_default();
            entry.interval = item.reporting_interval.or(entry.interval);
            item.overrides.iter().for_each(|o| entry.take(o, mode));
        }
    }
    merged
}

impl<'a> MergedMetrics<'a> {
    fn take(&mut self, change: &'a MetricsOverrides, mode: WorkloadMode) {
        let matching = change.r#match.as_ref();
        if !holds_for(matching.map_or(WorkloadMode::ClientAndServer, MetricSelector::mode), mode) {
            return;
        }
        let names = metric_names(matching);
        if names.len() == ALL.len() && change.disabled == Some(true) {
            self.disabled = true;
            return;
        }
        // Any override by a narrower object re-enables a provider that a wider one disabled.
        self.disabled = false;
        for name in names {
            let entry = self.metrics.entry(name).or_default();
            entry.dropped = change.disabled.or(entry.dropped);
            for (tag, over) in &change.tag_overrides {
                let value = (over.operation() == Operation::Upsert).then_some(over.value.as_str());
                entry.tags.insert(tag, value);
            }
        }
    }
}

/// All metrics: name in Telemetry, enum value, Prometheus name.
const ALL: &[(&str, IstioMetric, &str)] = &[
    ("GRPC_REQUEST_MESSAGES", IstioMetric::GrpcRequestMessages, "request_messages_total"),
    ("GRPC_RESPONSE_MESSAGES", IstioMetric::GrpcResponseMessages, "response_messages_total"),
    ("REQUEST_COUNT", IstioMetric::RequestCount, "requests_total"),
    ("REQUEST_DURATION", IstioMetric::RequestDuration, "request_duration_milliseconds"),
    ("REQUEST_SIZE", IstioMetric::RequestSize, "request_bytes"),
    ("RESPONSE_SIZE", IstioMetric::ResponseSize, "response_bytes"),
    ("TCP_CLOSED_CONNECTIONS", IstioMetric::TcpClosedConnections, "tcp_connections_closed_total"),
    ("TCP_OPENED_CONNECTIONS", IstioMetric::TcpOpenedConnections, "tcp_connections_opened_total"),
    ("TCP_RECEIVED_BYTES", IstioMetric::TcpReceivedBytes, "tcp_received_bytes_total"),
    ("TCP_SENT_BYTES", IstioMetric::TcpSentBytes, "tcp_sent_bytes_total"),
];

/// Telemetry names of the metrics that a selector matches.
fn metric_names(selector: Option<&MetricSelector>) -> Vec<&str> {
    let one = |wanted: i32| ALL.iter().find(|(_, metric, _)| *metric as i32 == wanted).map(|(name, _, _)| *name);
    match selector.and_then(|s| s.metric_match.as_ref()) {
        Some(MetricMatch::CustomMetric(name)) => vec![name],
        Some(MetricMatch::Metric(wanted)) if *wanted != IstioMetric::AllMetrics as i32 => {
            one(*wanted).into_iter().collect()
        }
        Some(MetricMatch::Metric(_)) | None => ALL.iter().map(|(name, _, _)| *name).collect(),
    }
}

fn prometheus_name(name: &str) -> &str {
    ALL.iter().find(|(known, _, _)| *known == name).map_or(name, |(_, _, shown)| shown)
}

/// `stats.PluginConfig` of Istio's proxy, reduced to the fields set here; it is in no descriptor set.
#[derive(Clone, PartialEq, Message)]
struct PluginConfig {
    #[prost(bool, tag = "6")]
    disable_host_header_fallback: bool,
    #[prost(message, optional, tag = "7")]
    tcp_reporting_duration: Option<Duration>,
    #[prost(message, repeated, tag = "8")]
    metrics: Vec<MetricConfig>,
}

#[derive(Clone, PartialEq, Message)]
struct MetricConfig {
    #[prost(btree_map = "string, string", tag = "1")]
    dimensions: BTreeMap<String, String>,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, repeated, tag = "3")]
    tags_to_remove: Vec<String>,
    #[prost(bool, tag = "5")]
    drop: bool,
}

/// Name of the HTTP and of the network filter.
pub const FILTER: &str = "istio.stats";

/// The filter's config.
pub fn render(plan: &StatsFilter) -> Any {
    let metric = |metric: &Metric| MetricConfig {
        dimensions: metric.tags.iter().map(|(tag, value)| (tag.to_string(), value.to_string())).collect(),
        name: metric.name.to_string(),
        tags_to_remove: metric.removed_tags.iter().map(|tag| tag.to_string()).collect(),
        drop: metric.dropped,
    };
    let config = PluginConfig {
        disable_host_header_fallback: plan.ignore_host_header,
        tcp_reporting_duration: plan.reporting_interval,
        metrics: plan.metrics.iter().map(metric).collect(),
    };
    Any { type_url: "type.googleapis.com/stats.PluginConfig".into(), value: config.encode_to_vec() }
}

#[cfg(test)]
mod tests {
    use api::istio::telemetry::v1alpha1::{Metrics, MetricsOverrides, ProviderRef, WorkloadMode};

    use super::merge;

    fn naming(providers: &[&str], disabled: Option<bool>) -> Metrics {
        let change = MetricsOverrides { disabled, ..MetricsOverrides::default() };
        Metrics {
            providers: providers.iter().map(|name| ProviderRef { name: (*name).into() }).collect(),
            overrides: vec![change],
            ..Metrics::default()
        }
    }

    #[test]
    fn narrower_object_sets_the_providers_and_re_enables_them() {
        let (wide, narrow) = (naming(&["a", "b"], Some(true)), naming(&["b"], Some(false)));
        let merged = merge(&[&wide, &narrow], &["default"], WorkloadMode::Client);
        let shown: Vec<_> = merged.iter().map(|(name, m)| (*name, m.disabled)).collect();
        assert_eq!(shown, [("b", false)]);
    }

    #[test]
    fn default_providers_apply_without_telemetry() {
        let merged = merge(&[], &["prometheus"], WorkloadMode::Server);
        assert_eq!(merged.keys().copied().collect::<Vec<_>>(), ["prometheus"]);
    }
}
