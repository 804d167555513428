//! Renders a connection manager as Envoy's message.

use api::envoy::config::core::v3::{
    AggregatedConfigSource, ApiVersion, CidrRange, ConfigSource, Http1ProtocolOptions, Http2ProtocolOptions,
    HttpProtocolOptions, TypedExtensionConfig, config_source, http_protocol_options, http1_protocol_options,
};
use api::envoy::config::listener::v3::Filter;
use api::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager as EnvoyManager, Rds, RequestIdExtension, http_connection_manager as hcm,
};
use api::envoy::extensions::request_id::uuid::v3::UuidRequestIdConfig;
use api::istio::mesh::v1alpha1::proxy_config::{ConnectionSettings, connection_settings as limits};
use api::{Any, Duration, any};

use super::{
    CertDetails, ForwardClientCert, Http1, HttpConnectionManager, HttpSettings, PathNormalization, Routes,
    ServerHeader, any_name_route, inbound_route,
};
use crate::http_filters::HttpFilter;
use crate::network_filters::named;
use crate::telemetry::{access_log, tracing};

const ZERO: Duration = Duration { seconds: 0, nanos: 0 };

pub(in crate::network_filters) fn render(plan: &HttpConnectionManager) -> Filter {
    let mut manager = from_settings(&plan.settings);
    manager.stat_prefix = plan.stat_prefix.to_string();
    manager.route_specifier = Some(routes(&plan.routes));
    manager.http_filters = plan.filters.iter().map(HttpFilter::render).collect();
    if plan.http2 {
        manager.http2_protocol_options = Some(Http2ProtocolOptions::default());
    }
    if let Some(configured) = &plan.settings.connection {
        apply_limits(&mut manager, configured);
    }
    named("envoy.filters.network.http_connection_manager", any(&manager))
}

fn from_settings(settings: &HttpSettings) -> EnvoyManager {
    let (server_name, transformation) = match &settings.server_header {
        ServerHeader::Overwrite(name) => (name.to_string(), hcm::ServerHeaderTransformation::Overwrite),
        ServerHeader::PassThrough => (String::new(), hcm::ServerHeaderTransformation::PassThrough),
    };
    let sampling = UuidRequestIdConfig {
        use_request_id_for_trace_sampling: Some(settings.sample_by_request_id),
        ..UuidRequestIdConfig::default()
    };
    let websocket = hcm::UpgradeConfig { upgrade_type: "websocket".into(), ..hcm::UpgradeConfig::default() };
    let idle = |timeout| HttpProtocolOptions { idle_timeout: Some(timeout), ..HttpProtocolOptions::default() };
    let path = path(settings.path);
    EnvoyManager {
        server_name,
        server_header_transformation: transformation.into(),
        generate_request_id: (!settings.generate_request_id).then_some(false),
        request_id_extension: Some(RequestIdExtension { typed_config: Some(any(&sampling)) }),
        forward_client_cert_details: settings.forward_client_cert.map_or(0, |(forward, _)| forwarding(forward).into()),
        set_current_client_cert_details: settings
            .forward_client_cert
            .and_then(|(_, details)| details.map(cert_details)),
        http_protocol_options: settings.http1.map(http1),
        append_x_forwarded_port: settings.append_x_forwarded_port,
        normalize_path: Some(path.normalize),
        merge_slashes: path.merge_slashes,
        path_with_escaped_slashes_action: path.escaped.into(),
        use_remote_address: Some(settings.use_remote_address),
        xff_num_trusted_hops: settings.trusted_hops,
        common_http_protocol_options: settings.idle_timeout.map(idle),
        stream_idle_timeout: Some(ZERO),
        internal_address_config: internal_addresses(settings),
        proxy_100_continue: settings.proxy_100_continue,
        upgrade_configs: vec![websocket],
        access_log: access_log::render(&settings.access_log),
        tracing: settings.tracing.as_ref().map(tracing::render),
        ..EnvoyManager::default()
    }
}

fn routes(routes: &Routes) -> hcm::RouteSpecifier {
    match routes {
        Routes::Rds(name) => hcm::RouteSpecifier::Rds(Rds {
            config_source: Some(ConfigSource {
                config_source_specifier: Some(config_source::ConfigSourceSpecifier::Ads(AggregatedConfigSource {})),
                initial_fetch_timeout: Some(ZERO),
                resource_api_version: ApiVersion::V3.into(),
                ..ConfigSource::default()
            }),
            route_config_name: name.to_string(),
        }),
        Routes::AnyName(route) => hcm::RouteSpecifier::RouteConfig(any_name_route::render(*route)),
        Routes::Inbound(route) => hcm::RouteSpecifier::RouteConfig(inbound_route::render(route)),
    }
}

struct PathOptions {
    normalize: bool,
    merge_slashes: bool,
    escaped: hcm::PathWithEscapedSlashesAction,
}

fn path(configured: PathNormalization) -> PathOptions {
    use hcm::PathWithEscapedSlashesAction::{KeepUnchanged, UnescapeAndForward};
    match configured {
        PathNormalization::None => PathOptions { normalize: false, merge_slashes: false, escaped: KeepUnchanged },
        PathNormalization::Base => PathOptions { normalize: true, merge_slashes: false, escaped: KeepUnchanged },
        PathNormalization::MergeSlashes => PathOptions { normalize: true, merge_slashes: true, escaped: KeepUnchanged },
        PathNormalization::DecodeAndMergeSlashes => {
            PathOptions { normalize: true, merge_slashes: true, escaped: UnescapeAndForward }
        }
    }
}

