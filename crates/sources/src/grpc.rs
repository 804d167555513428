//! gRPC connections of sources: plain text, or TLS with the same settings as the HTTP client.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use crate::http::{ClientIdentity, HttpError, TrustRoots, tls_config};

const CONNECT: Duration = Duration::from_secs(5);
/// Interval and timeout of keepalive pings, which detect a dead server.
const PING: Duration = Duration::from_secs(15);

/// Larger messages are errors, so that an endless message does not fill memory. All objects of one kind are smaller.
pub(crate) const LARGEST_MESSAGE: usize = 128 << 20;

/// TLS settings of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcTls {
    pub roots: TrustRoots,
    pub identity: Option<ClientIdentity>,
    /// The expected name in the server certificate; the host of the address by default.
    pub server_name: Option<String>,
}

/// Connects to `host:port`. Certificate files are read here, so a lost TLS connection is not re-established by itself:
/// the caller connects again and gets replaced certificates.
pub(crate) async fn connect(address: &str, tls: Option<&GrpcTls>) -> Result<Channel, ConnectError> {
    let failed = |cause: ConnectCause| ConnectError { address: address.to_owned(), cause };
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|e| failed(e.into()))?;
    let endpoint = endpoint
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .keep_alive_while_idle(true);
    let connected = match tls {
        None => endpoint.connect().await,
        Some(tls) => {
            let handshake = Handshake::new(address, tls).map_err(failed)?;
            endpoint.connect_with_connector(service_fn(move |_: Uri| handshake.clone().open())).await
        }
    };
    connected.map_err(|e| failed(e.into()))
}

/// A connection that could not be made.
#[derive(Debug, thiserror::Error)]
#[error("could not connect to {address}: {cause}")]
pub(crate) struct ConnectError {
    address: String,
    cause: ConnectCause,
}

#[derive(Debug, thiserror::Error)]
enum ConnectCause {
    #[error(transparent)]
    Tls(#[from] HttpError),
    #[error("{name:?} is not a server name: {error}")]
    ServerName { name: String, error: InvalidDnsNameError },
    #[error("{}", root_cause(.0))]
    Transport(#[from] tonic::transport::Error),
}

#[derive(Clone)]
struct Handshake {
    address: String,
    name: ServerName<'static>,
    connector: TlsConnector,
    is_used: Arc<AtomicBool>,
}

impl Handshake {
    fn new(address: &str, tls: &GrpcTls) -> Result<Handshake, ConnectCause> {
        let mut config = tls_config(&tls.roots, tls.identity.as_ref())?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let name = tls.server_name.as_deref().unwrap_or(host).trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(name.clone()).map_err(|error| ConnectCause::ServerName { name, error })?;
        let connector = TlsConnector::from(Arc::new(config));
        Ok(Handshake { address: address.to_owned(), name, connector, is_used: Arc::default() })
    }

    async fn open(self) -> io::Result<TokioIo<tokio_rustls::client::TlsStream<TcpStream>>> {
        if self.is_used.swap(true, Ordering::Relaxed) {
            return Err(io::Error::other("the connection was lost"));
        }
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        Ok(TokioIo::new(self.connector.connect(self.name, stream).await?))
    }
}

/// The innermost error is the most specific one.
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
