//! Small servers to route traffic to. Each responds with its name.

mod authz;
mod http;
mod tcp;

pub use authz::{ALLOW_HEADER, AuthzBackend};
pub use http::HttpBackend;
pub use tcp::{TcpBackend, greeted};

use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio::task::JoinHandle;

async fn listen(address: SocketAddr) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(address).await;
    let listener = listener.unwrap_or_else(|e| panic!("could not listen on {address}: {e}"));
    let bound = listener.local_addr().unwrap_or(address);
    (listener, bound)
}

/// A task that is aborted on drop.
struct ServeTask(JoinHandle<()>);

impl Drop for ServeTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}
