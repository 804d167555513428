//! Rules of TLS settings of servers and clients.

use std::collections::BTreeSet;

use api::istio::networking::v1alpha3::client_tls_settings::TlSmode as ClientMode;
use api::istio::networking::v1alpha3::server_tls_settings::{TlSmode as ServerMode, TlsCertificate, TlsProtocol};
use api::istio::networking::v1alpha3::{ClientTlsSettings, ServerTlsSettings};

use super::report::Report;

/// Cipher suites that Envoy's TLS library knows, without PSK.
const CIPHER_SUITES: &[&str] = &[
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-CHACHA20-POLY1305",
    "ECDHE-ECDSA-AES128-SHA",
    "ECDHE-RSA-AES128-SHA",
    "ECDHE-ECDSA-AES256-SHA",
    "ECDHE-RSA-AES256-SHA",
    "AES128-GCM-SHA256",
    "AES256-GCM-SHA384",
    "AES128-SHA",
    "AES256-SHA",
    "DES-CBC3-SHA",
];

/// Settings of a server of a Gateway, or of a Sidecar's listener.
pub(super) fn server(report: &mut Report, tls: &ServerTlsSettings) {
    let old = [TlsProtocol::Tlsv10, TlsProtocol::Tlsv11].map(i32::from).contains(&tls.min_protocol_version);
    report.warn_if(
        old && tls.cipher_suites.is_empty(),
        "TLS version below TLSV1_2 require setting compatible ciphers as by default they no longer include compatible ciphers",
    );
    let known = |suite: &str| is_cipher_suite(suite);
    listed(&tls.cipher_suites, known, ["ignoring invalid cipher suites", "ignoring duplicate cipher suites"], report);
    match tls.mode() {
        ServerMode::IstioMutual => istio_mutual(tls, report),
        mode => certificates(tls, mode, report),
    }
}

/// The suites that Envoy knows, without duplicates. Envoy rejects a listener with an unknown suite.
pub fn usable_cipher_suites(suites: &[String]) -> Vec<&str> {
    let mut usable: Vec<&str> = Vec::new();
    for suite in suites.iter().map(String::as_str).filter(|suite| is_cipher_suite(suite)) {
        if !usable.contains(&suite) {
            usable.push(suite);
        }
    }
    usable
}

fn is_cipher_suite(suite: &str) -> bool {
    // Envoy checks operators such as `-` and `+`.
    let is_expression = !suite.starts_with(char::is_alphanumeric);
    suite == "ALL" || is_expression || CIPHER_SUITES.contains(&suite)
}

/// Warns of unknown and duplicate entries.
pub(super) fn listed(entries: &[String], known: impl Fn(&str) -> bool, messages: [&str; 2], report: &mut Report) {
    let (mut seen, mut twice, mut strange) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for entry in entries {
        if !known(entry) {
            strange.insert(entry.as_str());
        } else if !seen.insert(entry.as_str()) {
            twice.insert(entry.as_str());
        }
    }
    for (set, message) in [strange, twice].into_iter().zip(messages) {
        let names: Vec<&str> = set.into_iter().collect();
        report.warn_if(!names.is_empty(), format_args!("{message}: [{}]", names.join(" ")));
    }
}

/// Mesh certificates are used, so no others may be set.
fn istio_mutual(tls: &ServerTlsSettings, report: &mut Report) {
    let given = [
        (!tls.server_certificate.is_empty(), "server certificate"),
        (!tls.private_key.is_empty(), "private key"),
        (!tls.ca_certificates.is_empty(), "CA bundle"),
        (!tls.tls_certificates.is_empty(), "tlsCertificates"),
        (!tls.credential_name.is_empty(), "credentialName"),
        (!tls.credential_names.is_empty(), "credentialNames"),
    ];
    for (given, name) in given {
        report.error_if(given, format_args!("ISTIO_MUTUAL TLS cannot have associated {name}"));
    }
}

