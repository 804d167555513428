//! A fake of Cloud Foundry's Copilot, written from its protocol: gRPC over mutual TLS, routes in memory. The real one
//! needs a complete platform.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use net::tls;
use parking_lot::Mutex;
use prost::Message;
use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::certificates::{Authority, Certificate};

/// gRPC status UNIMPLEMENTED.
pub const UNIMPLEMENTED: u32 = 12;
const CLIENT: &str = "spiffe://platform/ns/istio/sa/pilot";

/// State of the server, from which it responds.
#[derive(Clone, Debug, Default)]
pub struct CopilotState {
    pub routes: Vec<CopilotRoute>,
    pub internal: Vec<CopilotInternalRoute>,
    /// gRPC status of methods that fail, by name.
    pub failing: BTreeMap<&'static str, u32>,
    pub is_unhealthy: bool,
    /// Requests never get a response.
    pub stalls: bool,
    /// Delay of every response.
    pub delay: Duration,
    /// Client certificate of each connection so far.
    pub shown: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct CopilotRoute {
    #[prost(string, tag = "1")]
    pub hostname: String,
    #[prost(string, tag = "2")]
    pub path: String,
    #[prost(message, optional, tag = "3")]
    backends: Option<BackendSet>,
    #[prost(string, tag = "4")]
    pub process: String,
    #[prost(int32, tag = "5")]
    pub weight: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct CopilotInternalRoute {
    #[prost(string, tag = "1")]
    pub hostname: String,
    #[prost(string, tag = "2")]
    pub vip: String,
    #[prost(message, optional, tag = "3")]
    backends: Option<BackendSet>,
}

#[derive(Clone, PartialEq, Message)]
struct BackendSet {
    #[prost(message, repeated, tag = "1")]
    backends: Vec<BackendAddress>,
}

#[derive(Clone, PartialEq, Message)]
struct BackendAddress {
    #[prost(string, tag = "1")]
    address: String,
    #[prost(uint32, tag = "2")]
    port: u32,
}

#[derive(Clone, PartialEq, Message)]
struct CopilotHealth {
    #[prost(bool, tag = "1")]
    healthy: bool,
}

#[derive(Clone, PartialEq, Message)]
struct RoutesResponse {
    #[prost(message, repeated, tag = "2")]
    routes: Vec<CopilotRoute>,
}

#[derive(Clone, PartialEq, Message)]
struct InternalRoutesResponse {
    #[prost(message, repeated, tag = "1")]
    routes: Vec<CopilotInternalRoute>,
}

impl CopilotRoute {
    pub fn new(hostname: &str, process: &str, backends: impl IntoIterator<Item = (String, u16)>) -> CopilotRoute {
        let (hostname, process) = (hostname.to_owned(), process.to_owned());
        CopilotRoute { hostname, process, backends: Some(set(backends)), ..CopilotRoute::default() }
    }

    /// Number of backends.
    pub fn backends(&self) -> usize {
        self.backends.as_ref().map_or(0, |set| set.backends.len())
    }

    /// Restricts the route to a path.
    pub fn below(self, path: &str) -> CopilotRoute {
        CopilotRoute { path: path.to_owned(), ..self }
    }

    /// Sets the share of requests, in percent.
    pub fn weighing(self, weight: i32) -> CopilotRoute {
        CopilotRoute { weight, ..self }
    }
}

impl CopilotInternalRoute {
    pub fn new(hostname: &str, vip: &str, backends: impl IntoIterator<Item = (String, u16)>) -> CopilotInternalRoute {
        CopilotInternalRoute { hostname: hostname.to_owned(), vip: vip.to_owned(), backends: Some(set(backends)) }
    }
}

fn set(backends: impl IntoIterator<Item = (String, u16)>) -> BackendSet {
    let backend = |(address, port): (String, u16)| BackendAddress { address, port: u32::from(port) };
    BackendSet { backends: backends.into_iter().map(backend).collect() }
}

pub struct Copilot {
    address: SocketAddr,
    authority: Authority,
    own: Certificate,
    /// Certificate files for the client.
    folder: TempDir,
    state: Arc<Mutex<CopilotState>>,
    serving: Option<AbortHandle>,
}

impl Copilot {
    /// Starts it on a free port and creates certificates for one client.
    pub async fn start() -> Copilot {
        let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("could not make a folder: {e}"));
        let authority = Authority::new();
        let own = authority.workload("spiffe://platform/ns/istio/sa/copilot");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut copilot = Copilot { address, authority, own, folder, state: Arc::default(), serving: None };
        copilot.put("ca.pem", &copilot.authority.root());
        copilot.renew_client();
        copilot.restart().await;
        copilot
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `ca.pem`, `cert.pem` or `key.pem` of the client.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Replaces a file of the client atomically, as certificate rotation does.
    pub fn put(&self, name: &str, text: &str) {
        let fresh = self.file(&format!(".{name}"));
        let written = fs::write(&fresh, text).and_then(|()| fs::rename(&fresh, self.file(name)));
        written.unwrap_or_else(|e| panic!("could not write {name}: {e}"));
    }

    /// Creates a new client certificate and returns it in DER.
    pub fn renew_client(&self) -> Vec<u8> {
        let Certificate { chain, key } = self.authority.workload(CLIENT);
        self.put("key.pem", &key);
        self.put("cert.pem", &chain);
        certificates(&chain).remove(0).to_vec()
    }

    /// The text of a file for `--cfConfig`.
    pub fn config(&self, interval: &str, service_port: u16) -> String {
        let file = |name: &str| self.file(name).display().to_string();
        format!(
            "copilot:\n  address: {}\n  server_ca_cert_path: {}\n  client_cert_path: {}\n  client_key_path: {}\n  \
             poll_interval: {interval}\nservice_port: {service_port}\n",
            self.address,
            file("ca.pem"),
            file("cert.pem"),
            file("key.pem"),
        )
    }

    pub fn edit(&self, edit: impl FnOnce(&mut CopilotState)) {
        edit(&mut self.state.lock());
    }

    pub fn state(&self) -> CopilotState {
        self.state.lock().clone()
    }

    /// Stops it and all its connections. The state is kept.
    pub fn kill(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
        }
    }

    /// Starts it again, on the same port.
    pub async fn restart(&mut self) {
        self.kill();
        let address = self.address;
        // The port is free once the old task has ended.
        let listener =
            crate::wait::until("a free port", async || TcpListener::bind(address).await.map_err(|e| e.to_string()))
                .await;
        self.address = listener.local_addr().unwrap_or_else(|e| panic!("no address: {e}"));
        let (acceptor, state) = (self.acceptor(), self.state.clone());
        let serving = tokio::spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                open.spawn(serve(stream, acceptor.clone(), state.clone()));
            }
        });
        self.serving = Some(serving.abort_handle());
    }

    fn acceptor(&self) -> TlsAcceptor {
        let certificates =
            |text: &str| tls::certificates(text.as_bytes()).unwrap_or_else(|e| panic!("no certificate: {e}"));
        let roots = tls::roots(certificates(&self.authority.root())).unwrap_or_else(|e| panic!("no root: {e}"));
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), tls::provider()).build();
        let key = tls::private_key(self.own.key.as_bytes()).unwrap_or_else(|e| panic!("no key: {e}"));
        let mut config = tls::server()
            .unwrap_or_else(|e| panic!("no TLS: {e}"))
            .with_client_cert_verifier(verifier.unwrap_or_else(|e| panic!("no verifier: {e}")))
            .with_single_cert(certificates(&self.own.chain), key)
            .unwrap_or_else(|e| panic!("no certificate: {e}"));
        config.alpn_protocols = vec![b"h2".to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }
}

