//! Renders access logs.

use api::envoy::config::accesslog::v3::{
    AccessLog as EnvoyLog, AccessLogFilter, AndFilter, ExtensionFilter, LogTypeFilter, ResponseFlagFilter, access_log,
    access_log_filter, extension_filter,
};
use api::envoy::config::core::v3::{
    ApiVersion, DataSource, GrpcService, JsonFormatOptions, SubstitutionFormatString, TypedExtensionConfig,
    data_source, grpc_service, substitution_format_string,
};
use api::envoy::data::accesslog::v3::AccessLogType;
use api::envoy::extensions::access_loggers::file::v3::{FileAccessLog, file_access_log};
use api::envoy::extensions::access_loggers::grpc::v3::{
    CommonGrpcAccessLogConfig, HttpGrpcAccessLogConfig, TcpGrpcAccessLogConfig,
};
use api::envoy::extensions::access_loggers::open_telemetry::v3::OpenTelemetryAccessLogConfig;
use api::wire::opentelemetry::proto::common::v1::{AnyValue, KeyValue, KeyValueList, any_value};
use api::{Any, Struct, Value, any, value};
use model::names::Str;
use prost::Message;

use super::requests;
use super::{AccessLog, LineFormat, LogFilter, LogService, LogSink};

/// The access logs.
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

fn sink(sink: &LogSink) -> (&'static str, Any) {
    match sink {
        LogSink::File { path, format, omit_empty } => {
            let log = FileAccessLog {
                path: path.to_string(),
                access_log_format: Some(file_access_log::AccessLogFormat::LogFormat(line(format, *omit_empty))),
            };
            ("envoy.access_loggers.file", any(&log))
        }
        LogSink::Http { service, headers } => {
            let log = HttpGrpcAccessLogConfig {
                common_config: Some(grpc(service)),
                additional_request_headers_to_log: texts(&headers.request),
                additional_response_headers_to_log: texts(&headers.response),
                additional_response_trailers_to_log: texts(&headers.trailers),
            };
            ("envoy.access_loggers.http_grpc", any(&log))
        }
        LogSink::Tcp(service) => {
            let log = TcpGrpcAccessLogConfig { common_config: Some(grpc(service)) };
            ("envoy.tcp_grpc_access_log", any(&log))
        }
        LogSink::OpenTelemetry { service, body, attributes } => {
            ("envoy.access_loggers.open_telemetry", any(&open_telemetry(service, body, attributes.as_deref())))
        }
        LogSink::RequestMetrics { is_inbound, is_http: true } => {
            let common_config = Some(requests::service(*is_inbound));
            let log = HttpGrpcAccessLogConfig { common_config, ..HttpGrpcAccessLogConfig::default() };
            ("envoy.access_loggers.http_grpc", any(&log))
        }
        LogSink::RequestMetrics { is_inbound, is_http: false } => {
            let log = TcpGrpcAccessLogConfig { common_config: Some(requests::service(*is_inbound)) };
            ("envoy.access_loggers.tcp_grpc", any(&log))
        }
    }
}

fn texts(items: &[Str]) -> Vec<String> {
    items.iter().map(|item| item.to_string()).collect()
}

fn line(format: &LineFormat, omit_empty_values: bool) -> SubstitutionFormatString {
    use substitution_format_string::Format as Envoy;
    match format {
        LineFormat::Text(text) => SubstitutionFormatString {
            omit_empty_values,
            formatters: formatters(text.contains(WITHOUT_QUERY)),
            format: Some(Envoy::TextFormatSource(DataSource {
                specifier: Some(data_source::Specifier::InlineString(text.to_string())),
                ..DataSource::default()
            })),
            ..SubstitutionFormatString::default()
        },
        LineFormat::Json(fields) => SubstitutionFormatString {
            omit_empty_values,
            formatters: formatters(mention_without_query(fields)),
            json_format_options: Some(JsonFormatOptions { sort_properties: false }),
            format: Some(Envoy::JsonFormat(Struct::clone(fields))),
            ..SubstitutionFormatString::default()
        },
    }
}

