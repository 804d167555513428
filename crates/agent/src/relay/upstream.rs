//! Connections to the control plane: TCP, optional TLS, HTTP/2 with keepalive pings, and authentication. Certificates
//! and token are read for every connection, so that changes take effect without a restart.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use http::{HeaderName, HeaderValue};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use net::tls;
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, ServerName};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tracing::{debug, warn};
use trust::certificate::Certificate;

use super::headers;
use super::requests::UpstreamBody;
use super::responses::{UpstreamConnection, causes};
use super::server_names::{ServerNameVerifier, wrong_name};

/// HTTP/2 flow control window. Larger windows only cost memory.
const WINDOW: u32 = 512 * 1024;

/// How to connect to the control plane.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Upstream {
    /// `host:port`.
    pub address: String,
    /// Further addresses, tried in turn when a connection fails.
    #[serde(default)]
    pub others: Vec<String>,
    /// Index of the address that was connected to last; shared by clones.
    #[serde(skip)]
    pub preferred: Arc<AtomicUsize>,
    /// `None` for plain text.
    pub tls: Option<UpstreamTls>,
    /// File with the bearer token.
    pub token: Option<PathBuf>,
    /// Sent with every stream, such as `clusterid`.
    #[serde(with = "headers")]
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Timeout for TCP connect, TLS and HTTP/2 handshakes together.
    pub connect_timeout: Duration,
    pub pings: Pings,
}

/// TLS settings.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UpstreamTls {
    /// File with the roots that the server certificate is verified with.
    pub roots: PathBuf,
    /// DNS names, IP addresses and SPIFFE identities of which the server certificate must have one.
    pub names: Vec<String>,
    /// Client certificate chain and key; used if both files exist.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// HTTP/2 keepalive: a ping after `interval` of silence; the connection is closed without a reply within `timeout`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Pings {
    pub interval: Duration,
    pub timeout: Duration,
}

impl Default for Pings {
    /// Upstream's values: a half-open connection is detected within 40 s.
    fn default() -> Pings {
        Pings { interval: Duration::from_secs(30), timeout: Duration::from_secs(10) }
    }
}

impl Upstream {
    /// Plain text with upstream's timeouts.
    pub fn plain(address: &str) -> Upstream {
        Upstream {
            address: address.to_owned(),
            others: Vec::new(),
            preferred: Arc::default(),
            tls: None,
            token: None,
            headers: Vec::new(),
            connect_timeout: Duration::from_secs(5),
            pings: Pings::default(),
        }
    }

