//! A gRPC server of a test: it ends with all its connections, as a server does that crashes.

use std::net::SocketAddr;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use tonic::service::Routes;

/// A server at work, until dropped.
pub(crate) struct Serving {
    pub(crate) address: SocketAddr,
    accepting: AbortHandle,
}

impl Serving {
    /// Serves at an address; port 0 is any.
    pub(crate) async fn start(address: SocketAddr, routes: Routes) -> Serving {
        // A server that was here before may take a moment to go.
        let listener = testkit::wait::until("a free port", async || {
            TcpListener::bind(address).await.map_err(|error| error.to_string())
        })
        .await;
        let address = listener.local_addr().unwrap();
        let accepting = tokio::spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let service = TowerToHyperService::new(routes.clone());
                let connection = http2::Builder::new(TokioExecutor::new());
                open.spawn(async move { connection.serve_connection(TokioIo::new(stream), service).await });
            }
        });
        Serving { address, accepting: accepting.abort_handle() }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // Its connections are in the same task's set, and end with it.
        self.accepting.abort();
    }
}
