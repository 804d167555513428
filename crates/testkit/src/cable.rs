//! A wire between two servers that a test can cut: what comes in on its end goes out to where it leads.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// The address that it leads to; `None` while it is cut or leads nowhere yet.
type Target = Option<SocketAddr>;

pub struct Cable {
    address: SocketAddr,
    target: watch::Sender<Target>,
    accepting: AbortHandle,
}

impl Cable {
    /// A cable that leads nowhere yet: whoever comes is sent away.
    pub async fn laid() -> Cable {
        let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = bound.unwrap_or_else(|e| panic!("could not listen: {e}"));
        let address = listener.local_addr().unwrap_or_else(|e| panic!("no address: {e}"));
        let (target, leads_to) = watch::channel(None);
        let accepting = tokio::spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                open.spawn(carry(stream, leads_to.clone()));
            }
        });
        Cable { address, target, accepting: accepting.abort_handle() }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn lead_to(&self, address: SocketAddr) {
        self.target.send_replace(Some(address));
    }

    /// Ends its connections and lets none in.
    pub fn cut(&self) {
        self.target.send_replace(None);
    }
}

async fn carry(mut inner: TcpStream, mut leads_to: watch::Receiver<Target>) {
    let Some(address) = *leads_to.borrow_and_update() else { return };
    let Ok(mut outer) = TcpStream::connect(address).await else { return };
    tokio::select! {
        _ = leads_to.changed() => {}
        _ = copy_bidirectional(&mut inner, &mut outer) => {}
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        // Its connections are in the same task's set, and end with it.
        self.accepting.abort();
    }
}
