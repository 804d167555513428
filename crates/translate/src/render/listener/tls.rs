//! Renders downstream TLS as a transport socket.

use api::any;
use api::envoy::config::core::v3::{DataSource, TransportSocket, data_source, transport_socket};
use api::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, CommonTlsContext, DownstreamTlsContext, SdsSecretConfig, TlsParameters,
    certificate_validation_context, common_tls_context, tls_parameters,
};
use api::envoy::r#type::matcher::v3::{StringMatcher, string_matcher};
use model::names::Str;

use crate::plan::listener::{ClientValidation, SecretRef, SecretSource, ServerTls, TlsParams, TlsVersion};
use crate::render::secrets;

pub(super) fn transport_socket(plan: &ServerTls) -> TransportSocket {
    let context = DownstreamTlsContext {
        common_tls_context: Some(CommonTlsContext {
            tls_params: plan.params.as_ref().map(params),
            tls_certificate_sds_secret_configs: plan.certificates.iter().map(secret).collect(),
            alpn_protocols: texts(&plan.alpn),
            validation_context_type: plan.validation.as_ref().map(validation),
            ..CommonTlsContext::default()
        }),
        require_client_certificate: Some(plan.require_client_certificate),
        ..DownstreamTlsContext::default()
    };
    TransportSocket {
        name: "envoy.transport_sockets.tls".into(),
        config_type: Some(transport_socket::ConfigType::TypedConfig(any(&context))),
    }
}

fn texts(items: &[Str]) -> Vec<String> {
    items.iter().map(|item| item.to_string()).collect()
}

fn params(params: &TlsParams) -> TlsParameters {
    use tls_parameters::TlsProtocol;
    let version = |version: Option<TlsVersion>| match version {
        None => TlsProtocol::TlsAuto,
        Some(TlsVersion::V1_0) => TlsProtocol::TlSv10,
        Some(TlsVersion::V1_1) => TlsProtocol::TlSv11,
        Some(TlsVersion::V1_2) => TlsProtocol::TlSv12,
        Some(TlsVersion::V1_3) => TlsProtocol::TlSv13,
    };
    TlsParameters {
        tls_minimum_protocol_version: version(params.min).into(),
        tls_maximum_protocol_version: version(params.max).into(),
        cipher_suites: texts(&params.ciphers),
        ecdh_curves: texts(&params.curves),
        ..TlsParameters::default()
    }
}

fn validation(plan: &ClientValidation) -> common_tls_context::ValidationContextType {
    use certificate_validation_context::TrustChainVerification;
    use string_matcher::MatchPattern;
    let matcher = |pattern| StringMatcher { match_pattern: Some(pattern), ..StringMatcher::default() };
    let exact = plan.exact_names.iter().map(|n| matcher(MatchPattern::Exact(n.to_string())));
    let prefixes = plan.name_prefixes.iter().map(|n| matcher(MatchPattern::Prefix(n.to_string())));
    let file = || DataSource {
        specifier: Some(data_source::Specifier::Filename(plan.revoked.to_string())),
        ..DataSource::default()
    };
    let verification = if plan.accept_untrusted {
        TrustChainVerification::AcceptUntrusted
    } else {
        TrustChainVerification::VerifyTrustChain
    };
    let default = CertificateValidationContext {
        match_subject_alt_names: exact.chain(prefixes).collect(),
        crl: (!plan.revoked.is_empty()).then(file),
        trust_chain_verification: verification.into(),
        verify_certificate_spki: texts(&plan.key_hashes),
        verify_certificate_hash: texts(&plan.hashes),
        ..CertificateValidationContext::default()
    };
    let Some(roots) = &plan.roots else {
        return common_tls_context::ValidationContextType::ValidationContext(default);
    };
    let combined = common_tls_context::CombinedCertificateValidationContext {
        default_validation_context: Some(default),
        validation_context_sds_secret_config: Some(secret(roots)),
        ..common_tls_context::CombinedCertificateValidationContext::default()
    };
    common_tls_context::ValidationContextType::CombinedValidationContext(combined)
}

fn secret(secret: &SecretRef) -> SdsSecretConfig {
    match secret.source {
        SecretSource::Agent => secrets::from_files(&secret.name, false),
        SecretSource::Files => secrets::from_files(&secret.name, true),
        SecretSource::Credential { own_socket } => secrets::from_credential(&secret.name, own_socket),
    }
}
