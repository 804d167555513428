//! An HTTP server that answers what a test tells it to, for what a real server cannot be made to do.
//! It counts connections and keeps the requests it saw.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// One request as a script sees it.
#[derive(Clone, Debug)]
pub struct Asked {
    pub path: String,
    /// Without the question mark; empty where there is none.
    pub query: String,
    pub headers: HeaderMap,
}

impl Asked {
    /// The value of a query parameter as it was written.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let pairs = self.query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value)
    }
}

pub struct Scripted {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    asked: Arc<Mutex<Vec<Asked>>>,
    accepting: AbortHandle,
}

impl Scripted {
    /// Serves on a free port until dropped. The script may wait as long as it likes.
    pub async fn start<F, B>(script: impl Fn(Asked) -> F + Send + Sync + 'static) -> Scripted
    where
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes, Error: Into<Failure>> + Send + 'static,
    {
        let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = bound.unwrap_or_else(|e| panic!("could not listen: {e}"));
        let address = listener.local_addr().unwrap_or_else(|e| panic!("no address: {e}"));
        let (connections, asked) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<Vec<Asked>>>::default());
        let (counted, seen, script) = (connections.clone(), asked.clone(), Arc::new(script));
        let accepting = tokio::spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                let (script, seen) = (script.clone(), seen.clone());
                let service = service_fn(move |request: Request<Incoming>| {
                    let asked = Asked {
                        path: request.uri().path().to_owned(),
                        query: request.uri().query().unwrap_or_default().to_owned(),
                        headers: request.headers().clone(),
                    };
                    seen.lock().unwrap_or_else(PoisonError::into_inner).push(asked.clone());
                    let answer = script(asked);
                    async move { Ok::<_, std::convert::Infallible>(answer.await) }
                });
                open.spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Scripted { address, connections, asked, accepting: accepting.abort_handle() }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many connections were opened so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// All requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        // Its connections are in the same task's set, and end with it.
        self.accepting.abort();
    }
}
