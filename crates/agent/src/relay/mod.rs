//! The xDS relay: Envoy connects to the agent on a Unix socket, the agent connects to the control plane. Each stream of
//! Envoy gets its own upstream stream and connection. Bytes pass unchanged, for both SotW and delta xDS.
//!
//! When the upstream stream is lost, Envoy's stream ends with a status. Envoy keeps its configuration, reconnects at once
//! and resubscribes with the versions it has. So the relay keeps no protocol state, and no request is lost: while the
//! control plane is down, Envoy's requests wait unread in its stream.

mod frames;
mod headers;
mod name_table;
mod requests;
mod responses;
mod server_names;
mod trust_bundle;
mod upstream;
mod upstream_stream;

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};
use api::TypeUrl;
use http::header::{AUTHORIZATION, CONTENT_TYPE, TE, USER_AGENT};
use http::{HeaderName, HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use model::proxy::CERTIFICATES_FOUND;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tracing::{debug, info, warn};

use self::frames::FrameSplitter;
pub use self::name_table::NameTableSender;
use self::name_table::XdsProtocol;
use self::requests::{OwnRequests, UpstreamBody};
use self::responses::{AgentTap, DownstreamBody, UpstreamConnection, causes};
pub use self::trust_bundle::TrustBundleSender;
pub use self::upstream::{Pings, Upstream, UpstreamTls};
use self::upstream_stream::{ReconnectState, UpstreamStream};
use crate::file_secrets::FileSecretNames;
use crate::late_certificates::LateCertificates;
use crate::metrics::Metrics;
use crate::socket::{AllowedPeers, SocketListener};
use crate::status::health::WorkloadHealth;

const SOTW: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
const DELTA: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

/// Back-off between connection attempts: starts here, doubles up to the limit, with full jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Options of the relay.
#[derive(Clone, Debug)]
pub struct RelayOptions {
    /// The Unix socket for Envoy.
    pub socket: PathBuf,
    /// Users allowed to connect.
    pub peers: AllowedPeers,
    /// Receives the file secret names found in relayed configuration.
    pub file_secrets: FileSecretNames,
    /// The workload's health, which is reported to the control plane.
    pub health: Option<watch::Receiver<Option<WorkloadHealth>>>,
    /// Receives the trust bundle; `None` if it is not requested.
    pub bundle: Option<TrustBundleSender>,
    /// Certificates that may be found while Envoy runs; `None` if it had a source of certificates from the start.
    pub late_certificates: Option<LateCertificates>,
    pub upstream: Upstream,
    /// How long Envoy's stream waits for a connection to the control plane before it fails. Envoy counts a waiting
    /// stream as connected, so the wait is limited.
    pub max_connect_wait: Duration,
}

impl RelayOptions {
    pub fn new(socket: PathBuf, upstream: Upstream) -> RelayOptions {
        RelayOptions {
            socket,
            peers: AllowedPeers::default(),
            file_secrets: FileSecretNames::default(),
            health: None,
            bundle: None,
            late_certificates: None,
            upstream,
            max_connect_wait: Duration::from_secs(10),
        }
    }
}

/// The listening relay.
pub struct Relay {
    listener: SocketListener,
    shared: Arc<RelayState>,
}

struct RelayState {
    options: RelayOptions,
    /// Receives the name table; `None` if it is not requested.
    names: Option<Arc<NameTableSender>>,
    history: Arc<ReconnectState>,
    metrics: Arc<Metrics>,
}

impl Relay {
    /// Opens the socket. With `names`, the relay also subscribes to the name table.
    pub fn bind(options: RelayOptions, names: Option<NameTableSender>, metrics: Arc<Metrics>) -> Result<Relay> {
        let listener = SocketListener::bind(&options.socket, options.peers.clone())?;
        info!(socket = %options.socket.display(), upstream = %options.upstream.address, "relaying xDS");
        let names = names.map(Arc::new);
        Ok(Relay { listener, shared: Arc::new(RelayState { options, names, history: Arc::default(), metrics }) })
    }

    /// Path of the socket.
    pub fn socket(&self) -> &Path {
        &self.shared.options.socket
    }

    /// Relays until cancelled.
    pub async fn serve(mut self, stop: CancellationToken) {
        let mut connections = JoinSet::new();
        while let Some(stream) = stop.run_until_cancelled(self.listener.accept()).await {
            while connections.try_join_next().is_some() {}
            connections.spawn(connection(stream, Arc::clone(&self.shared)));
        }
    }
}

async fn connection(stream: UnixStream, shared: Arc<RelayState>) {
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(shared.handle(request).await.unwrap_or_else(|status| status.into_http())) }
    });
    let served = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        debug!(error = %causes(&error), "Envoy's xDS connection ended");
    }
}

