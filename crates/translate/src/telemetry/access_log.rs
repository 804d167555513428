//! Access logs: where a line goes, how it looks and when it is written.

use std::collections::BTreeMap;

use api::envoy::config::accesslog::v3::{
    AccessLog as EnvoyLog, AccessLogFilter, AndFilter, ResponseFlagFilter, access_log, access_log_filter,
};
use api::envoy::config::core::v3::{
    ApiVersion, DataSource, GrpcService, JsonFormatOptions, SubstitutionFormatString, TypedExtensionConfig,
    data_source, grpc_service, substitution_format_string,
};
use api::envoy::extensions::access_loggers::file::v3::{FileAccessLog, file_access_log};
use api::envoy::extensions::access_loggers::grpc::v3::{
    CommonGrpcAccessLogConfig, HttpGrpcAccessLogConfig, TcpGrpcAccessLogConfig,
};
use api::istio::mesh::v1alpha1::{MeshConfig, mesh_config};
use api::{Any, Struct, Value, any, value};
use model::names::Text;
use model::shared::Shared;
use scope::View;

use crate::class::Class;
use crate::structs::struct_of;

/// One log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AccessLog {
    pub sink: Sink,
    /// All must hold for a line to be written.
    pub filters: Vec<LogFilter>,
}

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Sink {
    File {
        path: Text,
        format: Format,
        omit_empty: bool,
    },
    /// Envoy's access log service, for requests.
    HttpService {
        log_name: Text,
        cluster: Text,
    },
    /// Envoy's access log service, for connections.
    TcpService {
        log_name: Text,
        cluster: Text,
    },
}

/// How a line looks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    Text(Text),
    Json(Shared<Struct>),
}

/// When a line is written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LogFilter {
    /// The connection met one of these ends.
    ResponseFlags(Vec<Text>),
}

/// What a log is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Logged {
    Http,
    Tcp,
    /// Connections that found no filter chain.
    Listener,
}

/// The logs that a client keeps of some traffic.
pub fn access_logs(view: &View, _class: Class, logged: Logged) -> Vec<AccessLog> {
    let mesh = &view.settings.mesh;
    if logged == Logged::Listener && mesh.disable_envoy_listener_log {
        return Vec::new();
    }
    let filters = match logged {
        Logged::Listener => vec![LogFilter::ResponseFlags(vec!["NR".into()])],
        Logged::Http | Logged::Tcp => Vec::new(),
    };
    let file = (!mesh.access_log_file.is_empty()).then(|| mesh_file(&mesh.access_log_file, mesh));
    let service = mesh.enable_envoy_access_log_service.then(|| mesh_service(logged));
    let sinks = file.into_iter().chain(service);
    sinks.map(|sink| AccessLog { sink, filters: filters.clone() }).collect()
}

/// A file in the format that mesh config asks for.
fn mesh_file(path: &str, mesh: &MeshConfig) -> Sink {
    let format = match mesh.access_log_encoding() {
        mesh_config::AccessLogEncoding::Text => Format::Text(text_format(&mesh.access_log_format)),
        mesh_config::AccessLogEncoding::Json => Format::Json(Shared::new(json_format(&mesh.access_log_format))),
    };
    Sink::File { path: path.into(), format, omit_empty: false }
}

fn mesh_service(logged: Logged) -> Sink {
    let cluster = Text::from("envoy_accesslog_service");
    match logged {
        Logged::Http => Sink::HttpService { log_name: "http_envoy_accesslog".into(), cluster },
        Logged::Tcp => Sink::TcpService { log_name: "tcp_envoy_accesslog".into(), cluster },
        Logged::Listener => Sink::TcpService { log_name: "listener_envoy_accesslog".into(), cluster },
    }
}

/// The text as given, ended by a newline; upstream's own where none is given.
fn text_format(wanted: &str) -> Text {
    match wanted {
        "" => DEFAULT_TEXT.into(),
        ended if ended.ends_with('\n') => ended.into(),
        open => format!("{open}\n").into(),
    }
}

