//! Listening sockets and the connections on them, for gRPC and for pages alike: small segments are sent
//! at once, dead clients are noticed, old connections are asked to go, and stopping waits for the last. How many there
//! may be and how long they may be silent is in `connections`.

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
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::server::TcpConnectInfo;
use tower::{Service, ServiceExt, service_fn};
use tracing::{debug, error, info};

use crate::connections::{ConnectionSlot, Connections, CountedBody, Deadlines, TcpConnection};
use crate::tls::{Certificates, ClientCertificates};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Clients that do not finish a handshake or a request's head in this time are dropped.
const PATIENCE: Duration = Duration::from_secs(10);
/// After it was asked to go, a connection may end its streams for this long, as in upstream.
const GRACE: Duration = Duration::from_secs(10);
/// A client that takes none of what is sent to it for this long is dropped.
const UNREAD: Duration = Duration::from_secs(30);
/// Between two requests for pages.
const IDLE: Duration = Duration::from_secs(60);
/// A client of the gRPC ports without a stream. Envoys and agents always have one.
const IDLE_GRPC: Duration = Duration::from_secs(300);
/// For a page and its reader. The largest are some hundred megabytes.
const LONGEST_PAGE: Duration = Duration::from_secs(300);
/// What the kernel keeps of a page that its reader is slow to take.
const PAGE_BUFFER: usize = 128 * 1024;
/// What a client may send of a request before it is read: of one stream, and of all streams of a connection.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 256 * 1024;
/// After an accept failed for want of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(50);

/// A bound socket.
pub(crate) struct BoundSocket {
    name: &'static str,
    socket: TcpListener,
    address: SocketAddr,
}

/// How connections are treated.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionOptions {
    pub(crate) protocol: PortProtocol,
    /// Ping a client that was silent this long, and drop it if it does not answer in that long.
    pub(crate) ping: Option<(Duration, Duration)>,
    /// Ask a client to connect anew after about this time.
    pub(crate) age: Option<Duration>,
    /// Where connections count.
    pub(crate) connections: Arc<Connections>,
}

/// What is spoken on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortProtocol {
    /// HTTP/2 with as many streams as upstream allows.
    Grpc,
    /// HTTP/1.1, or HTTP/2 by prior knowledge.
    Pages,
}

impl ConnectionOptions {
    pub(crate) fn pages(connections: Arc<Connections>) -> ConnectionOptions {
        ConnectionOptions { protocol: PortProtocol::Pages, ping: None, age: None, connections }
    }

    fn deadlines(&self) -> Deadlines {
        match self.protocol {
            PortProtocol::Grpc => Deadlines { first_request: PATIENCE, idle: IDLE_GRPC, busy: None },
            PortProtocol::Pages => Deadlines { first_request: PATIENCE, idle: IDLE, busy: Some(LONGEST_PAGE) },
        }
    }
}

impl BoundSocket {
    /// Binds an address as Go writes it: `:8080` is every address of the machine, port 0 any free port.
    pub(crate) async fn bind(name: &'static str, address: &str) -> Result<BoundSocket> {
        let socket = open(address).await.with_context(|| format!("could not listen on {address} for {name}"))?;
        let address = socket.local_addr().with_context(|| format!("could not tell the address of {name}"))?;
        info!(port = name, %address, "listening");
        Ok(BoundSocket { name, socket, address })
    }