impl RelayState {
    async fn handle(&self, request: Request<Incoming>) -> Result<Response<Body>, Status> {
        let protocol = match request.uri().path() {
            SOTW => XdsProtocol::Sotw,
            DELTA => XdsProtocol::Delta,
            other => return Err(Status::unimplemented(format!("{other} is not relayed"))),
        };
        self.metrics.envoy_connections.add();
        let (sender, connection) = self.connect().await?;
        self.relay(protocol, request, sender, connection).await
    }

    /// Connects to the control plane, with retries until `max_connect_wait` is over.
    async fn connect(&self) -> Result<(SendRequest<UpstreamBody>, UpstreamConnection), Status> {
        let upstream = &self.options.upstream;
        let end = Instant::now() + self.options.max_connect_wait;
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match upstream.connect().await {
                Ok(connected) => return Ok(connected),
                Err(error) => error,
            };
            self.metrics.pilot_connection_failures.add();
            let pause_now = jittered(pause);
            if Instant::now() + pause_now >= end {
                warn!("could not connect to the control plane: {error:#}; Envoy keeps its configuration");
                return Err(Status::unavailable(format!("could not connect to the control plane: {error:#}")));
            }
            debug!("{error:#}; retrying in {pause_now:?}");
            sleep(pause_now).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }

    async fn relay(
        &self,
        protocol: XdsProtocol,
        request: Request<Incoming>,
        mut sender: SendRequest<UpstreamBody>,
        connection: UpstreamConnection,
    ) -> Result<Response<Body>, Status> {
        let (head, body) = request.into_parts();
        let done = Arc::<AtomicBool>::default();
        let names = self.names.as_ref().map(|_| TypeUrl::NAME_TABLE);
        let bundle = self.options.bundle.as_ref().map(|_| TypeUrl::PROXY_CONFIG);
        let kinds = names.into_iter().chain(bundle).collect::<Vec<_>>();
        let is_tapped = !kinds.is_empty();
        let own = OwnRequests { kinds, health: self.options.health.clone() };
        let (requests, insert) = UpstreamBody::new(body, protocol, own, Arc::clone(&done), Arc::clone(&self.metrics));
        let late = self.options.late_certificates.as_ref().filter(|late| !late.are_found());
        let late = late.map(LateCertificates::wait);
        let request =
            self.request(&head, requests, late.is_none()).map_err(|error| Status::internal(format!("{error:#}")))?;
        let address = &self.options.upstream.address;
        let response = sender.send_request(request).await.map_err(|error| {
            self.metrics.pilot_connection_failures.add();
            Status::unavailable(format!("could not open a stream to {address}: {}", causes(&error)))
        })?;
        let (head, body) = response.into_parts();
        let stream = UpstreamStream::begin(&self.history, done, &self.metrics, address);
        let tap = is_tapped.then(|| AgentTap {
            protocol,
            names: self.names.clone(),
            bundle: self.options.bundle.clone(),
            insert,
            splitter: FrameSplitter::default(),
        });
        let mut response = Response::new(Body::new(DownstreamBody::new(
            body,
            connection,
            stream,
            tap,
            late.map(Box::pin),
            self.options.file_secrets.clone(),
        )));
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers;
        Ok(response)
    }

    fn request(
        &self,
        envoy: &http::request::Parts,
        body: UpstreamBody,
        has_certificates: bool,
    ) -> Result<Request<UpstreamBody>> {
        let upstream = &self.options.upstream;
        let path = envoy.uri.path();
        let uri = format!("{}://{}{path}", upstream.scheme(), upstream.address);
        let mut request = Request::post(uri).body(body).context("could not build the upstream request")?;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.extend(envoy.headers.get(USER_AGENT).map(|agent| (USER_AGENT, agent.clone())));
        headers.extend(upstream.authorization().map(|token| (AUTHORIZATION, token)));
        if has_certificates && self.options.late_certificates.is_some() {
            headers.insert(HeaderName::from_static(CERTIFICATES_FOUND), HeaderValue::from_static("true"));
        }
        for (name, value) in &upstream.headers {
            headers.append(name, value.clone());
        }
        Ok(request)
    }
}

/// A random part of the pause, so that agents that lost the control plane together do not reconnect together.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(fastrand::f64())
}
