//! Mutual TLS of gRPC: certificates come from the provider `default` of its bootstrap file.

use api::envoy::config::core::v3::TransportSocket;
use api::envoy::config::core::v3::transport_socket::ConfigType;
use api::envoy::extensions::transport_sockets::tls::v3::common_tls_context::{
    CertificateProviderInstance, CombinedCertificateValidationContext, ValidationContextType,
};
use api::envoy::extensions::transport_sockets::tls::v3::{
    CertificateProviderPluginInstance, CertificateValidationContext, CommonTlsContext, DownstreamTlsContext,
    UpstreamTlsContext,
};
use api::envoy::r#type::matcher::v3::StringMatcher;
use api::{Any, any};
use prost::Message;

/// gRPC requires this name.
const TLS: &str = "envoy.transport_sockets.tls";
/// Provider in the bootstrap file, and the name of the mesh's certificate.
const DEFAULT: &str = "default";
const ROOT: &str = "ROOTCA";

/// The socket of a client, if Envoy's uses the mesh's certificate.
pub(super) fn client(envoy: &TransportSocket) -> Option<TransportSocket> {
    let Some(ConfigType::TypedConfig(config)) = &envoy.config_type else { return None };
    let context = UpstreamTlsContext::decode(&*config.value).ok()?.common_tls_context?;
    if context.tls_certificate_sds_secret_configs.first()?.name != DEFAULT {
        return None;
    }
    let common_tls_context = Some(common(subject_names(&context)));
    Some(socket(any(&UpstreamTlsContext { common_tls_context, ..UpstreamTlsContext::default() })))
}

/// The socket of a server that requires a certificate of the mesh.
pub(super) fn server() -> TransportSocket {
    socket(any(&DownstreamTlsContext {
        common_tls_context: Some(common(Vec::new())),
        require_client_certificate: Some(true),
        ..DownstreamTlsContext::default()
    }))
}

/// Names that the server's certificate must have one of.
fn subject_names(envoy: &CommonTlsContext) -> Vec<StringMatcher> {
    let Some(ValidationContextType::CombinedValidationContext(combined)) = &envoy.validation_context_type else {
        return Vec::new();
    };
    let names = combined.default_validation_context.iter().flat_map(|context| &context.match_typed_subject_alt_names);
    names.filter_map(|name| name.matcher.clone()).collect()
}

/// The fields of today's gRPC and those of older versions, as upstream sends them.
fn common(names: Vec<StringMatcher>) -> CommonTlsContext {
    let today = |certificate: &str| {
        let certificate_name = certificate.to_owned();
        Some(CertificateProviderPluginInstance { instance_name: DEFAULT.to_owned(), certificate_name })
    };
    let older = |certificate: &str| {
        let certificate_name = certificate.to_owned();
        Some(CertificateProviderInstance { instance_name: DEFAULT.to_owned(), certificate_name })
    };
    let validation = CertificateValidationContext {
        ca_certificate_provider_instance: today(ROOT),
        match_subject_alt_names: names,
        ..CertificateValidationContext::default()
    };
    let combined = CombinedCertificateValidationContext {
        default_validation_context: Some(validation),
        validation_context_certificate_provider_instance: older(ROOT),
        ..CombinedCertificateValidationContext::default()
    };
    CommonTlsContext {
        tls_certificate_provider_instance: today(DEFAULT),
        tls_certificate_certificate_provider_instance: older(DEFAULT),
        validation_context_type: Some(ValidationContextType::CombinedValidationContext(combined)),
        ..CommonTlsContext::default()
    }
}

fn socket(config: Any) -> TransportSocket {
    TransportSocket { name: TLS.to_owned(), config_type: Some(ConfigType::TypedConfig(config)) }
}