    /// The address really bound.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until cancelled; then ends once every connection did.
    pub(crate) async fn serve<S, B>(
        self,
        service: S,
        terms: ConnectionOptions,
        certificates: Option<Arc<Certificates>>,
        stop: CancellationToken,
    ) where
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Future: Send,
        S::Error: Into<BoxError> + Send,
        B: Body + Send + Unpin + 'static,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let connections = TaskTracker::new();
        // It was bound elsewhere; from here on the threads that serve it are woken for new connections.
        let socket = match self.socket.into_std().and_then(TcpListener::from_std) {
            Ok(socket) => socket,
            Err(error) => return error!(port = self.name, %error, "could not listen"),
        };
        while let Some(accepted) = stop.run_until_cancelled(socket.accept()).await {
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    debug!(port = self.name, %error, "could not accept");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            // Dropping the stream closes it.
            let Some(place) = terms.connections.enter(plain(peer).ip()) else { continue };
            let (service, terms, certificates, stop) =
                (service.clone(), terms.clone(), certificates.clone(), stop.clone());
            let name = self.name;
            connections.spawn(async move {
                if let Err(error) = connection(stream, place, service, terms, certificates, stop).await {
                    debug!(port = name, %peer, error = %error, "connection ended");
                }
            });
            // Connections that had to go for this one give their descriptors back before the next is accepted.
            yield_now().await;
        }
        drop(socket);
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
    place: ConnectionSlot,
    service: S,
    terms: ConnectionOptions,
    certificates: Option<Arc<Certificates>>,
    stop: CancellationToken,
) -> Result<(), BoxError>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<BoxError> + Send,
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    prepare(&stream, terms.protocol)?;
    let peer = TcpConnectInfo {
        local_addr: stream.local_addr().ok().map(plain),
        remote_addr: stream.peer_addr().ok().map(plain),
    };
    let open = place.connection();
    let Some(certificates) = certificates else {
        return converse(stream, known(service, peer, None, open.clone()), &terms, open, &stop).await;
    };
    let deadlines = terms.deadlines();
    let stream = tokio::select! {
        stream = certificates.acceptor().accept(stream) => stream?,
        () = open.over(&deadlines) => return Ok(()),
    };
    let shown = stream.get_ref().1.peer_certificates().map(|chain| {
        let chain = chain.iter().map(|certificate| certificate.clone().into_owned());
        ClientCertificates(chain.collect())
    });
    converse(stream, known(service, peer, shown, open.clone()), &terms, open, &stop).await
}

fn prepare(stream: &TcpStream, protocol: PortProtocol) -> Result<(), BoxError> {
    // A push is many small writes; waiting for acknowledgements would cost 40 ms each.
    stream.set_nodelay(true)?;
    // Where the kernel knows neither of these, the deadlines of connections are left.
    let unread = u32::try_from(UNREAD.as_millis()).unwrap_or(u32::MAX);
    let _ = setsockopt(stream, sockopt::TcpUserTimeout, &unread);
    if protocol == PortProtocol::Pages {
        let _ = setsockopt(stream, sockopt::SndBuf, &PAGE_BUFFER);
    }
    Ok(())
}

/// The service for one connection: requests say where they come from, and count until they are answered.
fn known<S, B>(
    service: S,
    peer: TcpConnectInfo,
    shown: Option<ClientCertificates>,
    open: Arc<TcpConnection>,
) -> impl Service<Request<Incoming>, Response = Response<CountedBody<B>>, Error = S::Error, Future: Send>
+ Clone
+ Send
+ 'static
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Send + 'static,
{
    service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        if let Some(shown) = &shown {
            request.extensions_mut().insert(shown.clone());
        }
        let (in_flight, answer) = (open.request(), service.clone().oneshot(request));
        async move { Ok(answer.await?.map(|body| CountedBody::new(body, in_flight))) }
    })
}

/// An IPv4 client of a socket for both families appears as what it is.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

async fn converse<I, S, B>(
    stream: I,
    service: S,
    terms: &ConnectionOptions,
    open: &TcpConnection,
    stop: &CancellationToken,
) -> Result<(), BoxError>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError> + Send,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let (builder, deadlines) = (builder(terms), terms.deadlines());
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
        () = open.over(&deadlines) => return Ok(()),
        () = is_old => {}
        () = stop.cancelled() => {}
    }
    connection.as_mut().graceful_shutdown();
    match timeout(GRACE, connection).await {
        Ok(ended) => ended,
        Err(_) => Ok(()),
    }
}

fn builder(terms: &ConnectionOptions) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    let mut http2 = builder.http2();
    let streams = if terms.protocol == PortProtocol::Grpc { MAX_STREAMS } else { MAX_PAGES };
    http2.timer(TokioTimer::new()).max_concurrent_streams(streams);
    http2.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
    if let Some((interval, patience)) = terms.ping {
        builder.http2().keep_alive_interval(interval).keep_alive_timeout(patience);
    }
    match terms.protocol {
        PortProtocol::Grpc => builder.http2_only(),
        PortProtocol::Pages => builder,
    }
}

/// Upstream's limit; one Envoy opens a single stream, a fleet behind a proxy many.
const MAX_STREAMS: u32 = 100_000;

/// Pages at the same time on one connection.
const MAX_PAGES: u32 = 8;

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
