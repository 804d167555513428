//! A gRPC server for tests. Dropping it closes all connections, like a crash.

use std::net::SocketAddr;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};
use tonic::service::Routes;

/// A running server.
pub(crate) struct Serving {
    pub(crate) address: SocketAddr,
    accepting: AbortHandle,
}

impl Serving {
    /// Listens on an address; port 0 is any.
    pub(crate) async fn start(address: SocketAddr, routes: Routes) -> Serving {
        // The port of a stopped server may not be free at once.
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
        // The connections belong to this task and end with it.
        self.accepting.abort();
    }
}
