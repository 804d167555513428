//! External authorization: ext_authz providers of mesh config, for CUSTOM policies.

use api::envoy::config::core::v3::grpc_service::{EnvoyGrpc, TargetSpecifier};
use api::envoy::config::core::v3::http_uri::HttpUpstreamType;
use api::envoy::config::core::v3::{ApiVersion, GrpcService, HeaderValue, HttpUri};
use api::envoy::extensions::filters::http::ext_authz::v3::ext_authz::Services;
use api::envoy::extensions::filters::http::ext_authz::v3::{
    AuthorizationRequest, AuthorizationResponse, BufferSettings, ExtAuthz, HttpService,
};
use api::envoy::extensions::filters::network::ext_authz::v3::ExtAuthz as NetworkExtAuthz;
use api::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use api::envoy::r#type::matcher::v3::{ListStringMatcher, MetadataMatcher, StringMatcher};
use api::envoy::r#type::v3::{HttpStatus, StatusCode};
use api::istio::mesh::v1alpha1::mesh_config::extension_provider::{
    EnvoyExternalAuthorizationGrpcProvider, EnvoyExternalAuthorizationHttpProvider,
    EnvoyExternalAuthorizationRequestBody, Provider as Configured,
};
use api::{Any, Duration};
use model::hashed::Hashed;
use model::names::Str;
use scope::View;

use super::{HTTP_RBAC, NETWORK_RBAC, matchers};
use crate::names::outbound_cluster;

pub(super) const HTTP: &str = "envoy.filters.http.ext_authz";
pub(super) const NETWORK: &str = "envoy.filters.network.ext_authz";
const EFFECTIVE_POLICY: &str = "istio_ext_authz_shadow_effective_policy_id";

/// An ext_authz provider with a known service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ExtAuthzProvider {
    pub host: Str,
    pub cluster: Str,
    /// Status if the provider is unreachable; `None` for Envoy's default.
    pub status_on_error: Option<i32>,
    pub kind: ExtAuthzKind,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ExtAuthzKind {
    Http(Hashed<EnvoyExternalAuthorizationHttpProvider>),
    Grpc(Hashed<EnvoyExternalAuthorizationGrpcProvider>),
}

impl ExtAuthzProvider {
    pub(super) fn speaks_grpc(&self) -> bool {
        matches!(self.kind, ExtAuthzKind::Grpc(_))
    }
}

/// The provider of this name. `None` if it is missing, duplicate or invalid: then requests are denied.
pub(super) fn provider(view: &View, name: &str) -> Option<ExtAuthzProvider> {
    let mut named = view.settings.mesh.extension_providers.iter().filter(|p| p.name == name);
    let found = named.next()?;
    if named.next().is_some() || !is_label(name) {
        return None;
    }
    let (service, port, status, kind) = match found.provider.as_ref()? {
        Configured::EnvoyExtAuthzHttp(http) => {
            let usable = http.path_prefix.is_empty() || http.path_prefix.starts_with('/');
            if !usable || lists(http).into_iter().flatten().any(|header| header == "*") {
                return None;
            }
            (&http.service, http.port, &http.status_on_error, ExtAuthzKind::Http(Hashed::from_message(http.clone())))
        }
        Configured::EnvoyExtAuthzGrpc(grpc) => {
            (&grpc.service, grpc.port, &grpc.status_on_error, ExtAuthzKind::Grpc(Hashed::from_message(grpc.clone())))
        }
        _ => return None,
    };
    let port = u16::try_from(port).ok().filter(|p| *p > 0)?;
    let service = view.named_service(service)?;
    let status_on_error = match status.as_str() {
        "" => None,
        text => Some(StatusCode::try_from(text.parse::<i32>().ok()?).ok()? as i32),
    };
    Some(ExtAuthzProvider {
        host: service.hostname.text().clone(),
        cluster: outbound_cluster(port, "", &service.hostname).into(),
        status_on_error,
        kind,
    })
}

/// Provider names must be DNS labels, because they occur in metadata keys and metrics.
fn is_label(name: &str) -> bool {
    let plain = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    plain && !name.is_empty() && name.len() <= 63 && !name.starts_with('-') && !name.ends_with('-')
}

#[allow(deprecated)]
fn lists(http: &EnvoyExternalAuthorizationHttpProvider) -> [&Vec<String>; 5] {
    [
        &http.include_request_headers_in_check,
        &http.include_headers_in_check,
        &http.headers_to_downstream_on_deny,
        &http.headers_to_downstream_on_allow,
        &http.headers_to_upstream_on_allow,
    ]
}

