//! Access logs of a client: by Telemetry and the mesh's default providers, or else by mesh config.

use std::collections::{BTreeMap, BTreeSet};

use api::istio::mesh::v1alpha1::mesh_config::extension_provider::{
    EnvoyFileAccessLogProvider, EnvoyHttpGrpcV3LogProvider, EnvoyOpenTelemetryLogProvider, EnvoyTcpGrpcV3LogProvider,
    Provider, envoy_file_access_log_provider,
};
use api::istio::mesh::v1alpha1::{MeshConfig, mesh_config};
use api::istio::telemetry::v1alpha1::{AccessLogging, WorkloadMode};
use model::hashed::Hashed;
use model::names::Str;
use scope::View;

use super::formats::{DEFAULT_TEXT, default_json, json_format, text_format};
use super::requests;
use super::{AccessLog, LineFormat, LogFilter, LogScope, LogService, LogSink, LoggedHeaders};
use crate::listener_side::ListenerSide;
use crate::telemetry::applicable::applicable;
use crate::telemetry::{Collector, collector, holds_for, provider, provider_names, workload_mode};

/// The access logs of a scope.
pub fn access_logs(view: &View, side: ListenerSide, scope: LogScope) -> Vec<AccessLog> {
    let mut logs = configured(view, side, scope);
    requests::add(view, side, scope, &mut logs);
    logs
}

/// The logs that users configured.
fn configured(view: &View, side: ListenerSide, scope: LogScope) -> Vec<AccessLog> {
    let mesh = &view.settings.mesh;
    if scope == LogScope::Listener && mesh.disable_envoy_listener_log {
        return Vec::new();
    }
    let filters = match scope {
        LogScope::Listener => vec![LogFilter::ResponseFlags(vec!["NR".into()])],
        LogScope::Http | LogScope::Tcp => Vec::new(),
    };
    if let Some(asked) = by_telemetry(view, side) {
        let with_filter = |(sink, expression): (LogSink, Option<Str>)| {
            let filters = filters.iter().cloned().chain(expression.map(LogFilter::Expression)).collect();
            AccessLog { sink, filters }
        };
        return asked.into_iter().map(with_filter).collect();
    }
    let file = (!mesh.access_log_file.is_empty()).then(|| mesh_file(&mesh.access_log_file, mesh));
    let service = mesh.enable_envoy_access_log_service.then(|| mesh_service(scope));
    let sinks = file.into_iter().chain(service);
    sinks.map(|sink| AccessLog { sink, filters: filters.clone() }).collect()
}

/// Sinks and filter expressions of providers, sorted by provider name. `None` without a usable provider: then mesh
/// config applies.
fn by_telemetry(view: &View, side: ListenerSide) -> Option<Vec<(LogSink, Option<Str>)>> {
    let logging = applicable(view).logging;
    let defaults = view.settings.mesh.default_providers.clone().unwrap_or_default().access_logging;
    let defaults: Vec<&str> = defaults.iter().map(String::as_str).collect();
    let mut found: Vec<(&str, LogSink, ProviderLogging)> = Vec::new();
    for (name, logging) in merge(&logging, &defaults, workload_mode(side)) {
        let known = provider(view, name);
        let sink = known.and_then(|p| sink(view, &p.name, p.provider.as_ref()?));
        found.extend(known.zip(sink).map(|(p, sink)| (p.name.as_str(), sink, logging)));
    }
    if found.is_empty() {
        return None;
    }
    found.sort_by_key(|(name, _, _)| *name);
    let enabled = found.into_iter().filter_map(|(_, sink, logging)| match logging {
        ProviderLogging::Disabled => None,
        ProviderLogging::Enabled(expression) => Some((sink, expression.map(Str::from))),
    });
    Some(enabled.collect())
}

/// Merged logging settings of one provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProviderLogging<'a> {
    Disabled,
    /// With a filter expression.
    Enabled(Option<&'a str>),
}

