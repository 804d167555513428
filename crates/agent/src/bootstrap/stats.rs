//! Envoy's stats: inclusion lists and tag extraction. Lists and patterns are upstream's; Istio's metrics depend on them.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tracing::warn;

use super::BootstrapInput;

/// Tags and their patterns, before and after the user's tags.
const TAGS_BEFORE: &[(&str, &str)] = &[
    ("cluster_name", r"^cluster(\.(.+);)"),
    ("http_conn_manager_prefix", r"^http\.(((?:[_.[:digit:]\w]*|[_\[\]aAbBcCdDeEfF[:digit:]\w\:]*));\.)"),
    ("thread_name", r"^server(\.(.+))\.watchdog"),
    ("tcp_prefix", r"^tcp\.((.*?)\.)\w+?$"),
    ("response_code", r"_rq(_(\d{3}))$"),
    ("response_code_class", r"_rq(_(\dxx))$"),
    (
        "http_conn_manager_listener_prefix",
        r"^listener(?=\.).*?\.http\.(((?:[_.[:digit:]]*|[_\[\]aAbBcCdDeEfF[:digit:]]*))\.)",
    ),
    ("listener_address", r"^listener\.(((?:[_.[:digit:]]*|[_\[\]aAbBcCdDeEfF[:digit:]]*))\.)"),
    ("mongo_prefix", r"^mongo\.(.+?)\.(collection|cmd|cx_|op_|delays_|decoding_)(.*?)$"),
];
const TAGS_AFTER: &[(&str, &str)] = &[
    ("cache", r"(cache\.(.+?)\.)"),
    ("component", r"(component\.(.+?)\.)"),
    ("tag", r"(tag\.(.+?);\.)"),
    ("wasm_filter", r"(wasm_filter\.(.+?)\.)"),
    ("authz_enforce_result", r"rbac(\.(allowed|denied))"),
    ("authz_dry_run_action", r"(\.istio_dry_run_(allow|deny)_)"),
    ("authz_dry_run_result", r"(\.shadow_(allowed|denied))"),
];

/// Stats that readiness checks need.
const PREFIXES: &[&str] = &["cluster_manager", "listener_manager", "server", "cluster.xds-grpc", "wasm"];
const SUFFIXES: &[&str] = &["rbac.allowed", "rbac.denied", "shadow_allowed", "shadow_denied"];
/// Stat that draining needs.
const ACTIVE: &str = "downstream_cx_active";
/// Stats of named VirtualService routes.
const REGEXES: &[&str] = &[r"vhost\..*\.route\..*"];

const PREFIX_ANNOTATION: &str = "sidecar.istio.io/statsInclusionPrefixes";
const SUFFIX_ANNOTATION: &str = "sidecar.istio.io/statsInclusionSuffixes";
const REGEX_ANNOTATION: &str = "sidecar.istio.io/statsInclusionRegexps";
const TAG_ANNOTATION: &str = "sidecar.istio.io/extraStatTags";
const BUCKET_ANNOTATION: &str = "sidecar.istio.io/statsHistogramBuckets";
const FLUSH_ANNOTATION: &str = "sidecar.istio.io/statsFlushInterval";
const EVICTION_ANNOTATION: &str = "sidecar.istio.io/statsEvictionInterval";

/// Stats settings: the user's, merged with the required ones.
pub(super) struct StatsSettings {
    pub prefixes: Vec<String>,
    pub suffixes: Vec<String>,
    pub regexes: Vec<String>,
    pub extra_tags: Vec<String>,
    pub buckets: Vec<Value>,
    pub flush: Option<Duration>,
    pub eviction: Option<Duration>,
}

impl StatsSettings {
    pub(super) fn of(input: &BootstrapInput) -> StatsSettings {
        let matcher = input.config.proxy_stats_matcher.clone().unwrap_or_default();
        let list = |annotation, config: &[String], required: &[&str]| list(input, annotation, config, required);
        let active = input.features.exit_on_zero_active_connections.then_some(ACTIVE);
        let suffixes: Vec<&str> = SUFFIXES.iter().copied().chain(active).collect();
        let flush = interval(input, FLUSH_ANNOTATION);
        StatsSettings {
            prefixes: list(PREFIX_ANNOTATION, &matcher.inclusion_prefixes, PREFIXES),
            suffixes: list(SUFFIX_ANNOTATION, &matcher.inclusion_suffixes, &suffixes),
            regexes: list(REGEX_ANNOTATION, &matcher.inclusion_regexps, REGEXES),
            extra_tags: extra_tags(input),
            buckets: buckets(input),
            flush,
            eviction: eviction(input, flush.unwrap_or(Duration::from_secs(5))),
        }
    }