fn forwarding(forward: ForwardClientCert) -> hcm::ForwardClientCertDetails {
    match forward {
        ForwardClientCert::Sanitize => hcm::ForwardClientCertDetails::Sanitize,
        ForwardClientCert::ForwardOnly => hcm::ForwardClientCertDetails::ForwardOnly,
        ForwardClientCert::AppendForward => hcm::ForwardClientCertDetails::AppendForward,
        ForwardClientCert::SanitizeSet => hcm::ForwardClientCertDetails::SanitizeSet,
        ForwardClientCert::AlwaysForwardOnly => hcm::ForwardClientCertDetails::AlwaysForwardOnly,
    }
}

fn cert_details(details: CertDetails) -> hcm::SetCurrentClientCertDetails {
    hcm::SetCurrentClientCertDetails {
        subject: Some(details.subject),
        cert: details.cert,
        chain: details.chain,
        dns: details.dns,
        uri: details.uri,
        ..hcm::SetCurrentClientCertDetails::default()
    }
}

fn http1(configured: Http1) -> Http1ProtocolOptions {
    use http1_protocol_options::{HeaderKeyFormat, header_key_format::HeaderFormat};
    let preserve = || HeaderKeyFormat {
        header_format: Some(HeaderFormat::StatefulFormatter(TypedExtensionConfig {
            name: "preserve_case".into(),
            // The message has no fields that we set.
            typed_config: Some(Any { type_url: PRESERVE_CASE.into(), value: Vec::new() }),
        })),
    };
    Http1ProtocolOptions {
        accept_http_10: configured.accept_http_10,
        allow_absolute_url: configured.allow_absolute_url.then_some(true),
        header_key_format: configured.preserve_header_case.then(preserve),
        ..Http1ProtocolOptions::default()
    }
}

const PRESERVE_CASE: &str =
    "type.googleapis.com/envoy.extensions.http.header_formatters.preserve_case.v3.PreserveCaseFormatterConfig";

fn internal_addresses(settings: &HttpSettings) -> Option<hcm::InternalAddressConfig> {
    let range = |net: &ipnet::IpNet| CidrRange {
        address_prefix: net.addr().to_string(),
        prefix_len: Some(net.prefix_len().into()),
    };
    let cidr_ranges: Vec<CidrRange> = settings.internal_networks.iter().map(range).collect();
    (!cidr_ranges.is_empty())
        .then(|| hcm::InternalAddressConfig { cidr_ranges, ..hcm::InternalAddressConfig::default() })
}

/// Applies the proxy's connection settings over the defaults.
fn apply_limits(manager: &mut EnvoyManager, configured: &ConnectionSettings) {
    let underscores = underscores(configured.http_headers_with_underscores_action());
    let durations =
        [configured.http_idle_timeout, configured.http_max_connection_duration, configured.http_max_stream_duration];
    if underscores.is_some() || durations.iter().any(Option::is_some) {
        let options = manager.common_http_protocol_options.get_or_insert_default();
        options.idle_timeout = configured.http_idle_timeout.or(options.idle_timeout);
        options.max_connection_duration = configured.http_max_connection_duration;
        options.max_stream_duration = configured.http_max_stream_duration;
        options.headers_with_underscores_action = underscores.unwrap_or_default().into();
    }
    manager.stream_idle_timeout = configured.http_stream_idle_timeout.or(manager.stream_idle_timeout);
    manager.request_timeout = configured.http_request_timeout;
    manager.request_headers_timeout = configured.http_request_headers_timeout;
    manager.drain_timeout = configured.http_drain_timeout;
    let streams = [
        configured.http_max_concurrent_streams,
        configured.http2_initial_stream_window_size,
        configured.http2_initial_connection_window_size,
    ];
    if streams.iter().any(Option::is_some) {
        let [streams, stream_window, connection_window] = streams.map(|n| n.and_then(|n| u32::try_from(n).ok()));
        let options = manager.http2_protocol_options.get_or_insert_default();
        options.max_concurrent_streams = streams;
        options.initial_stream_window_size = stream_window;
        options.initial_connection_window_size = connection_window;
    }
    if let Some(merge) = configured.http_merge_slashes {
        manager.merge_slashes = merge;
    }
    if let Some(action) = escaped_slashes(configured.http_path_with_escaped_slashes_action()) {
        manager.path_with_escaped_slashes_action = action.into();
    }
}

fn underscores(
    configured: limits::HeadersWithUnderscoresAction,
) -> Option<http_protocol_options::HeadersWithUnderscoresAction> {
    use http_protocol_options::HeadersWithUnderscoresAction as Envoy;
    use limits::HeadersWithUnderscoresAction as Istio;
    match configured {
        Istio::HeadersWithUnderscoresUnspecified => None,
        Istio::HeadersWithUnderscoresAllow => Some(Envoy::Allow),
        Istio::HeadersWithUnderscoresRejectRequest => Some(Envoy::RejectRequest),
        Istio::HeadersWithUnderscoresDropHeader => Some(Envoy::DropHeader),
    }
}

fn escaped_slashes(configured: limits::PathWithEscapedSlashesAction) -> Option<hcm::PathWithEscapedSlashesAction> {
    use hcm::PathWithEscapedSlashesAction as Envoy;
    use limits::PathWithEscapedSlashesAction as Istio;
    match configured {
        Istio::PathWithEscapedSlashesUnspecified => None,
        Istio::KeepUnchanged => Some(Envoy::KeepUnchanged),
        Istio::RejectRequest => Some(Envoy::RejectRequest),
        Istio::UnescapeAndRedirect => Some(Envoy::UnescapeAndRedirect),
        Istio::UnescapeAndForward => Some(Envoy::UnescapeAndForward),
    }
}
