//! A TCP proxy whose connections can go dead silently, like half-open connections.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub(crate) struct TcpLink {
    address: SocketAddr,
    /// Number of cuts. Connections opened before the last cut are dead: no data passes, nothing is closed.
    cuts: Arc<watch::Sender<u64>>,
    task: JoinHandle<()>,
}

impl TcpLink {
    pub(crate) async fn to(target: SocketAddr) -> TcpLink {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let cuts = Arc::new(watch::Sender::new(0));
        let task = tokio::spawn({
            let cuts = Arc::clone(&cuts);
            async move {
                while let Ok((near, _)) = listener.accept().await {
                    let Ok(far) = TcpStream::connect(target).await else { continue };
                    let mut cuts = cuts.subscribe();
                    tokio::spawn(async move {
                        cuts.mark_unchanged();
                        carry(near, far, cuts).await;
                    });
                }
            }
        });
        TcpLink { address, cuts, task }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Open connections go dead; new ones work.
    pub(crate) fn go_dead(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

impl Drop for TcpLink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(near: TcpStream, far: TcpStream, mut cuts: watch::Receiver<u64>) {
    let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.into_split(), far.into_split());
    let both = async {
        tokio::select! {
            () = copy(&mut near_in, &mut far_out) => {}
            () = copy(&mut far_in, &mut near_out) => {}
        }
    };
    tokio::select! {
        () = both => {}
        cut = cuts.changed() => if cut.is_ok() {
            // Both sockets stay open and silent until the test ends.
            std::future::pending::<()>().await;
        }
    }
}

async fn copy(from: &mut (impl AsyncReadExt + Unpin), to: &mut (impl AsyncWriteExt + Unpin)) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
