//! The way to the control plane: TCP, TLS when asked for, HTTP/2 with pings, and who we say we are.
//! Files are read again for every connection, so that a new token or root takes effect by itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use http::{HeaderName, HeaderValue};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tracing::{debug, warn};

use super::headers;
use super::requests::UpstreamBody;
use super::responses::{UpstreamConnection, causes};

/// Enough for a round trip or two of a megabyte; more would only be memory.
const WINDOW: u32 = 512 * 1024;

/// The control plane as the agent reaches it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Upstream {
    /// `host:port`.
    pub address: String,
    /// None: plain text.
    pub tls: Option<UpstreamTls>,
    /// A file with the token that shows who we are.
    pub token: Option<PathBuf>,
    /// Sent with every stream, such as `clusterid`.
    #[serde(with = "headers")]
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// How long TCP, TLS and HTTP/2 may take to stand.
    pub connect_timeout: Duration,
    pub pings: Pings,
}

/// How TLS is done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UpstreamTls {
    /// Certificates that the control plane's is checked against.
    pub roots: PathBuf,
    /// The name on its certificate, where it is not the address's host.
    pub server_name: Option<String>,
    /// Our own certificate chain and key, shown when there.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// When nothing comes for `interval` a ping is sent; without an answer in `timeout` the connection is dead.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Pings {
    pub interval: Duration,
    pub timeout: Duration,
}

impl Default for Pings {
    /// Upstream's: a half-open connection is found in 40 s at most.
    fn default() -> Pings {
        Pings { interval: Duration::from_secs(30), timeout: Duration::from_secs(10) }
    }
}

impl Upstream {
    /// Plain text, upstream's time limits.
    pub fn plain(address: &str) -> Upstream {
        Upstream {
            address: address.to_owned(),
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

    /// A connection of its own for one stream.
    pub(super) async fn connect(&self) -> Result<(SendRequest<UpstreamBody>, UpstreamConnection)> {
        let connected = timeout(self.connect_timeout, self.dial()).await;
        connected.with_context(|| format!("no connection to {} in {:?}", self.address, self.connect_timeout))?
    }

    async fn dial(&self) -> Result<(SendRequest<UpstreamBody>, UpstreamConnection)> {
        let stream = TcpStream::connect(&self.address).await;
        let stream = stream.with_context(|| format!("could not connect to {}", self.address))?;
        stream.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return self.speak(stream).await };
        let name = tls.name(&self.address)?;
        let stream = TlsConnector::from(tls.config()?).connect(name, stream).await;
        self.speak(stream.with_context(|| format!("could not speak TLS with {}", self.address))?).await
    }

    async fn speak<S>(&self, stream: S) -> Result<(SendRequest<UpstreamBody>, UpstreamConnection)>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let handshake = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .keep_alive_interval(self.pings.interval)
            .keep_alive_timeout(self.pings.timeout)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(stream))
            .await;
        let (sender, connection) =
            handshake.with_context(|| format!("could not speak HTTP/2 with {}", self.address))?;
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                debug!(error = %causes(&error), "connection to the control plane ended");
            }
        });
        Ok((sender, UpstreamConnection(driver.abort_handle())))
    }

    /// `Bearer TOKEN`. A token that is not there (yet) is not sent: the control plane judges.
    pub(super) fn authorization(&self) -> Option<HeaderValue> {
        let file = self.token.as_ref()?;
        let token = match fs::read_to_string(file) {
            Ok(token) if !token.trim().is_empty() => token,
            Ok(_) => {
                warn!(file = %file.display(), "the token is empty");
                return None;
            }
            Err(error) => {
                warn!(file = %file.display(), %error, "could not read the token");
                return None;
            }
        };
        let mut value = HeaderValue::from_str(&format!("Bearer {}", token.trim())).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

impl UpstreamTls {
    fn name(&self, address: &str) -> Result<ServerName<'static>> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
        let name = self.server_name.as_deref().unwrap_or(host);
        ServerName::try_from(name.to_owned()).with_context(|| format!("could not use {name:?} as a server's name"))
    }

    fn config(&self) -> Result<Arc<ClientConfig>> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.roots)? {
            roots.add(certificate).with_context(|| format!("could not use a root of {}", self.roots.display()))?;
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let builder = builder.with_root_certificates(roots);
        let mut config = match self.client.as_ref().filter(|(chain, key)| chain.exists() && key.exists()) {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let secret = PrivateKeyDer::from_pem_file(key);
                let secret = secret.with_context(|| format!("could not read a private key from {}", key.display()))?;
                let config = builder.with_client_auth_cert(certificates(chain)?, secret);
                config.with_context(|| format!("could not use the certificate {}", chain.display()))?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = || CertificateDer::pem_file_iter(file)?.collect::<Result<Vec<_>, _>>();
    let found = read().with_context(|| format!("could not read certificates from {}", file.display()))?;
    if found.is_empty() {
        bail!("could not find a certificate in {}", file.display());
    }
    Ok(found)
}
