//! rustls set-up: the crypto provider, protocol versions, and certificates and keys from PEM. Callers read the files,
//! because each has its own rules for files, and choose how peers are verified.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, ServerConfig, WantsVerifier};

/// Why a PEM text cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PemTextError {
    #[error("no certificate found")]
    NoCertificate,
    #[error(transparent)]
    Malformed(#[from] pem::Error),
}

/// The crypto provider of all connections.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// A client configuration with the provider and rustls' default protocol versions.
pub fn client() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, rustls::Error> {
    ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()
}

/// A server configuration with the provider and rustls' default protocol versions.
pub fn server() -> Result<ConfigBuilder<ServerConfig, WantsVerifier>, rustls::Error> {
    ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()
}

/// All certificates of a PEM text; an error if there is none.
pub fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemTextError> {
    let found = CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>()?;
    if found.is_empty() { Err(PemTextError::NoCertificate) } else { Ok(found) }
}

/// The private key of a PEM text.
pub fn private_key(text: &[u8]) -> Result<PrivateKeyDer<'static>, PemTextError> {
    Ok(PrivateKeyDer::from_pem_slice(text)?)
}

/// A store of trusted CA certificates.
pub fn roots(certificates: impl IntoIterator<Item = CertificateDer<'static>>) -> Result<RootCertStore, rustls::Error> {
    let mut store = RootCertStore::empty();
    for certificate in certificates {
        store.add(certificate)?;
    }
    Ok(store)
}

/// Verifies client certificates with these roots. A client without a certificate is accepted; one whose certificate is in
/// a revocation list is not. CAs without a list have revoked none.
pub fn optional_client_verifier(
    roots: RootCertStore,
    revoked: impl IntoIterator<Item = CertificateRevocationListDer<'static>>,
) -> Result<Arc<dyn ClientCertVerifier>, rustls::server::VerifierBuilderError> {
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).allow_unauthenticated();
    builder.with_crls(revoked).only_check_end_entity_revocation().allow_unknown_revocation_status().build()
}

#[cfg(test)]
mod tests {
    use super::{PemTextError, certificates, client, private_key, roots, server};

    /// One certificate with a key, as PEM.
    fn pair() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[test]
    fn certificates_and_keys_are_read_from_pem() {
        let (certificate, key) = pair();
        let both = certificates(format!("{certificate}{certificate}{key}").as_bytes()).unwrap();
        assert_eq!(both.len(), 2);
        assert_eq!(roots(both).unwrap().len(), 2);
        private_key(key.as_bytes()).unwrap();
    }

    #[test]
    fn a_text_without_a_certificate_or_key_is_an_error() {
        let (certificate, key) = pair();
        assert!(matches!(certificates(key.as_bytes()), Err(PemTextError::NoCertificate)));
        assert!(matches!(certificates(b""), Err(PemTextError::NoCertificate)));
        assert!(private_key(certificate.as_bytes()).is_err());
        assert!(certificates(b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n").is_err());
    }

    #[test]
    fn builders_have_a_provider() {
        client().unwrap().with_root_certificates(roots([]).unwrap()).with_no_client_auth();
        let (certificate, key) = pair();
        let chain = certificates(certificate.as_bytes()).unwrap();
        let key = private_key(key.as_bytes()).unwrap();
        server().unwrap().with_no_client_auth().with_single_cert(chain, key).unwrap();
    }
}
