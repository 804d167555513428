//! The HTTP version and options of a cluster.

use api::Any;
use api::envoy::config::core::v3::http1_protocol_options::HeaderKeyFormat;
use api::envoy::config::core::v3::http1_protocol_options::header_key_format::HeaderFormat;
use api::envoy::config::core::v3::{Http1ProtocolOptions, Http2ProtocolOptions, TypedExtensionConfig};
use api::envoy::extensions::upstreams::http::v3::HttpProtocolOptions;
use api::envoy::extensions::upstreams::http::v3::http_protocol_options::explicit_http_config::ProtocolConfig;
use api::envoy::extensions::upstreams::http::v3::http_protocol_options::{
    ExplicitHttpConfig, UpstreamProtocolOptions, UseDownstreamHttpConfig,
};
use api::istio::mesh::v1alpha1::mesh_config;
use api::istio::networking::v1alpha3::ConnectionPoolSettings;
use api::istio::networking::v1alpha3::connection_pool_settings::http_settings::H2UpgradePolicy;
use model::port::Protocol;
use model::proxy::ProxyKind;

use super::ClusterDraft;
use crate::plan::cluster::ClusterContext;

const PRESERVE_CASE: &str =
    "type.googleapis.com/envoy.extensions.http.header_formatters.preserve_case.v3.PreserveCaseFormatterConfig";

/// Sets the HTTP version by the port's protocol.
pub(super) fn speak(draft: &mut ClusterDraft, context: &ClusterContext, protocol: Protocol) {
    if protocol.is_http2() {
        return speak_http2(draft);
    }
    if context.preserve_case && (protocol.is_http() || protocol.is_unknown()) {
        draft.http().upstream_protocol_options = Some(explicit(ProtocolConfig::HttpProtocolOptions(case_preserving())));
    }
    // A gateway's clients always offer HTTP/2, which says nothing about the server.
    if protocol.is_unknown() && context.client != ProxyKind::Router {
        follow_client(draft);
    }
}

/// Sets HTTP/2, unless a version is already set.
pub(super) fn speak_http2(draft: &mut ClusterDraft) {
    let config = || explicit(ProtocolConfig::Http2ProtocolOptions(Http2ProtocolOptions::default()));
    draft.http().upstream_protocol_options.get_or_insert_with(config);
}

/// Uses the downstream protocol.
pub(super) fn follow_client(draft: &mut ClusterDraft) {
    let options = draft.http();
    let http1 = match options.upstream_protocol_options.take() {
        Some(UpstreamProtocolOptions::ExplicitHttpConfig(ExplicitHttpConfig {
            protocol_config: Some(ProtocolConfig::HttpProtocolOptions(http1)),
        })) => http1,
        _ => Http1ProtocolOptions::default(),
    };
    options.upstream_protocol_options = Some(following(http1));
}

/// HTTP options of a cluster without a service.
pub(super) fn passthrough_options(context: &ClusterContext) -> HttpProtocolOptions {
    let http1 = if context.preserve_case { case_preserving() } else { Http1ProtocolOptions::default() };
    let common = api::envoy::config::core::v3::HttpProtocolOptions {
        idle_timeout: Some(api::Duration { seconds: 300, nanos: 0 }),
        ..Default::default()
    };
    HttpProtocolOptions {
        common_http_protocol_options: Some(common),
        upstream_protocol_options: Some(following(http1)),
        ..HttpProtocolOptions::default()
    }
}

/// Sets HTTP/1 if no version is set, because Envoy requires one.
pub(super) fn with_protocol(mut options: HttpProtocolOptions) -> HttpProtocolOptions {
    let config = || explicit(ProtocolConfig::HttpProtocolOptions(Http1ProtocolOptions::default()));
    options.upstream_protocol_options.get_or_insert_with(config);
    options
}

/// The HTTP/2 options, if the version is HTTP/2.
pub(super) fn http2_options(draft: &mut ClusterDraft) -> Option<&mut Http2ProtocolOptions> {
    match draft.http.as_mut()?.upstream_protocol_options.as_mut()? {
        UpstreamProtocolOptions::ExplicitHttpConfig(ExplicitHttpConfig {
            protocol_config: Some(ProtocolConfig::Http2ProtocolOptions(options)),
        }) => Some(options),
        _ => None,
    }
}

/// Whether HTTP/1 is upgraded to HTTP/2. A rule can enable it for any port, the mesh only for HTTP ports.
pub(super) fn is_upgraded(context: &ClusterContext, protocol: Protocol, pool: Option<&ConnectionPoolSettings>) -> bool {
    if let Some(http) = pool.and_then(|p| p.http.as_ref()) {
        if http.use_client_protocol {
            return false;
        }
        match http.h2_upgrade_policy() {
            H2UpgradePolicy::Upgrade => return true,
            H2UpgradePolicy::DoNotUpgrade => return false,
            H2UpgradePolicy::Default => {}
        }
    }
    protocol.is_http() && context.mesh.h2_upgrade_policy() == mesh_config::H2UpgradePolicy::Upgrade
}

fn explicit(config: ProtocolConfig) -> UpstreamProtocolOptions {
    UpstreamProtocolOptions::ExplicitHttpConfig(ExplicitHttpConfig { protocol_config: Some(config) })
}

fn following(http1: Http1ProtocolOptions) -> UpstreamProtocolOptions {
    UpstreamProtocolOptions::UseDownstreamProtocolConfig(UseDownstreamHttpConfig {
        http_protocol_options: Some(http1),
        http2_protocol_options: Some(Http2ProtocolOptions::default()),
        http3_protocol_options: None,
    })
}

fn case_preserving() -> Http1ProtocolOptions {
    let formatter = TypedExtensionConfig {
        name: "preserve_case".to_owned(),
        typed_config: Some(Any { type_url: PRESERVE_CASE.to_owned(), value: Vec::new() }),
    };
    Http1ProtocolOptions {
        header_key_format: Some(HeaderKeyFormat { header_format: Some(HeaderFormat::StatefulFormatter(formatter)) }),
        ..Http1ProtocolOptions::default()
    }
}
