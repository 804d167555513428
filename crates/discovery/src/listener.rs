//! Listening sockets and their connections, for gRPC and HTTP pages: TCP_NODELAY, keepalive pings, maximum age, graceful
//! shutdown. `connections` limits their number and idle time.

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
use xds::{CloseConnection, WhenWoken};

use crate::connections::{ConnectionSlot, Connections, CountedBody, Deadlines, TcpConnection};
use crate::tls::{Certificates, ClientCertificates, TlsConnection};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Time limit for the TLS handshake and the first request.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a connection to end its streams after a graceful shutdown started, as in upstream.
const GRACE: Duration = Duration::from_secs(10);
/// TCP user timeout: a connection whose sent data is not acknowledged for this long is closed.
const UNREAD: Duration = Duration::from_secs(30);
/// Idle timeout of HTTP connections.
const IDLE: Duration = Duration::from_secs(60);
/// Idle timeout of gRPC connections without a stream. Envoys and agents always have one.
const IDLE_GRPC: Duration = Duration::from_secs(300);
/// Time limit for sending a page. The largest have some hundred megabytes.
const PAGE_TIMEOUT: Duration = Duration::from_secs(300);
/// Kernel send buffer for pages: a slow reader holds this much.
const PAGE_BUFFER: usize = 128 * 1024;
/// HTTP/2 flow-control windows for data that is not read yet: of one stream, and of a connection.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 256 * 1024;
/// Ping interval and timeout of connections to the configuration API.
const API_PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));
/// Pause after `accept` failed for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A bound socket.
pub(crate) struct BoundSocket {
    name: &'static str,
    socket: TcpListener,
    address: SocketAddr,
}

/// Options of the connections of a port.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionOptions {
    pub(crate) protocol: PortProtocol,
    /// Keepalive: ping interval and timeout.
    pub(crate) ping: Option<(Duration, Duration)>,
    /// Clients are asked to reconnect after about this time.
    pub(crate) age: Option<Duration>,
    /// Limits the number of connections.
    pub(crate) connections: Arc<Connections>,
}

/// Protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortProtocol {
    /// HTTP/2, with upstream's limit of streams.
    Grpc,
    /// HTTP/1.1, or HTTP/2 by prior knowledge.
    Pages,
    /// Like `Pages`, with watches that last as long as their clients want.
    ConfigApi,
}

impl ConnectionOptions {
    pub(crate) fn pages(connections: Arc<Connections>) -> ConnectionOptions {
        ConnectionOptions { protocol: PortProtocol::Pages, ping: None, age: None, connections }
    }

    pub(crate) fn config_api(connections: Arc<Connections>) -> ConnectionOptions {
        ConnectionOptions { protocol: PortProtocol::ConfigApi, ping: Some(API_PING), age: None, connections }
    }

    fn deadlines(&self) -> Deadlines {
        match self.protocol {
            PortProtocol::Grpc => Deadlines { first_request: HANDSHAKE_TIMEOUT, idle: IDLE_GRPC, busy: None },
            PortProtocol::ConfigApi => Deadlines { first_request: HANDSHAKE_TIMEOUT, idle: IDLE_GRPC, busy: None },
            PortProtocol::Pages => Deadlines { first_request: HANDSHAKE_TIMEOUT, idle: IDLE, busy: Some(PAGE_TIMEOUT) },
        }
    }
}

impl BoundSocket {
    /// Binds an address in Go's notation: `:8080` means all interfaces; port 0 means any free port.
    pub(crate) async fn bind(name: &'static str, address: &str) -> Result<BoundSocket> {
        let socket = open(address).await.with_context(|| format!("could not listen on {address} for {name}"))?;
        let address = socket.local_addr().with_context(|| format!("could not read the bound address of {name}"))?;
        info!(port = name, %address, "listening");
        Ok(BoundSocket { name, socket, address })
    }

