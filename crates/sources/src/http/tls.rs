//! TLS settings of clients: trusted CA certificates, the client certificate, and TLS errors inside I/O errors.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper_rustls::ConfigBuilderExt;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use super::HttpError;
use crate::disk;

/// CA certificates to trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustRoots {
    /// Those of the operating system.
    System,
    /// Those of a PEM file, and no others.
    File(PathBuf),
    /// None: TLS always fails, plain text works.
    None,
}

/// A certificate chain and its key, as PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIdentity {
    pub chain: PathBuf,
    pub key: PathBuf,
}

/// The TLS error that caused a failure, if one did.
pub(super) fn failure<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    match cause.downcast_ref::<std::io::Error>() {
        // An I/O error wraps a TLS error without returning it as its source.
        Some(outer) => failure(outer.get_ref()?),
        None => cause.downcast_ref(),
    }
}

/// The TLS configuration of a client. Reads the files.
pub(crate) fn config(roots: &TrustRoots, identity: Option<&ClientIdentity>) -> Result<ClientConfig, HttpError> {
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| HttpError::Tls(e.to_string()))?;
    let builder = match roots {
        TrustRoots::System => builder.with_native_roots().map_err(|e| HttpError::Tls(e.to_string()))?,
        TrustRoots::File(file) => builder.with_root_certificates(store(certificates(file)?, file)?),
        TrustRoots::None => builder.with_root_certificates(RootCertStore::empty()),
    };
    let Some(ClientIdentity { chain, key }) = identity else { return Ok(builder.with_no_client_auth()) };
    let private = PrivateKeyDer::from_pem_slice(&content(key)?).map_err(|e| unreadable(key, &e))?;
    builder
        .with_client_auth_cert(certificates(chain)?, private)
        .map_err(|e| HttpError::Tls(format!("could not use {} with {}: {e}", chain.display(), key.display())))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, HttpError> {
    let content = content(file)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&content).collect();
    let all = all.map_err(|e| unreadable(file, &e))?;
    if all.is_empty() {
        return Err(HttpError::Tls(format!("{} has no certificate", file.display())));
    }
    Ok(all)
}

fn store(certificates: Vec<CertificateDer<'static>>, file: &Path) -> Result<RootCertStore, HttpError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(|e| unreadable(file, &e))?;
    }
    Ok(roots)
}

fn content(file: &Path) -> Result<Vec<u8>, HttpError> {
    disk::content(file).map_err(|e| unreadable(file, &e))
}

fn unreadable(file: &Path, error: &dyn std::fmt::Display) -> HttpError {
    HttpError::Tls(format!("could not read {}: {error}", file.display()))
}
