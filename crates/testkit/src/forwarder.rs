//! A TCP forwarder that a test can redirect or cut.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// The target address; `None` while connections are refused.
type ForwardTarget = Option<SocketAddr>;

pub struct TcpForwarder {
    address: SocketAddr,
    target: watch::Sender<ForwardTarget>,
    accepting: AbortHandle,
}

impl TcpForwarder {
    /// Starts a forwarder without a target: connections are closed at once.
    pub async fn start() -> TcpForwarder {
        let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = bound.unwrap_or_else(|e| panic!("could not listen: {e}"));
        let address = listener.local_addr().unwrap_or_else(|e| panic!("no address: {e}"));
        let (target, targets) = watch::channel(None);
        let accepting = tokio::spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                open.spawn(forward(stream, targets.clone()));
            }
        });
        TcpForwarder { address, target, accepting: accepting.abort_handle() }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn forward_to(&self, address: SocketAddr) {
        self.target.send_replace(Some(address));
    }

    /// Closes all connections and refuses new ones.
    pub fn cut(&self) {
        self.target.send_replace(None);
    }
}

async fn forward(mut inner: TcpStream, mut targets: watch::Receiver<ForwardTarget>) {
    let Some(address) = *targets.borrow_and_update() else { return };
    let Ok(mut outer) = TcpStream::connect(address).await else { return };
    tokio::select! {
        _ = targets.changed() => {}
        _ = copy_bidirectional(&mut inner, &mut outer) => {}
    }
}

impl Drop for TcpForwarder {
    fn drop(&mut self) {
        // Its connections run in the same task and end with it.
        self.accepting.abort();
    }
}