    /// `stats_config` of the bootstrap.
    pub(super) fn json(&self, metadata_discovery: bool) -> Value {
        let tag = |(name, regex): &(&str, &str)| json!({"tag_name": name, "regex": regex});
        let extra = self.extra_tags.iter().map(|tag| {
            let regex = format!(r"({tag}=\.=(.*?);\.;)");
            json!({"tag_name": tag, "regex": regex})
        });
        let tags: Vec<Value> = TAGS_BEFORE.iter().map(tag).chain(extra).chain(TAGS_AFTER.iter().map(tag)).collect();
        let mut patterns = vec![json!({"prefix": "reporter="})];
        if metadata_discovery {
            patterns.push(json!({"prefix": "workload_discovery"}));
        }
        patterns.extend(self.prefixes.iter().map(|text| json!({"prefix": text})));
        patterns.extend(self.suffixes.iter().map(|text| json!({"suffix": text})));
        patterns.extend(self.regexes.iter().map(|text| json!({"safe_regex": {"regex": text}})));
        patterns.extend(["component", "istio"].map(|text| json!({"prefix": text})));
        let mut config = json!({
            "use_all_default_tags": false,
            "stats_tags": tags,
            "stats_matcher": {"inclusion_list": {"patterns": patterns}},
        });
        if !self.buckets.is_empty() {
            config["histogram_bucket_settings"] = self.buckets.clone().into();
        }
        config
    }
}

/// The annotation's list, else that of ProxyConfig, then the required entries. `{pod_ip}` is expanded to every address.
fn list(input: &BootstrapInput, annotation: &str, config: &[String], required: &[&str]) -> Vec<String> {
    let by_annotation = input.node.annotations.get(annotation).filter(|text| !text.is_empty());
    let chosen: Vec<&str> = match by_annotation {
        Some(text) => text.split(',').collect(),
        None => config.iter().map(String::as_str).collect(),
    };
    let all = chosen.into_iter().chain(required.iter().copied());
    let filled = all.flat_map(|pattern| match pattern.contains("{pod_ip}") {
        true => input.ips.iter().map(|ip| pattern.replace("{pod_ip}", &ip.to_string())).collect(),
        false => vec![pattern.to_owned()],
    });
    filled.collect()
}

fn extra_tags(input: &BootstrapInput) -> Vec<String> {
    let annotation = input.node.annotations.get(TAG_ANNOTATION).map_or("", String::as_str);
    let mut tags: Vec<String> = Vec::new();
    for tag in input.config.extra_stat_tags.iter().map(String::as_str).chain(annotation.split(',')) {
        if !tag.is_empty() && !tags.iter().any(|known| known == tag) {
            tags.push(tag.to_owned());
        }
    }
    tags
}

/// Histogram buckets by stat prefix, from a JSON object.
fn buckets(input: &BootstrapInput) -> Vec<Value> {
    let Some(text) = input.node.annotations.get(BUCKET_ANNOTATION) else { return Vec::new() };
    match serde_json::from_str::<Map<String, Value>>(text) {
        Ok(mut object) => {
            object.sort_keys();
            let setting = |(prefix, buckets)| json!({"match": {"prefix": prefix}, "buckets": buckets});
            object.into_iter().map(setting).collect()
        }
        Err(error) => {
            warn!(%error, "ignoring annotation {BUCKET_ANNOTATION}: not a JSON object");
            Vec::new()
        }
    }
}

fn interval(input: &BootstrapInput, annotation: &str) -> Option<Duration> {
    let text = input.node.annotations.get(annotation)?;
    let read = model::duration::parse(text).and_then(|duration| Duration::try_from(duration).ok());
    if read.is_none() {
        warn!(value = text, "ignoring annotation {annotation}: not a duration");
    }
    read
}

/// Envoy evicts stats only when it flushes, so the interval must be a multiple of the flush interval.
fn eviction(input: &BootstrapInput, flush: Duration) -> Option<Duration> {
    let eviction = interval(input, EVICTION_ANNOTATION)?;
    let fits = !flush.is_zero() && eviction.as_nanos().is_multiple_of(flush.as_nanos());
    if !fits {
        warn!("ignoring annotation {EVICTION_ANNOTATION}: not a multiple of the flush interval {flush:?}");
    }
    fits.then_some(eviction)
}
