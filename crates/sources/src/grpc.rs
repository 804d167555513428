//! Connections of sources that speak gRPC: plain, or over TLS with the same files as the HTTP client.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use crate::http::{ClientIdentity, TrustRoots, tls_config};

const CONNECT: Duration = Duration::from_secs(5);
/// A server that vanished without a word is noticed after about this time.
const PING: Duration = Duration::from_secs(15);

/// Larger messages are errors: the whole configuration of one kind is smaller, and a server that sends endlessly must
/// not fill memory.
pub(crate) const LARGEST_MESSAGE: usize = 128 << 20;

/// How a server is reached over TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcTls {
    pub roots: TrustRoots,
    pub identity: Option<ClientIdentity>,
    /// The name that the server's certificate must bear, where it is not that of the address.
    pub server_name: Option<String>,
}

/// Connects to `host:port`. Files are read each time, so they can be replaced; so a connection over TLS that is lost
/// stays lost until the caller connects again.
pub(crate) async fn connect(address: &str, tls: Option<&GrpcTls>) -> Result<Channel, String> {
    let failed = |reason: &dyn std::fmt::Display| format!("could not connect to {address}: {reason}");
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|e| failed(&e))?;
    let endpoint = endpoint
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .keep_alive_while_idle(true);
    let connected = match tls {
        None => endpoint.connect().await,
        Some(tls) => {
            let handshake = Handshake::new(address, tls).map_err(|e| failed(&e))?;
            endpoint.connect_with_connector(service_fn(move |_: Uri| handshake.clone().open())).await
        }
    };
    connected.map_err(|e| failed(&deepest(&e)))
}

#[derive(Clone)]
struct Handshake {
    address: String,
    name: ServerName<'static>,
    connector: TlsConnector,
    is_used: Arc<AtomicBool>,
}

impl Handshake {
    fn new(address: &str, tls: &GrpcTls) -> Result<Handshake, String> {
        let mut config = tls_config(&tls.roots, tls.identity.as_ref()).map_err(|e| e.to_string())?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let name = tls.server_name.as_deref().unwrap_or(host).trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(name.clone()).map_err(|e| format!("{name}: {e}"))?;
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

/// The deepest cause says the most.
fn deepest(error: &(dyn std::error::Error + 'static)) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}
