//! A reverse proxy for an API server that fails on demand: it rejects requests and cuts watches in the middle of a line.
//! It records requests and counts failures.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{client, server};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio_stream::wrappers::ReceiverStream;

use crate::tls::TlsClient;

/// A running proxy; stopped on drop.
pub struct FaultyProxy {
    address: SocketAddr,
    state: Arc<FaultyState>,
    kubeconfig: PathBuf,
    _folder: TempDir,
    accepting: AbortHandle,
}

struct FaultyState {
    upstream: SocketAddr,
    tls: TlsClient,
    refusal: Mutex<Option<RefusalPlan>>,
    /// Whether resuming a watch fails with status 410.
    forgets: AtomicBool,
    /// Incremented to cut all watches that started earlier.
    cuts: watch::Sender<u64>,
    requests: Mutex<Vec<String>>,
    figures: Mutex<Figures>,
}

/// `refused` of every `of` requests get these statuses in turn.
#[derive(Clone)]
struct RefusalPlan {
    refused: usize,
    of: usize,
    statuses: Vec<u16>,
    seen: usize,
    given: usize,
}

/// Counters of the proxy.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    pub requests: usize,
    /// Requests answered by the proxy itself, by status.
    pub refused: BTreeMap<u16, usize>,
    /// Watches that ended in the middle of a line.
    pub cut: usize,
    /// Watches that the API server ended because their history is gone.
    pub expired: usize,
}

impl FaultyProxy {
    /// Starts the proxy. It forwards everything at first.
    pub(crate) async fn start(upstream: SocketAddr, tls: TlsClient, token: &str) -> FaultyProxy {
        let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = bound.unwrap_or_else(|e| panic!("could not listen: {e}"));
        let address = listener.local_addr().unwrap_or_else(|e| panic!("no address: {e}"));
        let state = Arc::new(FaultyState {
            upstream,
            tls,
            refusal: Mutex::default(),
            forgets: AtomicBool::default(),
            cuts: watch::Sender::new(0),
            requests: Mutex::default(),
            figures: Mutex::default(),
        });
        let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("could not make a folder: {e}"));
        let kubeconfig = folder.path().join("kubeconfig");
        fs::write(&kubeconfig, text(address, token)).unwrap_or_else(|e| panic!("could not write a kubeconfig: {e}"));
        let accepting = tokio::spawn(serve(listener, state.clone())).abort_handle();
        FaultyProxy { address, state, kubeconfig, _folder: folder, accepting }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Kubeconfig for clients of the proxy.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Rejects `refused` of every `of` requests with these statuses in turn. Open watches continue.
    pub fn refuse(&self, refused: usize, of: usize, statuses: &[u16]) {
        *self.state.refusal.lock() = Some(RefusalPlan { refused, of, statuses: statuses.to_vec(), seen: 0, given: 0 });
    }

    /// Rejects watches that resume from a resource version with status 410.
    pub fn refuse_to_resume(&self) {
        self.state.forgets.store(true, Ordering::SeqCst);
    }

