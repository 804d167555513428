//! An HTTP server (1.1 and 2 without TLS) that responds with its name and the request.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::{ServeTask, listen};

pub struct HttpBackend {
    address: SocketAddr,
    state: Arc<HttpBackendState>,
    _task: ServeTask,
}

struct HttpBackendState {
    name: String,
    requests: AtomicU64,
    status: AtomicU16,
    delay: Mutex<Duration>,
}

impl HttpBackend {
    /// Listens on a free port of 127.0.0.1.
    pub async fn start(name: &str) -> HttpBackend {
        Self::start_at(name, (Ipv4Addr::LOCALHOST, 0).into()).await
    }

    /// Listens on an address of 127.0.0.0/8, so that endpoints can share a port.
    pub async fn start_at(name: &str, address: SocketAddr) -> HttpBackend {
        let (listener, address) = listen(address).await;
        let state = Arc::new(HttpBackendState {
            name: name.to_owned(),
            requests: AtomicU64::new(0),
            status: AtomicU16::new(200),
            delay: Mutex::default(),
        });
        let task = ServeTask(tokio::spawn(serve(listener, Arc::clone(&state))));
        HttpBackend { address, state, _task: task }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Number of requests so far.
    pub fn requests(&self) -> u64 {
        self.state.requests.load(Ordering::SeqCst)
    }

    /// Sets the status of further responses.
    pub fn answer_with(&self, status: u16) {
        self.state.status.store(status, Ordering::SeqCst);
    }

    /// Sets a delay before each response.
    pub fn answer_after(&self, delay: Duration) {
        *self.state.delay.lock() = delay;
    }
}

async fn serve(listener: TcpListener, state: Arc<HttpBackendState>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        connections.spawn(async move {
            let service = service_fn(move |request| answer(Arc::clone(&state), request));
            let server = auto::Builder::new(TokioExecutor::new());
            let _ = server.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

/// `{backend, method, path, authority, headers, body}`; the name is in `x-backend` too.
async fn answer(state: Arc<HttpBackendState>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    state.requests.fetch_add(1, Ordering::SeqCst);
    let delay = *state.delay.lock();
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|b| b.to_bytes()).unwrap_or_default();
    let headers: BTreeMap<&str, String> =
        head.headers.iter().map(|(k, v)| (k.as_str(), String::from_utf8_lossy(v.as_bytes()).into_owned())).collect();
    let authority = head.uri.authority().map(ToString::to_string).or_else(|| headers.get("host").cloned());
    let text = json!({
        "backend": state.name,
        "method": head.method.as_str(),
        "path": head.uri.path_and_query().map_or("/", |p| p.as_str()),
        "authority": authority,
        "headers": headers,
        "body": String::from_utf8_lossy(&body),
    });
    let mut response = Response::new(Full::from(text.to_string()));
    *response.status_mut() = http::StatusCode::from_u16(state.status.load(Ordering::SeqCst)).unwrap_or_default();
    if let Ok(name) = state.name.parse() {
        response.headers_mut().insert("x-backend", name);
    }
    Ok(response)
}
