//! Options of an HTTP client, and how TLS failures are explained in terms of them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustls::CertificateError;

use crate::http::address_policy::AddressPolicy;
use crate::http::tls::{ClientIdentity, TrustRoots};

/// How a client connects.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// CA certificates to trust.
    pub roots: TrustRoots,
    /// The client certificate for servers that request one.
    pub identity: Option<ClientIdentity>,
    /// The expected name in the server certificate; the host of the URL by default.
    pub server_name: Option<String>,
    /// Addresses that may be connected to.
    pub address_policy: AddressPolicy,
    pub connect_timeout: Duration,
    /// Idle connections kept per server.
    pub idle_connections: usize,
    /// Bytes of response bodies in memory at a time, of all requests together, until they are decoded and used.
    pub held_bytes: usize,
}

/// The default of [`HttpOptions::held_bytes`].
pub const HELD_BYTES: usize = 128 << 20;

impl Default for HttpOptions {
    fn default() -> HttpOptions {
        HttpOptions {
            roots: TrustRoots::System,
            identity: None,
            server_name: None,
            address_policy: AddressPolicy::Anywhere,
            connect_timeout: Duration::from_secs(5),
            idle_connections: 16,
            held_bytes: HELD_BYTES,
        }
    }
}

impl HttpOptions {
    /// Files with certificates and keys.
    pub(super) fn files(&self) -> Vec<&Path> {
        let roots = if let TrustRoots::File(file) = &self.roots { Some(file) } else { None };
        let own = self.identity.iter().flat_map(|ClientIdentity { chain, key }| [chain, key]);
        roots.into_iter().chain(own).map(PathBuf::as_path).collect()
    }

    /// The message for a server certificate that failed verification.
    pub(super) fn untrusted(&self, fault: &CertificateError) -> String {
        match fault {
            // A re-created CA has the same name and another key, which makes the signature bad.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => match &self.roots {
                TrustRoots::System => "server certificate not trusted: not signed by a CA of the system".to_owned(),
                TrustRoots::File(file) => {
                    format!("server certificate not trusted: not signed by a CA in {}", file.display())
                }
                TrustRoots::None => "server certificate not trusted: no CA certificates are configured".to_owned(),
            },
            other => format!("server certificate not valid: {other}"),
        }
    }

    /// The message for a TLS alert by which the server rejected the client.
    pub(super) fn rejected(&self, alert: &str) -> String {
        match &self.identity {
            None => format!("the server closed the TLS connection, no client certificate is configured: {alert}"),
            Some(ClientIdentity { chain, .. }) => {
                format!("the server rejected the client certificate in {}: {alert}", chain.display())
            }
        }
    }
}