/// The HTTP filter, enabled for requests that an RBAC filter marked.
pub(super) fn http(provider: &ExtAuthzProvider, name: &str) -> Any {
    let filter = match &provider.kind {
        ExtAuthzKind::Http(config) => ExtAuthz {
            failure_mode_allow: config.fail_open,
            with_request_body: config.include_request_body_in_check.as_ref().map(body),
            allowed_headers: allowed_headers(config),
            services: Some(Services::HttpService(http_service(provider, config))),
            ..ExtAuthz::default()
        },
        ExtAuthzKind::Grpc(config) => ExtAuthz {
            failure_mode_allow: config.fail_open,
            with_request_body: config.include_request_body_in_check.as_ref().map(body),
            services: Some(Services::GrpcService(grpc_service(provider, config))),
            ..ExtAuthz::default()
        },
    };
    api::any(&ExtAuthz {
        status_on_error: provider.status_on_error.map(|code| HttpStatus { code }),
        transport_api_version: ApiVersion::V3 as i32,
        filter_enabled_metadata: Some(marked(HTTP_RBAC, name)),
        ..filter
    })
}

/// The network filter. It needs gRPC; HTTP providers are never planned for TCP.
pub(super) fn network(provider: &ExtAuthzProvider, name: &str) -> Any {
    let (fail_open, service) = match &provider.kind {
        ExtAuthzKind::Grpc(config) => (config.fail_open, Some(grpc_service(provider, config))),
        ExtAuthzKind::Http(_) => (false, None),
    };
    api::any(&NetworkExtAuthz {
        stat_prefix: "tcp.".to_owned(),
        failure_mode_allow: fail_open,
        transport_api_version: ApiVersion::V3 as i32,
        grpc_service: service,
        filter_enabled_metadata: Some(marked(NETWORK_RBAC, name)),
        ..NetworkExtAuthz::default()
    })
}

/// Matches requests that a rule for this provider marked.
fn marked(rbac: &str, name: &str) -> MetadataMatcher {
    let rule = matchers::prefix(&format!("{}-{name}", super::CUSTOM_PREFIX));
    matchers::metadata(rbac, &[EFFECTIVE_POLICY], matchers::value(rule))
}

fn timeout(configured: Option<Duration>) -> Option<Duration> {
    Some(configured.unwrap_or(Duration { seconds: 600, nanos: 0 }))
}

fn grpc_service(provider: &ExtAuthzProvider, config: &EnvoyExternalAuthorizationGrpcProvider) -> GrpcService {
    let target = EnvoyGrpc {
        cluster_name: provider.cluster.to_string(),
        authority: provider.host.to_string(),
        ..EnvoyGrpc::default()
    };
    GrpcService {
        timeout: timeout(config.timeout),
        target_specifier: Some(TargetSpecifier::EnvoyGrpc(target)),
        ..GrpcService::default()
    }
}

fn http_service(provider: &ExtAuthzProvider, config: &EnvoyExternalAuthorizationHttpProvider) -> HttpService {
    let server = HttpUri {
        // Envoy requires a URI but calls the cluster.
        uri: format!("http://{}", provider.host),
        timeout: timeout(config.timeout),
        http_upstream_type: Some(HttpUpstreamType::Cluster(provider.cluster.to_string())),
    };
    let headers_to_add: Vec<HeaderValue> = config
        .include_additional_headers_in_check
        .iter()
        .map(|(key, value)| HeaderValue { key: key.clone(), value: value.clone(), ..HeaderValue::default() })
        .collect();
    let request = AuthorizationRequest { headers_to_add, ..AuthorizationRequest::default() };
    let response = AuthorizationResponse {
        allowed_upstream_headers: headers(&config.headers_to_upstream_on_allow),
        allowed_client_headers: headers(&config.headers_to_downstream_on_deny),
        allowed_client_headers_on_success: headers(&config.headers_to_downstream_on_allow),
        ..AuthorizationResponse::default()
    };
    HttpService {
        server_uri: Some(server),
        path_prefix: config.path_prefix.clone(),
        authorization_request: Some(request).filter(|r| !r.headers_to_add.is_empty()),
        authorization_response: Some(response).filter(|r| *r != AuthorizationResponse::default()),
        ..HttpService::default()
    }
}

/// The deprecated list is used if the current one is empty.
#[allow(deprecated)]
fn allowed_headers(config: &EnvoyExternalAuthorizationHttpProvider) -> Option<ListStringMatcher> {
    headers(&config.include_request_headers_in_check).or_else(|| headers(&config.include_headers_in_check))
}

fn headers(names: &[String]) -> Option<ListStringMatcher> {
    let pattern = |name: &String| {
        let pattern = if let Some(end) = name.strip_prefix('*') {
            MatchPattern::Suffix(end.to_owned())
        } else if let Some(start) = name.strip_suffix('*') {
            MatchPattern::Prefix(start.to_owned())
        } else {
            MatchPattern::Exact(name.clone())
        };
        StringMatcher { ignore_case: true, match_pattern: Some(pattern) }
    };
    (!names.is_empty()).then(|| ListStringMatcher { patterns: names.iter().map(pattern).collect() })
}

fn body(config: &EnvoyExternalAuthorizationRequestBody) -> BufferSettings {
    BufferSettings {
        max_request_bytes: config.max_request_bytes,
        allow_partial_message: config.allow_partial_message,
        pack_as_bytes: config.pack_as_bytes,
    }
}