/// The providers of the narrowest object that lists any for this mode. An object without providers applies to the
/// inherited ones.
fn merge<'a>(
    objects: &[&'a [AccessLogging]],
    defaults: &[&'a str],
    mode: WorkloadMode,
) -> BTreeMap<&'a str, ProviderLogging<'a>> {
    if objects.is_empty() {
        return defaults.iter().map(|name| (*name, ProviderLogging::Enabled(None))).collect();
    }
    let here = |item: &&AccessLogging| holds_for(item.r#match.unwrap_or_default().mode(), mode);
    let mut wanted: BTreeSet<&str> = defaults.iter().copied().collect();
    let mut expressions: BTreeMap<&str, Option<&str>> = BTreeMap::new();
    for object in objects {
        let mut named = BTreeSet::new();
        for item in object.iter().filter(here) {
            let names = provider_names(&item.providers);
            let expression = item.filter.as_ref().map(|f| f.expression.as_str());
            expressions.extend(names.iter().map(|name| (*name, expression)));
            named.extend(names);
        }
        if !named.is_empty() {
            wanted = named;
        }
    }
    let mut by_provider = BTreeMap::new();
    let mut inherited = defaults.to_vec();
    for item in objects.iter().copied().flatten() {
        let names = provider_names(&item.providers);
        inherited = if names.is_empty() { inherited } else { names };
        for name in inherited.iter().copied().filter(|name| wanted.contains(name) && here(&item)) {
            let logging = if item.disabled == Some(true) {
                ProviderLogging::Disabled
            } else {
                ProviderLogging::Enabled(expressions.get(name).copied().flatten())
            };
            by_provider.insert(name, logging);
        }
    }
    by_provider
}

/// The sink of a provider; `None` if it is no logging provider or its service is unknown.
fn sink(view: &View, name: &str, provider: &Provider) -> Option<LogSink> {
    match provider {
        // The built-in provider uses mesh config's format.
        Provider::EnvoyFileAccessLog(file)
            if name == "envoy" && file.log_format.is_none() && !file.omit_empty_values =>
        {
            Some(mesh_file(&file.path, &view.settings.mesh))
        }
        Provider::EnvoyFileAccessLog(file) => Some(provider_file(file)),
        Provider::EnvoyHttpAls(als) => http_service(view, als),
        Provider::EnvoyTcpAls(als) => tcp_service(view, als),
        Provider::EnvoyOtelAls(als) => open_telemetry(view, als),
        _ => None,
    }
}

/// A file with mesh config's format.
fn mesh_file(path: &str, mesh: &MeshConfig) -> LogSink {
    let format = match mesh.access_log_encoding() {
        mesh_config::AccessLogEncoding::Text => LineFormat::Text(text_format(&mesh.access_log_format)),
        mesh_config::AccessLogEncoding::Json => {
            LineFormat::Json(Hashed::from_message(json_format(&mesh.access_log_format)))
        }
    };
    LogSink::File { path: path.into(), format, omit_empty: false }
}

fn provider_file(file: &EnvoyFileAccessLogProvider) -> LogSink {
    use envoy_file_access_log_provider::log_format::LogFormat;
    let format = match file.log_format.as_ref().and_then(|f| f.log_format.as_ref()) {
        Some(LogFormat::Labels(labels)) if labels.fields.is_empty() => {
            LineFormat::Json(Hashed::from_message(default_json()))
        }
        Some(LogFormat::Labels(labels)) => LineFormat::Json(Hashed::from_message(labels.clone())),
        Some(LogFormat::Text(text)) => LineFormat::Text(text_format(text)),
        None => LineFormat::Text(text_format("")),
    };
    let path = if file.path.is_empty() { "/dev/stdout" } else { &file.path };
    LogSink::File { path: path.into(), format, omit_empty: file.omit_empty_values }
}

/// The access log service from the proxy's bootstrap.
fn mesh_service(scope: LogScope) -> LogSink {
    let service = |log_name: &str| LogService {
        log_name: log_name.into(),
        collector: Collector { host: "".into(), cluster: "envoy_accesslog_service".into() },
        state: texts(PEERS_OF_ALL_AGES),
    };
    match scope {
        LogScope::Http => LogSink::Http { service: service(HTTP_LOG), headers: LoggedHeaders::default() },
        LogScope::Tcp => LogSink::Tcp(service(TCP_LOG)),
        LogScope::Listener => LogSink::Tcp(service("listener_envoy_accesslog")),
    }
}

const HTTP_LOG: &str = "http_envoy_accesslog";
const TCP_LOG: &str = "tcp_envoy_accesslog";
/// Filter state with peer metadata.
const PEERS: &[&str] = &["upstream_peer", "downstream_peer"];
/// The same, with the names that older proxies use.
const PEERS_OF_ALL_AGES: &[&str] = &[
    "upstream_peer",
    "downstream_peer",
    "wasm.upstream_peer",
    "wasm.upstream_peer_id",
    "wasm.downstream_peer",
    "wasm.downstream_peer_id",
];

fn http_service(view: &View, als: &EnvoyHttpGrpcV3LogProvider) -> Option<LogSink> {
    let collector = collector(view, &als.service, als.port)?;
    let state =
        if als.filter_state_objects_to_log.is_empty() { texts(PEERS) } else { texts(&als.filter_state_objects_to_log) };
    let headers = LoggedHeaders {
        request: texts(&als.additional_request_headers_to_log),
        response: texts(&als.additional_response_headers_to_log),
        trailers: texts(&als.additional_response_trailers_to_log),
    };
    Some(LogSink::Http { service: LogService { log_name: or(&als.log_name, HTTP_LOG), collector, state }, headers })
}

fn tcp_service(view: &View, als: &EnvoyTcpGrpcV3LogProvider) -> Option<LogSink> {
    let collector = collector(view, &als.service, als.port)?;
    let state =
        if als.filter_state_objects_to_log.is_empty() { texts(PEERS) } else { texts(&als.filter_state_objects_to_log) };
    Some(LogSink::Tcp(LogService { log_name: or(&als.log_name, TCP_LOG), collector, state }))
}

fn open_telemetry(view: &View, als: &EnvoyOpenTelemetryLogProvider) -> Option<LogSink> {
    let collector = collector(view, &als.service, als.port)?;
    let format = als.log_format.clone().unwrap_or_default();
    let attributes = format.labels.filter(|labels| !labels.fields.is_empty()).map(Hashed::from_message);
    let service =
        LogService { log_name: or(&als.log_name, "otel_envoy_accesslog"), collector, state: texts(PEERS_OF_ALL_AGES) };
    Some(LogSink::OpenTelemetry { service, body: or(&format.text, DEFAULT_TEXT), attributes })
}

fn or(text: &str, default: &str) -> Str {
    Str::from(if text.is_empty() { default } else { text })
}

fn texts<S: AsRef<str>>(items: &[S]) -> Vec<Str> {
    items.iter().map(|item| item.as_ref().into()).collect()
}

#[cfg(test)]
mod tests {
    use api::istio::telemetry::v1alpha1::access_logging::LogSelector;
    use api::istio::telemetry::v1alpha1::{AccessLogging, ProviderRef, WorkloadMode};

    use super::{ProviderLogging, merge};

    fn logging(providers: &[&str], mode: WorkloadMode, disabled: bool) -> AccessLogging {
        AccessLogging {
            r#match: Some(LogSelector { mode: mode.into() }),
            providers: providers.iter().map(|name| ProviderRef { name: (*name).into() }).collect(),
            disabled: Some(disabled),
            ..AccessLogging::default()
        }
    }

    #[test]
    fn narrower_object_replaces_the_providers_of_its_side_only() {
        let wide = [logging(&["a"], WorkloadMode::ClientAndServer, false)];
        let narrow = [logging(&["b"], WorkloadMode::Server, false)];
        let of = |mode| merge(&[&wide, &narrow], &[], mode).into_keys().collect::<Vec<_>>();
        assert_eq!(of(WorkloadMode::Server), ["b"]);
        assert_eq!(of(WorkloadMode::Client), ["a"]);
    }

    #[test]
    fn object_without_providers_applies_to_inherited_ones() {
        let off = [logging(&[], WorkloadMode::ClientAndServer, true)];
        assert_eq!(merge(&[&off], &["a"], WorkloadMode::Client)["a"], ProviderLogging::Disabled);
    }
}
