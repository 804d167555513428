//! An HTTP server whose responses come from a test's closure, for behaviour that a real server cannot be made to show.
//! It counts connections and records requests.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use tokio_stream::StreamExt;

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// One request.
#[derive(Clone, Debug)]
pub struct ScriptedRequest {
    pub path: String,
    /// Without the question mark; empty if there is none.
    pub query: String,
    pub headers: HeaderMap,
}

impl ScriptedRequest {
    /// The value of a query parameter, not decoded.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let pairs = self.query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value)
    }
}

pub struct ScriptedServer {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: Arc<Mutex<Vec<ScriptedRequest>>>,
    accepting: AbortHandle,
}

impl ScriptedServer {
    /// Serves on a free port until dropped. The script may wait.
    pub async fn start<F, B>(script: impl Fn(ScriptedRequest) -> F + Send + Sync + 'static) -> ScriptedServer
    where
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes, Error: Into<AnyError>> + Send + 'static,
    {
        let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = bound.unwrap_or_else(|e| panic!("could not listen: {e}"));
        let address = listener.local_addr().unwrap_or_else(|e| panic!("no address: {e}"));
        let (connections, requests) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<Vec<ScriptedRequest>>>::default());
        let (counted, seen, script) = (connections.clone(), requests.clone(), Arc::new(script));
        let accepting = tokio::spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                let (script, seen) = (script.clone(), seen.clone());
                let service = service_fn(move |request: Request<Incoming>| {
                    let request = ScriptedRequest {
                        path: request.uri().path().to_owned(),
                        query: request.uri().query().unwrap_or_default().to_owned(),
                        headers: request.headers().clone(),
                    };
                    seen.lock().push(request.clone());
                    let answer = script(request);
                    async move { Ok::<_, std::convert::Infallible>(answer.await) }
                });
                open.spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        ScriptedServer { address, connections, requests, accepting: accepting.abort_handle() }
    }

    /// Like `start`, but sends bodies in pieces of ten bytes with a pause before each.
    pub async fn start_in_pieces<F>(
        pause: Duration,
        script: impl Fn(ScriptedRequest) -> F + Send + Sync + 'static,
    ) -> ScriptedServer
    where
        F: Future<Output = Response<String>> + Send + 'static,
    {
        Self::start(move |request| {
            let answer = script(request);
            async move { answer.await.map(|text| pieces(text.as_bytes(), pause)) }
        })
        .await
    }

    /// Responses below a path repeat their text forever.
    pub async fn start_endless<F>(
        below: &'static str,
        script: impl Fn(ScriptedRequest) -> F + Send + Sync + 'static,
    ) -> ScriptedServer
    where
        F: Future<Output = Response<String>> + Send + 'static,
    {
        Self::start_unending(below, script, endless).await
    }

    /// Responses below a path send their text once and never end.
    pub async fn start_stalled<F>(
        below: &'static str,
        script: impl Fn(ScriptedRequest) -> F + Send + Sync + 'static,
    ) -> ScriptedServer
    where
        F: Future<Output = Response<String>> + Send + 'static,
    {
        Self::start_unending(below, script, stalled).await
    }

    async fn start_unending<F>(
        below: &'static str,
        script: impl Fn(ScriptedRequest) -> F + Send + Sync + 'static,
        unending: fn(String) -> UnsyncBoxBody<Bytes, Infallible>,
    ) -> ScriptedServer
    where
        F: Future<Output = Response<String>> + Send + 'static,
    {
        Self::start(move |request| {
            let is_below = request.path.starts_with(below);
            let answer = script(request);
            let body = move |text: String| if is_below { unending(text) } else { text.boxed_unsync() };
            async move { answer.await.map(body) }
        })
        .await
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Number of connections so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<ScriptedRequest> {
        self.requests.lock().clone()
    }
}

fn pieces(body: &[u8], pause: Duration) -> UnsyncBoxBody<Bytes, Infallible> {
    let pieces: Vec<Bytes> = body.chunks(10).map(Bytes::copy_from_slice).collect();
    let frames = tokio_stream::iter(pieces).then(move |piece| async move {
        tokio::time::sleep(pause).await;
        Ok(Frame::data(piece))
    });
    StreamBody::new(frames).boxed_unsync()
}

fn endless(text: String) -> UnsyncBoxBody<Bytes, Infallible> {
    let piece = Bytes::from(text.repeat((64 << 10) / text.len().max(1) + 1));
    let frames = std::iter::repeat_with(move || Ok(Frame::data(piece.clone())));
    StreamBody::new(tokio_stream::iter(frames)).boxed_unsync()
}

fn stalled(text: String) -> UnsyncBoxBody<Bytes, Infallible> {
    let sent = tokio_stream::once(Ok(Frame::data(Bytes::from(text))));
    StreamBody::new(sent.chain(tokio_stream::pending())).boxed_unsync()
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        // Its connections run in the same task and end with it.
        self.accepting.abort();
    }
}
