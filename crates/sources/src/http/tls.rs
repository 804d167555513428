//! TLS settings of clients: trusted CA certificates, the client certificate, and TLS errors inside I/O errors.

use std::path::{Path, PathBuf};

use hyper_rustls::ConfigBuilderExt;
use net::tls;
use rustls::pki_types::CertificateDer;
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
    let builder = tls::client().map_err(|e| HttpError::Tls(e.to_string()))?;
    let builder = match roots {
        TrustRoots::System => builder.with_native_roots().map_err(|e| HttpError::Tls(e.to_string()))?,
        TrustRoots::File(file) => {
            builder.with_root_certificates(tls::roots(certificates(file)?).map_err(|e| unreadable(file, &e))?)
        }
        TrustRoots::None => builder.with_root_certificates(RootCertStore::empty()),
    };
    let Some(ClientIdentity { chain, key }) = identity else { return Ok(builder.with_no_client_auth()) };
    let private = tls::private_key(&content(key)?).map_err(|e| unreadable(key, &e))?;
    builder
        .with_client_auth_cert(certificates(chain)?, private)
        .map_err(|e| HttpError::Tls(format!("could not use {} with {}: {e}", chain.display(), key.display())))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, HttpError> {
    tls::certificates(&content(file)?).map_err(|e| unreadable(file, &e))
}

fn content(file: &Path) -> Result<Vec<u8>, HttpError> {
    disk::content(file).map_err(|e| unreadable(file, &e))
}

fn unreadable(file: &Path, error: &dyn std::fmt::Display) -> HttpError {
    HttpError::Tls(format!("could not read {}: {error}", file.display()))
}
