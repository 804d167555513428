//! Listening sockets and the connections on them, for gRPC and for pages alike: small segments are sent
//! at once, dead clients are noticed, old connections are asked to go, and stopping waits for the last.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::server::TcpConnectInfo;
use tower::{Service, ServiceExt};
use tracing::{debug, info};

use crate::tls::{Certificates, ClientCertificates};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Clients that do not finish a handshake or a request's head in this time are dropped.
const PATIENCE: Duration = Duration::from_secs(10);
/// After it was asked to go, a connection may end its streams for this long, as in upstream.
const GRACE: Duration = Duration::from_secs(10);
/// After an accept failed for want of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(50);

/// A bound socket.
pub(crate) struct Listener {
    name: &'static str,
    socket: TcpListener,
    address: SocketAddr,
}

/// How connections are treated.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) protocol: Protocol,
    /// Ping a client that was silent this long, and drop it if it does not answer in that long.
    pub(crate) ping: Option<(Duration, Duration)>,
    /// Ask a client to connect anew after about this time.
    pub(crate) age: Option<Duration>,
}

/// What is spoken on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP/2 with as many streams as upstream allows.
    Grpc,
    /// HTTP/1.1, or HTTP/2 by prior knowledge.
    Pages,
}

impl Terms {
    pub(crate) fn pages() -> Terms {
        Terms { protocol: Protocol::Pages, ping: None, age: None }
    }
}

impl Listener {
    /// Binds an address as Go writes it: `:8080` is every address of the machine, port 0 any free port.
    pub(crate) async fn bind(name: &'static str, address: &str) -> Result<Listener> {
        let socket = open(address).await.with_context(|| format!("could not listen on {address} for {name}"))?;
        let address = socket.local_addr().with_context(|| format!("could not tell the address of {name}"))?;
        info!(port = name, %address, "listening");
        Ok(Listener { name, socket, address })
    }

    /// The address really bound.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until cancelled; then ends once every connection did.
    pub(crate) async fn serve<S, B>(
        self,
        service: S,
        terms: Terms,
        certificates: Option<Arc<Certificates>>,
        stop: CancellationToken,
    ) where
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Future: Send,
        S::Error: Into<BoxError>,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let connections = TaskTracker::new();
        while let Some(accepted) = stop.run_until_cancelled(self.socket.accept()).await {
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    debug!(port = self.name, %error, "could not accept");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let (service, terms, certificates, stop) =
                (service.clone(), terms.clone(), certificates.clone(), stop.clone());
            let name = self.name;
            connections.spawn(async move {
                if let Err(error) = connection(stream, service, terms, certificates, stop).await {
                    debug!(port = name, %peer, error = %error, "connection ended");
                }
            });
        }
        drop(self.socket);
        connections.close();
        connections.wait().await;
    }
}

async fn open(address: &str) -> io::Result<TcpListener> {
    let Some(port) = address.strip_prefix(':') else { return TcpListener::bind(address).await };
    match TcpListener::bind(format!("[::]:{port}")).await {
        Ok(socket) => Ok(socket),
        // A machine without IPv6.
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => TcpListener::bind(format!("0.0.0.0:{port}")).await,
        Err(error) => Err(error),
    }
}

async fn connection<S, B>(
    stream: TcpStream,
    service: S,
    terms: Terms,
    certificates: Option<Arc<Certificates>>,
    stop: CancellationToken,
) -> Result<(), BoxError>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    // A push is many small writes; waiting for acknowledgements would cost 40 ms each.
    stream.set_nodelay(true)?;
    let peer = TcpConnectInfo {
        local_addr: stream.local_addr().ok().map(plain),
        remote_addr: stream.peer_addr().ok().map(plain),
    };
    let Some(certificates) = certificates else {
        let service = service.map_request(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer.clone());
            request
        });
        return converse(stream, service, &terms, &stop).await;
    };
    let stream = timeout(PATIENCE, certificates.acceptor().accept(stream)).await??;
    let shown = stream.get_ref().1.peer_certificates().map(|chain| {
        let chain = chain.iter().map(|certificate| certificate.clone().into_owned());
        ClientCertificates(chain.collect())
    });
    let service = service.map_request(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        if let Some(shown) = &shown {
            request.extensions_mut().insert(shown.clone());
        }
        request
    });
    converse(stream, service, &terms, &stop).await
}

/// An IPv4 client of a socket for both families appears as what it is.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

async fn converse<I, S, B>(stream: I, service: S, terms: &Terms, stop: &CancellationToken) -> Result<(), BoxError>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let builder = builder(terms);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)));
    let end = terms.age.map(|age| Instant::now() + jittered(age));
    let is_old = async {
        match end {
            Some(end) => sleep_until(end).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = is_old => {}
        () = stop.cancelled() => {}
    }
    connection.as_mut().graceful_shutdown();
    match timeout(GRACE, connection).await {
        Ok(ended) => ended,
        Err(_) => Ok(()),
    }
}

fn builder(terms: &Terms) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(MAX_STREAMS);
    if let Some((interval, patience)) = terms.ping {
        builder.http2().keep_alive_interval(interval).keep_alive_timeout(patience);
    }
    match terms.protocol {
        Protocol::Grpc => builder.http2_only(),
        Protocol::Pages => builder,
    }
}

/// Upstream's limit; one Envoy opens a single stream, a fleet behind a proxy many.
const MAX_STREAMS: u32 = 100_000;

/// A tenth more or less, so that clients that came together do not come back together.
fn jittered(age: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new().hash_one(age) as f64 / u64::MAX as f64;
    age.mul_f64(0.9 + 0.2 * random)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::jittered;

    #[test]
    fn ages_differ_by_a_tenth_at_most() {
        let ages: Vec<Duration> = (0..100).map(|_| jittered(Duration::from_secs(100))).collect();
        assert!(ages.iter().all(|age| (90..=110).contains(&age.as_secs())));
        assert!(ages.iter().any(|age| *age != ages[0]));
    }
}