/// The JSON object as given; upstream's own where none is given or it is not one.
fn json_format(wanted: &str) -> Struct {
    let given = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(wanted).ok();
    match given {
        Some(fields) => struct_of(&fields),
        None => default_json(),
    }
}

fn default_json() -> Struct {
    let text = |text: &str| Value { kind: Some(value::Kind::StringValue(text.into())) };
    let fields: BTreeMap<String, Value> = DEFAULT_JSON.iter().map(|(k, v)| ((*k).into(), text(v))).collect();
    Struct { fields }
}

const DEFAULT_TEXT: &str = concat!(
    "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" %RESPONSE_CODE% ",
    "%RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% ",
    "\"%UPSTREAM_TRANSPORT_FAILURE_REASON%\" %BYTES_RECEIVED% %BYTES_SENT% %DURATION% ",
    "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" ",
    "\"%REQ(X-REQUEST-ID)%\" \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\" %UPSTREAM_CLUSTER_RAW% ",
    "%UPSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS% ",
    "%REQUESTED_SERVER_NAME% %ROUTE_NAME%\n"
);

const DEFAULT_JSON: &[(&str, &str)] = &[
    ("authority", "%REQ(:AUTHORITY)%"),
    ("bytes_received", "%BYTES_RECEIVED%"),
    ("bytes_sent", "%BYTES_SENT%"),
    ("connection_termination_details", "%CONNECTION_TERMINATION_DETAILS%"),
    ("downstream_local_address", "%DOWNSTREAM_LOCAL_ADDRESS%"),
    ("downstream_remote_address", "%DOWNSTREAM_REMOTE_ADDRESS%"),
    ("duration", "%DURATION%"),
    ("method", "%REQ(:METHOD)%"),
    ("path", "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%"),
    ("protocol", "%PROTOCOL%"),
    ("request_id", "%REQ(X-REQUEST-ID)%"),
    ("requested_server_name", "%REQUESTED_SERVER_NAME%"),
    ("response_code", "%RESPONSE_CODE%"),
    ("response_code_details", "%RESPONSE_CODE_DETAILS%"),
    ("response_flags", "%RESPONSE_FLAGS%"),
    ("route_name", "%ROUTE_NAME%"),
    ("start_time", "%START_TIME%"),
    ("upstream_cluster", "%UPSTREAM_CLUSTER_RAW%"),
    ("upstream_host", "%UPSTREAM_HOST%"),
    ("upstream_local_address", "%UPSTREAM_LOCAL_ADDRESS%"),
    ("upstream_service_time", "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%"),
    ("upstream_transport_failure_reason", "%UPSTREAM_TRANSPORT_FAILURE_REASON%"),
    ("user_agent", "%REQ(USER-AGENT)%"),
    ("x_forwarded_for", "%REQ(X-FORWARDED-FOR)%"),
];

/// Filter state that access log services are sent beside each entry.
const STATE_TO_LOG: &[&str] = &[
    "upstream_peer",
    "downstream_peer",
    "wasm.upstream_peer",
    "wasm.upstream_peer_id",
    "wasm.downstream_peer",
    "wasm.downstream_peer_id",
];

/// Logs as Envoy's messages.
pub fn render(logs: &[AccessLog]) -> Vec<EnvoyLog> {
    logs.iter().map(one).collect()
}

fn one(log: &AccessLog) -> EnvoyLog {
    let (name, config) = sink(&log.sink);
    EnvoyLog {
        name: name.into(),
        filter: filter(&log.filters),
        config_type: Some(access_log::ConfigType::TypedConfig(config)),
    }
}