    /// The address really bound.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until cancelled. Returns once all connections have ended.
    pub(crate) async fn serve<S, B>(
        self,
        service: S,
        options: ConnectionOptions,
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
        // Registers the socket, which another runtime bound, with the runtime of this task.
        let socket = match self.socket.into_std().and_then(TcpListener::from_std) {
            Ok(socket) => socket,
            Err(error) => return error!(port = self.name, %error, "could not serve port"),
        };
        while let Some(accepted) = stop.run_until_cancelled(socket.accept()).await {
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    debug!(port = self.name, %error, "could not accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            // Dropping the stream closes it.
            let Some(slot) = options.connections.enter(unmapped(peer).ip()) else { continue };
            let (service, options, certificates, stop) =
                (service.clone(), options.clone(), certificates.clone(), stop.clone());
            let name = self.name;
            connections.spawn(async move {
                if let Err(error) = connection(stream, slot, service, options, certificates, stop).await {
                    debug!(port = name, %peer, error = %error, "connection ended");
                }
            });
            // Lets connections that were closed for this one release their descriptors first.
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
    slot: ConnectionSlot,
    service: S,
    options: ConnectionOptions,
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
    prepare(&stream, options.protocol)?;
    let peer = TcpConnectInfo {
        local_addr: stream.local_addr().ok().map(unmapped),
        remote_addr: stream.peer_addr().ok().map(unmapped),
    };
    let open = slot.connection();
    let Some(certificates) = certificates else {
        let service = with_peer(service, peer, TransportSecurity::Plain, open.clone());
        return serve_http(stream, service, &options, open, &stop).await;
    };
    let deadlines = options.deadlines();
    // Until the CA has issued this server's certificate, connections are closed; clients retry.
    let Some(acceptor) = certificates.acceptor() else { return Ok(()) };
    let stream = tokio::select! {
        stream = acceptor.accept(stream) => stream?,
        () = open.expired(&deadlines) => return Ok(()),
    };
    let shown = stream.get_ref().1.peer_certificates().map(|chain| {
        let chain = chain.iter().map(|certificate| certificate.clone().into_owned());
        ClientCertificates(chain.collect())
    });
    let service = with_peer(service, peer, TransportSecurity::Tls(shown), open.clone());
    serve_http(stream, service, &options, open, &stop).await
}

/// How a connection is secured, with the client's certificates if it presented any.
#[derive(Clone)]
enum TransportSecurity {
    Plain,
    Tls(Option<ClientCertificates>),
}

fn prepare(stream: &TcpStream, protocol: PortProtocol) -> Result<(), BoxError> {
    // A push consists of many small writes; Nagle's algorithm would delay each by up to 40 ms.
    stream.set_nodelay(true)?;
    // If the kernel does not support these options, the timeouts of `connections` still apply.
    let unread = u32::try_from(UNREAD.as_millis()).unwrap_or(u32::MAX);
    let _ = setsockopt(stream, sockopt::TcpUserTimeout, &unread);
    if protocol == PortProtocol::Pages {
        let _ = setsockopt(stream, sockopt::SndBuf, &PAGE_BUFFER);
    }
    Ok(())
}

/// The service for one connection: adds the peer to each request, and counts the request until its response is sent.
fn with_peer<S, B>(
    service: S,
    peer: TcpConnectInfo,
    security: TransportSecurity,
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
        request.extensions_mut().insert(CloseConnection(open.close()));
        if let TransportSecurity::Tls(shown) = &security {
            request.extensions_mut().insert(TlsConnection);
            if let Some(shown) = shown {
                request.extensions_mut().insert(shown.clone());
            }
        }
        let (in_flight, response) = (open.request(), service.clone().oneshot(request));
        async move { Ok(response.await?.map(|body| CountedBody::new(body, in_flight))) }
    })
}

/// Converts an IPv4-mapped IPv6 address to IPv4.
fn unmapped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

async fn serve_http<I, S, B>(
    stream: I,
    service: S,
    options: &ConnectionOptions,
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
    let (builder, deadlines) = (builder(options), options.deadlines());
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)));
    let end = options.age.map(|age| Instant::now() + jittered(age));
    let is_old = async {
        match end {
            Some(end) => sleep_until(end).await,
            None => std::future::pending().await,
        }
    };
    let must_close = async {
        tokio::select! {
            () = open.expired(&deadlines) => true,
            () = is_old => false,
            () = stop.cancelled() => false,
        }
    };
    tokio::select! {
        biased;
        ended = connection.as_mut() => return ended,
        must_close = WhenWoken::new(must_close) => if must_close { return Ok(()) },
    }
    connection.as_mut().graceful_shutdown();
    match timeout(GRACE, connection).await {
        Ok(ended) => ended,
        Err(_) => Ok(()),
    }
}

fn builder(options: &ConnectionOptions) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HANDSHAKE_TIMEOUT);
    let mut http2 = builder.http2();
    let streams = match options.protocol {
        PortProtocol::Grpc => MAX_STREAMS,
        PortProtocol::Pages => MAX_PAGES,
        PortProtocol::ConfigApi => MAX_API_STREAMS,
    };
    http2.timer(TokioTimer::new()).max_concurrent_streams(streams);
    http2.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
    if let Some((interval, patience)) = options.ping {
        builder.http2().keep_alive_interval(interval).keep_alive_timeout(patience);
    }
    match options.protocol {
        PortProtocol::Grpc => builder.http2_only(),
        PortProtocol::Pages | PortProtocol::ConfigApi => builder,
    }
}

/// Upstream's limit. One Envoy opens a single stream; a gRPC proxy opens many.
const MAX_STREAMS: u32 = 100_000;

/// Concurrent requests for pages on one HTTP/2 connection.
const MAX_PAGES: u32 = 8;

/// Concurrent requests and watches on one connection of the configuration API: an informer watches each kind.
const MAX_API_STREAMS: u32 = 250;

/// Adds up to 10 % jitter in both directions, so that clients do not reconnect at the same time.
fn jittered(age: Duration) -> Duration {
    age.mul_f64(0.9 + 0.2 * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::jittered;

    #[test]
    fn ages_differ_by_at_most_10_percent() {
        let ages: Vec<Duration> = (0..100).map(|_| jittered(Duration::from_secs(100))).collect();
        assert!(ages.iter().all(|age| (90..=110).contains(&age.as_secs())));
        assert!(ages.iter().any(|age| *age != ages[0]));
    }
}