fn certificates(tls: &ServerTlsSettings, mode: ServerMode, report: &mut Report) {
    let files = !tls.server_certificate.is_empty() && !tls.private_key.is_empty();
    let named = !tls.credential_name.is_empty() || !tls.credential_names.is_empty();
    if matches!(mode, ServerMode::Passthrough | ServerMode::AutoPassthrough) {
        let texts = [&tls.ca_crl, &tls.server_certificate, &tls.private_key, &tls.ca_certificates];
        let given = named || !tls.tls_certificates.is_empty() || texts.iter().any(|text| !text.is_empty());
        let name = mode.as_str_name();
        report.warn_if(given, format_args!("{name} mode does not use certificates, they will be ignored"));
    }
    let sources =
        [files, !tls.credential_name.is_empty(), !tls.credential_names.is_empty(), !tls.tls_certificates.is_empty()];
    report.error_if(
        sources.iter().filter(|given| **given).count() > 1,
        "only one of credential_name, credential_names, server_certificate/private_key, tls_certificates should be specified",
    );
    let terminates = matches!(mode, ServerMode::Simple | ServerMode::Mutual | ServerMode::OptionalMutual);
    if terminates && named {
        return;
    }
    if terminates {
        own_certificates(tls, mode, report);
    }
    report.error_if(
        !tls.ca_crl.is_empty() && !tls.credential_name.is_empty(),
        "CRL is not supported with credentialName. CRL has to be specified in the credential",
    );
    report.error_if(!tls.ca_crl.is_empty() && mode == ServerMode::Simple, "CRL is not supported with SIMPLE TLS");
}

/// A server that terminates TLS with files needs all of them.
fn own_certificates(tls: &ServerTlsSettings, mode: ServerMode, report: &mut Report) {
    let prefix = if mode == ServerMode::Simple { "SIMPLE TLS" } else { "MUTUAL TLS" };
    let needs_ca = mode != ServerMode::Simple && tls.ca_certificates.is_empty();
    report.error_if(needs_ca, format_args!("{prefix} requires a client CA bundle"));
    let many = tls.tls_certificates.len() > 2;
    report.warn_if(many, format_args!("{prefix} can support up to 2 server certificates"));
    let single = [TlsCertificate {
        server_certificate: tls.server_certificate.clone(),
        private_key: tls.private_key.clone(),
        ..TlsCertificate::default()
    }];
    let certificates = if tls.tls_certificates.is_empty() { &single[..] } else { &tls.tls_certificates };
    for certificate in certificates {
        let (no_certificate, no_key) = (certificate.server_certificate.is_empty(), certificate.private_key.is_empty());
        report.error_if(no_certificate, format_args!("{prefix} requires a server certificate"));
        report.error_if(no_key, format_args!("{prefix} requires a private key"));
    }
}

/// Client settings; `namespace` is that of the object.
pub(super) fn client(namespace: &str, tls: &ClientTlsSettings, report: &mut Report) {
    if let Some(name) = tls.credential_name.strip_prefix("configmap://") {
        config_map(name, namespace, report);
    }
    let mode = tls.mode();
    let (has_ca, has_names) = (!tls.ca_certificates.is_empty(), !tls.subject_alt_names.is_empty());
    let has_credential = !tls.credential_name.is_empty();
    if tls.insecure_skip_verify == Some(true) {
        report.error_if(
            mode == ClientMode::Simple && (has_ca || has_credential || has_names),
            "cannot specify CaCertificates or CredentialName or SubjectAltNames when InsecureSkipVerify is set true",
        );
        report.error_if(
            mode == ClientMode::Mutual && (has_ca || has_names),
            "cannot specify CaCertificates or SubjectAltNames when InsecureSkipVerify is set true",
        );
    }
    if matches!(mode, ClientMode::Simple | ClientMode::Mutual) && has_credential {
        let files = [&tls.client_certificate, &tls.ca_certificates, &tls.private_key, &tls.ca_crl];
        report.error_if(
            files.iter().any(|file| !file.is_empty()),
            "cannot specify client certificates or CA certificate or CA CRL If credentialName is set",
        );
        return;
    }
    if mode == ClientMode::Mutual {
        report.error_if(tls.client_certificate.is_empty(), "client certificate required for mutual tls");
        report.error_if(tls.private_key.is_empty(), "private key required for mutual tls");
    }
}

fn config_map(name: &str, namespace: &str, report: &mut Report) {
    let mut parts = name.split('/');
    let owner = parts.next().unwrap_or_default();
    match parts.next() {
        Some(name) if !name.is_empty() && !owner.is_empty() => report.error_if(
            owner != namespace || namespace.is_empty(),
            format_args!(
                "invalid configmap:// credentialName: namespace must match the configuration namespace {namespace:?}"
            ),
        ),
        _ => report.error("invalid configmap:// credentialName: expected namespace and name"),
    }
}