fn sink(sink: &Sink) -> (&'static str, Any) {
    match sink {
        Sink::File { path, format, omit_empty } => {
            let log = FileAccessLog {
                path: path.to_string(),
                access_log_format: Some(file_access_log::AccessLogFormat::LogFormat(line(format, *omit_empty))),
            };
            ("envoy.access_loggers.file", any(&log))
        }
        Sink::HttpService { log_name, cluster } => {
            let log = HttpGrpcAccessLogConfig {
                common_config: Some(grpc(log_name, cluster)),
                ..HttpGrpcAccessLogConfig::default()
            };
            ("envoy.access_loggers.http_grpc", any(&log))
        }
        Sink::TcpService { log_name, cluster } => {
            let log = TcpGrpcAccessLogConfig { common_config: Some(grpc(log_name, cluster)) };
            ("envoy.tcp_grpc_access_log", any(&log))
        }
    }
}

fn line(format: &Format, omit_empty_values: bool) -> SubstitutionFormatString {
    use substitution_format_string::Format as Envoy;
    match format {
        Format::Text(text) => SubstitutionFormatString {
            omit_empty_values,
            formatters: formatters(text.contains(WITHOUT_QUERY)),
            format: Some(Envoy::TextFormatSource(DataSource {
                specifier: Some(data_source::Specifier::InlineString(text.to_string())),
                ..DataSource::default()
            })),
            ..SubstitutionFormatString::default()
        },
        Format::Json(fields) => SubstitutionFormatString {
            omit_empty_values,
            formatters: formatters(fields.fields.values().any(mentions_without_query)),
            json_format_options: Some(JsonFormatOptions { sort_properties: false }),
            format: Some(Envoy::JsonFormat(Struct::clone(fields))),
            ..SubstitutionFormatString::default()
        },
    }
}

/// An operator that Envoy knows only with its formatter extension.
const WITHOUT_QUERY: &str = "%REQ_WITHOUT_QUERY";

fn mentions_without_query(value: &Value) -> bool {
    matches!(&value.kind, Some(value::Kind::StringValue(text)) if text.contains(WITHOUT_QUERY))
}

fn formatters(without_query: bool) -> Vec<TypedExtensionConfig> {
    let extension = || TypedExtensionConfig {
        name: "envoy.formatter.req_without_query".into(),
        // The message has no fields.
        typed_config: Some(Any {
            type_url: "type.googleapis.com/envoy.extensions.formatter.req_without_query.v3.ReqWithoutQuery".into(),
            value: Vec::new(),
        }),
    };
    without_query.then(extension).into_iter().collect()
}

fn grpc(log_name: &str, cluster: &str) -> CommonGrpcAccessLogConfig {
    let envoy = grpc_service::EnvoyGrpc { cluster_name: cluster.into(), ..grpc_service::EnvoyGrpc::default() };
    CommonGrpcAccessLogConfig {
        log_name: log_name.into(),
        grpc_service: Some(GrpcService {
            target_specifier: Some(grpc_service::TargetSpecifier::EnvoyGrpc(envoy)),
            ..GrpcService::default()
        }),
        transport_api_version: ApiVersion::V3.into(),
        filter_state_objects_to_log: STATE_TO_LOG.iter().map(|s| (*s).into()).collect(),
        ..CommonGrpcAccessLogConfig::default()
    }
}

fn filter(filters: &[LogFilter]) -> Option<AccessLogFilter> {
    use access_log_filter::FilterSpecifier;
    let one = |filter: &LogFilter| match filter {
        LogFilter::ResponseFlags(flags) => FilterSpecifier::ResponseFlagFilter(ResponseFlagFilter {
            flags: flags.iter().map(|f| f.to_string()).collect(),
        }),
    };
    let wrap = |specifier| AccessLogFilter { filter_specifier: Some(specifier) };
    match filters {
        [] => None,
        [single] => Some(wrap(one(single))),
        several => {
            let filters = several.iter().map(|f| wrap(one(f))).collect();
            Some(wrap(FilterSpecifier::AndFilter(AndFilter { filters })))
        }
    }
}