    /// Cuts every open watch in the middle of its next line.
    pub fn cut_watches(&self) {
        self.state.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Forwards everything again.
    pub fn heal(&self) {
        *self.state.refusal.lock() = None;
        self.state.forgets.store(false, Ordering::SeqCst);
    }

    /// All requests so far, as `METHOD PATH?QUERY`.
    pub fn requests(&self) -> Vec<String> {
        self.state.requests.lock().clone()
    }

    pub fn figures(&self) -> Figures {
        self.state.figures.lock().clone()
    }
}

impl Drop for FaultyProxy {
    fn drop(&mut self) {
        // Its connections run in the same task and end with it.
        self.accepting.abort();
    }
}

fn text(address: SocketAddr, token: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": format!("http://{address}")}}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    })
    .to_string()
}

async fn serve(listener: TcpListener, state: Arc<FaultyState>) {
    let mut open = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let state = state.clone();
        let service = service_fn(move |request| {
            let state = state.clone();
            async move { Ok::<_, Infallible>(answer(state, request).await) }
        });
        open.spawn(server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        while open.try_join_next().is_some() {}
    }
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;
type ProxyResponse = Response<BoxBody<Bytes, AnyError>>;

async fn answer(state: Arc<FaultyState>, request: Request<Incoming>) -> ProxyResponse {
    state.requests.lock().push(format!("{} {}", request.method(), request.uri()));
    state.figures.lock().requests += 1;
    if let Some(status) = state.refusal(request.uri()) {
        *state.figures.lock().refused.entry(status).or_default() += 1;
        return refused(status);
    }
    match pass(&state, request).await {
        Ok(answer) => answer,
        // Like a load balancer without a healthy backend.
        Err(_) => refused(503),
    }
}

impl FaultyState {
    /// The status with which this request is rejected.
    fn refusal(&self, uri: &Uri) -> Option<u16> {
        let query = uri.query().unwrap_or_default();
        let resumes = is_watch(uri) && query.contains("resourceVersion=") && !query.contains("sendInitialEvents");
        if resumes && self.forgets.load(Ordering::SeqCst) {
            return Some(410);
        }
        let mut refusal = self.refusal.lock();
        let refusal = refusal.as_mut()?;
        refusal.seen += 1;
        if (refusal.seen - 1) % refusal.of >= refusal.refused {
            return None;
        }
        refusal.given += 1;
        Some(refusal.statuses[refusal.given % refusal.statuses.len()])
    }
}

fn is_watch(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.contains("watch=true"))
}

/// An error response of an API server.
fn refused(status: u16) -> ProxyResponse {
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "a fault", "code": status});
    let mut answer = Response::new(full(body.to_string()));
    *answer.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if status == 429 {
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    answer
}

fn full(text: String) -> BoxBody<Bytes, AnyError> {
    Full::new(Bytes::from(text)).map_err(AnyError::from).boxed()
}

async fn pass(state: &Arc<FaultyState>, mut request: Request<Incoming>) -> Result<ProxyResponse, AnyError> {
    let stream = state.tls.connect(state.upstream, "").await?;
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection).abort_handle();
    request.headers_mut().insert(HOST, HeaderValue::from_static("127.0.0.1"));
    let is_watch = is_watch(request.uri());
    let (head, body) = sender.send_request(request).await?.into_parts();
    let (forward, frames) = mpsc::channel(1);
    let cuts = state.cuts.subscribe();
    let state = state.clone();
    tokio::spawn(async move {
        // Dropping the sender would close the connection before the response is complete.
        let _sender = sender;
        let cuts = is_watch.then_some(cuts);
        copy(&state, body, &forward, cuts).await;
        driver.abort();
    });
    Ok(Response::from_parts(head, StreamBody::new(ReceiverStream::new(frames)).boxed()))
}

type Frames = mpsc::Sender<Result<Frame<Bytes>, AnyError>>;

/// Copies a response until it ends, the client disconnects, or it is cut.
async fn copy(state: &FaultyState, mut body: Incoming, forward: &Frames, cuts: Option<watch::Receiver<u64>>) {
    loop {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            () = forward.closed() => return,
        };
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                _ = forward.send(Err(error.into())).await;
                return;
            }
            None => return,
        };
        let Some(cuts) = &cuts else {
            _ = forward.send(Ok(frame)).await;
            continue;
        };
        let data = frame.data_ref().cloned().unwrap_or_default();
        if data.windows(EXPIRED.len()).any(|window| window == EXPIRED) {
            state.figures.lock().expired += 1;
        }
        if !cuts.has_changed().unwrap_or(false) || data.len() < 2 {
            _ = forward.send(Ok(frame)).await;
            continue;
        }
        state.figures.lock().cut += 1;
        _ = forward.send(Ok(Frame::data(data.slice(..data.len() / 2)))).await;
        _ = forward.send(Err("cut".into())).await;
        return;
    }
}

/// Part of the event that ends an expired watch.
const EXPIRED: &[u8] = b"\"code\":410";