impl Drop for Copilot {
    fn drop(&mut self) {
        self.kill();
    }
}

fn certificates(text: &str) -> Vec<CertificateDer<'static>> {
    tls::certificates(text.as_bytes()).unwrap_or_else(|e| panic!("no certificate: {e}"))
}

async fn serve(stream: TcpStream, acceptor: TlsAcceptor, state: Arc<Mutex<CopilotState>>) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    state.lock().shown.extend(shown.map(|certificate| certificate.to_vec()));
    let service = service_fn(move |request: Request<Incoming>| {
        let now = state.lock().clone();
        async move { Ok::<_, std::convert::Infallible>(answer(request, now).await) }
    });
    // A client that disconnects is not an error.
    let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

type CopilotResponse = Response<UnsyncBoxBody<Bytes, std::convert::Infallible>>;

async fn answer(request: Request<Incoming>, now: CopilotState) -> CopilotResponse {
    let method = request.uri().path().strip_prefix("/api.IstioCopilot/").unwrap_or_default().to_owned();
    // The request of every method is empty.
    let _ = request.into_body().collect().await;
    if now.stalls {
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(now.delay).await;
    if let Some(status) = now.failing.get(method.as_str()) {
        return reply(Bytes::new(), *status);
    }
    let message = match method.as_str() {
        "Health" => CopilotHealth { healthy: !now.is_unhealthy }.encode_to_vec(),
        "Routes" => RoutesResponse { routes: now.routes }.encode_to_vec(),
        "InternalRoutes" => InternalRoutesResponse { routes: now.internal }.encode_to_vec(),
        _ => return reply(Bytes::new(), UNIMPLEMENTED),
    };
    let mut framed = BytesMut::with_capacity(message.len() + 5);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap_or_else(|e| panic!("a message of this size: {e}")));
    framed.put_slice(&message);
    reply(framed.freeze(), 0)
}

fn reply(framed: Bytes, status: u32) -> CopilotResponse {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(status));
    let body = Full::new(framed).with_trailers(std::future::ready(Some(Ok(trailers)))).boxed_unsync();
    let mut response = Response::new(body);
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}
