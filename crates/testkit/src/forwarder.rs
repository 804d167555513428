//! A TCP forwarder that a test can redirect, cut, delay, slow down, silence or reset.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

/// Where connections lead to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ForwardTarget {
    /// `None` while connections are refused.
    address: Option<SocketAddr>,
    /// How often connections were closed. A connection sees a cut even if the address is back at once.
    cuts: usize,
}

/// What a forwarder does to the bytes of its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkFault {
    #[default]
    None,
    /// Bytes of both directions wait until the fault ends; connections stay open.
    Silent,
    /// Only bytes towards the client wait.
    SilentDown,
    /// Only bytes towards the target wait.
    SilentUp,
    /// Each piece of both directions arrives this much later.
    Delay(Duration),
    /// Bytes a second towards the client.
    Slow(usize),
    /// Each connection is reset after this many further bytes towards the client.
    Reset(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

pub struct TcpForwarder {
    address: SocketAddr,
    target: watch::Sender<ForwardTarget>,
    fault: watch::Sender<LinkFault>,
    accepting: AbortHandle,
}

impl TcpForwarder {
    /// Starts a forwarder without a target: connections are closed at once.
    pub async fn start() -> TcpForwarder {
        let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = bound.unwrap_or_else(|e| panic!("could not listen: {e}"));
        let address = listener.local_addr().unwrap_or_else(|e| panic!("no address: {e}"));
        let (target, targets) = watch::channel(ForwardTarget::default());
        let (fault, faults) = watch::channel(LinkFault::None);
        let accepting = tokio::spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                open.spawn(forward(stream, targets.clone(), faults.clone()));
                while open.try_join_next().is_some() {}
            }
        });
        TcpForwarder { address, target, fault, accepting: accepting.abort_handle() }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Forwards new connections to this address, and closes those to another one.
    pub fn forward_to(&self, address: SocketAddr) {
        self.target.send_modify(|target| target.address = Some(address));
    }

    /// Closes all connections and refuses new ones.
    pub fn cut(&self) {
        self.target.send_modify(|target| *target = ForwardTarget { address: None, cuts: target.cuts + 1 });
    }

    /// Disturbs all connections in this way from now on.
    pub fn disturb(&self, fault: LinkFault) {
        self.fault.send_replace(fault);
    }
}

async fn forward(inner: TcpStream, mut targets: watch::Receiver<ForwardTarget>, faults: watch::Receiver<LinkFault>) {
    let target = *targets.borrow_and_update();
    let Some(address) = target.address else { return };
    let Ok(outer) = TcpStream::connect(address).await else { return };
    let _ = (inner.set_nodelay(true), outer.set_nodelay(true));
    let (inner_read, inner_write) = inner.into_split();
    let (outer_read, outer_write) = outer.into_split();
    let both = async {
        let up = copy(inner_read, outer_write, Direction::Up, faults.clone());
        let down = copy(outer_read, inner_write, Direction::Down, faults.clone());
        tokio::join!(up, down);
    };
    tokio::select! {
        _ = targets.wait_for(|now| *now != target) => {}
        () = both => {}
    }
}

/// Copies one direction until it ends. Both directions of a connection that is reset end.
async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, way: Direction, mut faults: watch::Receiver<LinkFault>) {
    let mut buffer = vec![0; 16 << 10];
    let mut passed = 0;
    loop {
        waits(&mut faults, way).await;
        let fault = *faults.borrow_and_update();
        let portion = match fault {
            LinkFault::Slow(rate) if way == Direction::Down => (rate / 10).clamp(1, buffer.len()),
            _ => buffer.len(),
        };
        let count = tokio::select! {
            count = from.read(&mut buffer[..portion]) => count.unwrap_or(0),
            changed = faults.changed() => {
                passed = 0;
                if changed.is_err() { return }
                continue;
            }
        };
        waits(&mut faults, way).await;
        let fault = *faults.borrow();
        match fault {
            LinkFault::Delay(delay) => sleep(delay).await,
            LinkFault::Slow(_) if way == Direction::Down => sleep(Duration::from_millis(100)).await,
            LinkFault::Reset(limit) if way == Direction::Down && passed + count > limit => {
                let _ = to.write_all(&buffer[..limit.saturating_sub(passed)]).await;
                let _ = to.as_ref().set_zero_linger();
                return;
            }
            _ => {}
        }
        passed += count;
        if count == 0 || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Waits while this direction is silent.
async fn waits(faults: &mut watch::Receiver<LinkFault>, way: Direction) {
    let passes = |fault: &LinkFault| match fault {
        LinkFault::Silent => false,
        LinkFault::SilentDown => way == Direction::Up,
        LinkFault::SilentUp => way == Direction::Down,
        _ => true,
    };
    let _ = faults.wait_for(passes).await;
}

impl Drop for TcpForwarder {
    fn drop(&mut self) {
        // Its connections run in the same task and end with it.
        self.accepting.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cut_closes_connections_although_the_target_is_back_at_once() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let target = listener.local_addr().expect("an address");
        let forwarder = TcpForwarder::start().await;
        forwarder.forward_to(target);
        let mut client = TcpStream::connect(forwarder.address()).await.expect("the forwarder");
        let (mut server, _) = listener.accept().await.expect("a connection");
        server.write_all(b"x").await.expect("an open connection");
        assert_eq!(client.read_u8().await.expect("a byte"), b'x');
        forwarder.forward_to(target);
        server.write_all(b"y").await.expect("an open connection");
        assert_eq!(client.read_u8().await.expect("a byte"), b'y');
        forwarder.cut();
        forwarder.forward_to(target);
        assert_eq!(client.read(&mut [0]).await.expect("an orderly end"), 0);
    }
}