    pub(super) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// The same with one address each, the one that was connected to last first.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = (usize, Upstream)> {
        let (first, count) = (self.preferred.load(Ordering::Relaxed), self.others.len() + 1);
        (0..count).map(move |step| {
            let index = (first + step) % count;
            let address = index.checked_sub(1).map_or(&self.address, |other| &self.others[other]);
            (index, Upstream { address: address.clone(), others: Vec::new(), ..self.clone() })
        })
    }

    /// Notes that an address works, so that it is used until it fails.
    pub(crate) fn prefer(&self, index: usize) {
        self.preferred.store(index, Ordering::Relaxed);
    }

    /// Opens a new connection, to the first address that accepts one.
    pub(super) async fn connect(&self) -> Result<(SendRequest<UpstreamBody>, UpstreamConnection)> {
        let mut failures = Vec::new();
        for (index, upstream) in self.candidates() {
            match upstream.connect_here().await {
                Ok(connected) => {
                    self.prefer(index);
                    return Ok(connected);
                }
                Err(error) if self.others.is_empty() => return Err(error),
                Err(error) => failures.push(format!("{error:#}")),
            }
        }
        bail!("{}", failures.join("; "))
    }

    async fn connect_here(&self) -> Result<(SendRequest<UpstreamBody>, UpstreamConnection)> {
        let connected = timeout(self.connect_timeout, self.dial()).await;
        connected.with_context(|| format!("could not connect to {} within {:?}", self.address, self.connect_timeout))?
    }

    async fn dial(&self) -> Result<(SendRequest<UpstreamBody>, UpstreamConnection)> {
        let stream = TcpStream::connect(&self.address).await;
        let stream = stream.with_context(|| format!("could not connect to {}", self.address))?;
        stream.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return self.handshake(stream).await };
        let name = tls.name(&self.address)?;
        let stream = TlsConnector::from(tls.config()?).connect(name, stream).await.map_err(wrong_name);
        self.handshake(stream.with_context(|| format!("TLS handshake with {} failed", self.address))?).await
    }

    async fn handshake<S>(&self, stream: S) -> Result<(SendRequest<UpstreamBody>, UpstreamConnection)>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let connected = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .keep_alive_interval(self.pings.interval)
            .keep_alive_timeout(self.pings.timeout)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(stream))
            .await;
        let (sender, connection) =
            connected.with_context(|| format!("HTTP/2 handshake with {} failed", self.address))?;
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                debug!(error = %causes(&error), "connection to the control plane ended");
            }
        });
        Ok((sender, UpstreamConnection(driver.abort_handle())))
    }

    /// `Bearer TOKEN`. Without a readable token no header is sent: the control plane decides.
    pub(crate) fn authorization(&self) -> Option<HeaderValue> {
        let file = self.token.as_ref()?;
        let token = match fs::read_to_string(file) {
            Ok(token) if !token.trim().is_empty() => token,
            Ok(_) => {
                warn!(file = %file.display(), "the token file is empty; connecting without a token");
                return None;
            }
            Err(error) => {
                warn!(file = %file.display(), %error, "could not read the token file; connecting without a token");
                return None;
            }
        };
        let mut value = HeaderValue::from_str(&format!("Bearer {}", token.trim())).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

impl UpstreamTls {
    /// The server name that is sent (SNI): the host of the address if it is required or nothing is, else the first required
    /// DNS name.
    pub(crate) fn name(&self, address: &str) -> Result<ServerName<'static>> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
        let mut names = self.names.iter().map(String::as_str).filter(|name| !name.starts_with("spiffe://"));
        let name = if names.clone().any(|name| name == host) { host } else { names.next().unwrap_or(host) };
        ServerName::try_from(name.to_owned()).with_context(|| format!("could not use {name:?} as a TLS server name"))
    }

    fn config(&self) -> Result<Arc<ClientConfig>> {
        self.config_with(&[], None)
    }

    /// Also trusts further roots, and has another client certificate (chain and key) if there are no files. All are PEM.
    pub(crate) fn config_with(&self, further_roots: &[u8], own: Option<(&[u8], &[u8])>) -> Result<Arc<ClientConfig>> {
        let roots = tls::roots(certificates(&self.roots)?);
        let mut roots =
            roots.with_context(|| format!("could not use a root certificate in {}", self.roots.display()))?;
        // Unusable ones are left out: the control plane is verified with the file's too.
        roots.add_parsable_certificates(tls::certificates(further_roots).unwrap_or_default());
        let algorithms = tls::provider().signature_verification_algorithms;
        let verifier = ServerNameVerifier { roots, names: self.names.clone(), algorithms };
        let builder = tls::client()?.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
        let files = self.client.as_ref().filter(|(chain, key)| chain.exists() && key.exists() && !has_expired(chain));
        let mut config = match (files, own) {
            (None, None) => builder.with_no_client_auth(),
            (None, Some((chain, key))) => {
                builder.with_client_auth_cert(tls::certificates(chain)?, tls::private_key(key)?)?
            }
            (Some((chain, key)), _) => {
                let unreadable = || format!("could not read a private key from {}", key.display());
                let secret = tls::private_key(&fs::read(key).with_context(unreadable)?).with_context(unreadable)?;
                let config = builder.with_client_auth_cert(certificates(chain)?, secret);
                config.with_context(|| format!("could not use the certificate {}", chain.display()))?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }
}

/// Whether the certificate of a file has expired. Then the token is used: a machine may have been off for long. A file that
/// cannot be read is reported when it is used.
fn has_expired(chain: &Path) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let text = fs::read_to_string(chain).unwrap_or_default();
    let leaf = Certificate::all_from_pem(&text).ok().and_then(|all| all.into_iter().next());
    let expired = leaf.is_some_and(|leaf| u64::try_from(leaf.not_after).is_ok_and(|end| end < now));
    if expired {
        warn!(file = %chain.display(), "the client certificate has expired; connecting without it");
    }
    expired
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let unreadable = || format!("could not read certificates from {}", file.display());
    tls::certificates(&fs::read(file).with_context(unreadable)?).with_context(unreadable)
}

#[cfg(test)]
mod tests {
    use super::has_expired;

    #[test]
    fn an_expired_client_certificate_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cert-chain.pem");
        let mut params = rcgen::CertificateParams::default();
        for (year, expected) in [(2020, true), (2040, false)] {
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
            let certificate = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
            std::fs::write(&path, certificate.pem()).unwrap();
            assert_eq!(has_expired(&path), expected, "{year}");
        }
        std::fs::write(&path, "nonsense").unwrap();
        assert!(!has_expired(&path) && !has_expired(&folder.path().join("none")));
    }
}
