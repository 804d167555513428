//! A wire between two servers that a test can cut: what comes in on its end goes out to where it leads.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// The address that it leads to; `None` while it is cut or leads nowhere yet.
type ForwardTarget = Option<SocketAddr>;

pub struct TcpForwarder {
    address: SocketAddr,
    target: watch::Sender<ForwardTarget>,
    accepting: AbortHandle,
}

impl TcpForwarder {
    /// A cable that leads nowhere yet: whoever comes is sent away.
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

    /// Ends its connections and lets none in.
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
        // Its connections are in the same task's set, and end with it.
        self.accepting.abort();
    }
}
