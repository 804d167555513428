//! Verifies the control plane's certificate: signed by a trusted root, and with one of the required names. A name is a
//! DNS name, an IP address or a SPIFFE identity, which the verifier of rustls does not know.

use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Verifies roots and names.
#[derive(Debug)]
pub(super) struct ServerNameVerifier {
    pub(super) roots: RootCertStore,
    pub(super) names: Vec<String>,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
}

/// A certificate of the right CA for another server.
#[derive(Debug, thiserror::Error)]
#[error("the certificate is for {}; required is {}", list(.found), list(.required))]
struct WrongName {
    found: Vec<String>,
    required: Vec<String>,
}

impl ServerCertVerifier for ServerNameVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, self.algorithms.all)?;
        let found = subject_alt_names(end_entity);
        let matches = |name: &String| match name.starts_with("spiffe://") {
            true => found.contains(name),
            false => ServerName::try_from(name.as_str()).is_ok_and(|name| verify_server_name(&parsed, &name).is_ok()),
        };
        if self.names.iter().any(matches) {
            return Ok(ServerCertVerified::assertion());
        }
        let error = WrongName { found, required: self.names.clone() };
        Err(CertificateError::Other(OtherError(Arc::new(error))).into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Replaces the error of a failed handshake by `WrongName`, which rustls prints as a debug value only.
pub(super) fn wrong_name(error: io::Error) -> io::Error {
    match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(Error::InvalidCertificate(CertificateError::Other(OtherError(cause)))) => {
            io::Error::other(cause.to_string())
        }
        _ => error,
    }
}

/// DNS names and URIs of a certificate.
fn subject_alt_names(certificate: &[u8]) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let Ok(Some(extension)) = certificate.subject_alternative_name() else { return Vec::new() };
    let names = extension.value.general_names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) | GeneralName::URI(name) => Some((*name).to_owned()),
        _ => None,
    });
    names.collect()
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "no name".to_owned() } else { names.join(" or ") }
}