/// A command operator that needs a formatter extension.
const WITHOUT_QUERY: &str = "%REQ_WITHOUT_QUERY";

fn mention_without_query(fields: &Struct) -> bool {
    let mentions =
        |value: &Value| matches!(&value.kind, Some(value::Kind::StringValue(t)) if t.contains(WITHOUT_QUERY));
    fields.fields.values().any(mentions)
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

fn grpc(service: &LogService) -> CommonGrpcAccessLogConfig {
    let envoy = grpc_service::EnvoyGrpc {
        cluster_name: service.collector.cluster.to_string(),
        authority: service.collector.host.to_string(),
        ..grpc_service::EnvoyGrpc::default()
    };
    CommonGrpcAccessLogConfig {
        log_name: service.log_name.to_string(),
        grpc_service: Some(GrpcService {
            target_specifier: Some(grpc_service::TargetSpecifier::EnvoyGrpc(envoy)),
            ..GrpcService::default()
        }),
        transport_api_version: ApiVersion::V3.into(),
        filter_state_objects_to_log: texts(&service.state),
        ..CommonGrpcAccessLogConfig::default()
    }
}

fn open_telemetry(service: &LogService, body: &str, attributes: Option<&Struct>) -> OpenTelemetryAccessLogConfig {
    let text = |text: &str| AnyValue { value: Some(any_value::Value::StringValue(text.into())) };
    let attribute = |(key, value): (&String, &Value)| {
        let shown = match &value.kind {
            Some(value::Kind::StringValue(shown)) => shown.as_str(),
            _ => "",
        };
        KeyValue { key: key.clone(), value: Some(text(shown)), ..KeyValue::default() }
    };
    let without_query = body.contains(WITHOUT_QUERY) || attributes.is_some_and(mention_without_query);
    OpenTelemetryAccessLogConfig {
        common_config: Some(grpc(service)),
        disable_builtin_labels: true,
        body: Some(text(body)),
        attributes: attributes.map(|a| KeyValueList { values: a.fields.iter().map(attribute).collect() }),
        formatters: formatters(without_query),
        ..OpenTelemetryAccessLogConfig::default()
    }
}

/// `envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter`.
#[derive(Clone, PartialEq, Message)]
struct ExpressionFilter {
    #[prost(string, tag = "1")]
    expression: String,
}

fn filter(filters: &[LogFilter]) -> Option<AccessLogFilter> {
    use access_log_filter::FilterSpecifier;
    let wrap = |specifier| AccessLogFilter { filter_specifier: Some(specifier) };
    match filters {
        [] => None,
        [single] => Some(wrap(condition(single))),
        several => {
            let filters = several.iter().map(|f| wrap(condition(f))).collect();
            Some(wrap(FilterSpecifier::AndFilter(AndFilter { filters })))
        }
    }
}

fn condition(filter: &LogFilter) -> access_log_filter::FilterSpecifier {
    use access_log_filter::FilterSpecifier;
    match filter {
        LogFilter::ResponseFlags(flags) => {
            FilterSpecifier::ResponseFlagFilter(ResponseFlagFilter { flags: texts(flags) })
        }
        LogFilter::ConnectionEnd => FilterSpecifier::LogTypeFilter(LogTypeFilter {
            types: vec![AccessLogType::TcpUpstreamConnected.into(), AccessLogType::TcpPeriodic.into()],
            exclude: true,
        }),
        LogFilter::Expression(expression) => {
            let config = ExpressionFilter { expression: expression.to_string() };
            let type_url = "type.googleapis.com/envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter";
            FilterSpecifier::ExtensionFilter(ExtensionFilter {
                name: "envoy.access_loggers.extension_filters.cel".into(),
                config_type: Some(extension_filter::ConfigType::TypedConfig(Any {
                    type_url: type_url.into(),
                    value: config.encode_to_vec(),
                })),
            })
        }
    }
}
