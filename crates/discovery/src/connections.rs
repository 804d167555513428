//! Limits the number of connections of a port and how long one may be idle. A full port closes an idle connection, the
//! oldest of the address that has most, so idle connections never keep others out. An HTTP port also closes connections
//! of slow readers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Interval at which a full port is logged.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Time limits of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    /// From accept to the first complete request, including the TLS handshake.
    pub(crate) first_request: Duration,
    /// Between two requests.
    pub(crate) idle: Duration,
    /// With a request always in flight; `None` for streams.
    pub(crate) busy: Option<Duration>,
}

/// The connections of one port, or of several ports that share a limit.
#[derive(Debug)]
pub(crate) struct Connections {
    name: &'static str,
    limit: usize,
    /// Whether a busy connection may be closed if none is idle.
    closes_busy: bool,
    next: AtomicU64,
    open: Mutex<BTreeMap<u64, Arc<TcpConnection>>>,
    reported: Mutex<Option<Instant>>,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct TcpConnection {
    peer: IpAddr,
    state: Mutex<ConnectionState>,
    /// Closes the connection to make room for another.
    close: CancellationToken,
}

#[derive(Debug)]
struct ConnectionState {
    requests: usize,
    served_before: bool,
    /// Start of the current busy or idle period.
    since: Instant,
}

/// A slot among the open connections; dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    connections: Arc<Connections>,
    number: u64,
    connection: Arc<TcpConnection>,
}

/// Counts a request as in flight until dropped.
#[derive(Debug)]
pub(crate) struct RequestInFlight(Arc<TcpConnection>);

impl Connections {
    /// Connections with long-lived streams.
    pub(crate) fn of_streams(name: &'static str, limit: usize) -> Arc<Connections> {
        Connections::new(name, limit, false)
    }

    /// Connections for pages. A readiness probe is more important than a slow reader of a page.
    pub(crate) fn of_pages(name: &'static str, limit: usize) -> Arc<Connections> {
        Connections::new(name, limit, true)
    }

    fn new(name: &'static str, limit: usize, closes_busy: bool) -> Arc<Connections> {
        let (open, reported) = (Mutex::default(), Mutex::default());
        Arc::new(Connections { name, limit: limit.max(1), closes_busy, next: AtomicU64::new(0), open, reported })
    }

    /// A slot for a new connection; `None` if all connections are busy.
    pub(crate) fn enter(self: &Arc<Self>, peer: IpAddr) -> Option<ConnectionSlot> {
        let mut open = self.open.lock();
        if open.len() >= self.limit {
            let busy = || if self.closes_busy { oldest_of_most(open.iter()) } else { None };
            let closed = oldest_of_most(open.iter().filter(|(_, connection)| connection.is_idle())).or_else(busy);
            self.report(peer, closed.is_some());
            open.remove(&closed?)?.close.cancel();
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let state = ConnectionState { requests: 0, served_before: false, since: Instant::now() };
        let connection = Arc::new(TcpConnection { peer, state: Mutex::new(state), close: CancellationToken::new() });
        open.insert(number, connection.clone());
        Some(ConnectionSlot { connections: self.clone(), number, connection })
    }

    fn report(&self, peer: IpAddr, made_room: bool) {
        let mut reported = self.reported.lock();
        if reported.is_some_and(|at| at.elapsed() < LOG_INTERVAL) {
            return;
        }
        *reported = Some(Instant::now());
        let (port, limit) = (self.name, self.limit);
        if made_room {
            warn!(port, limit, %peer, "connection limit reached; closing the oldest idle connection");
        } else {
            warn!(port, limit, %peer, "connection limit reached; refusing new connections (the limit follows from the limit of open files)");
        }
    }
}

/// The oldest connection of the address with the most connections.
fn oldest_of_most<'a>(connections: impl Iterator<Item = (&'a u64, &'a Arc<TcpConnection>)>) -> Option<u64> {
    let mut by_address: HashMap<IpAddr, (usize, Reverse<u64>)> = HashMap::new();
    for (number, connection) in connections {
        by_address.entry(connection.peer).or_insert((0, Reverse(*number))).0 += 1;
    }
    by_address.into_values().max().map(|(_, Reverse(oldest))| oldest)
}

impl TcpConnection {
    /// Counts a request until the result is dropped.
    pub(crate) fn request(self: &Arc<Self>) -> RequestInFlight {
        let mut state = self.state.lock();
        state.requests += 1;
        if state.requests == 1 {
            state.since = Instant::now();
        }
        state.served_before = true;
        drop(state);
        RequestInFlight(self.clone())
    }

    /// Closes the connection when cancelled.
    pub(crate) fn close(&self) -> CancellationToken {
        self.close.clone()
    }

    /// Resolves when the connection must be closed: a time limit passed, or its slot is needed.
    pub(crate) async fn expired(&self, deadlines: &Deadlines) {
        let timed_out = async {
            loop {
                let due = self.due(deadlines);
                if due <= Instant::now() {
                    return;
                }
                sleep_until(due).await;
            }
        };
        tokio::select! {
            () = timed_out => {}
            () = self.close.cancelled() => {}
        }
    }

    fn due(&self, deadlines: &Deadlines) -> Instant {
        let state = self.state.lock();
        match (state.requests, deadlines.busy) {
            (0, _) if state.served_before => state.since + deadlines.idle,
            (0, _) => state.since + deadlines.first_request,
            (_, Some(busy)) => state.since + busy,
            // It may become idle at any time.
            (_, None) => Instant::now() + deadlines.idle,
        }
    }

    fn is_idle(&self) -> bool {
        self.state.lock().requests == 0
    }
}

impl ConnectionSlot {
    pub(crate) fn connection(&self) -> &Arc<TcpConnection> {
        &self.connection
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.connections.open.lock().remove(&self.number);
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.requests -= 1;
        if state.requests == 0 {
            state.since = Instant::now();
        }
    }
}

/// A response body that keeps its request counted as in flight until it is sent or dropped.
#[derive(Debug)]
pub(crate) struct CountedBody<B> {
    body: B,
    _request: RequestInFlight,
}

impl<B> CountedBody<B> {
    pub(crate) fn new(body: B, request: RequestInFlight) -> CountedBody<B> {
        CountedBody { body, _request: request }
    }
}

impl<B: Body + Unpin> Body for CountedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Connections, Deadlines, Instant, IpAddr};

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    const DEADLINES: Deadlines = Deadlines {
        first_request: Duration::from_millis(20),
        idle: Duration::from_millis(400),
        busy: Some(Duration::from_millis(100)),
    };

    #[tokio::test]
    async fn hole_05_idle_connections_make_room_and_busy_ones_stay() {
        let connections = Connections::of_streams("test", 2);
        let (first, second) = (connections.enter(PEER).unwrap(), connections.enter(PEER).unwrap());
        let request = first.connection().request();
        let third = connections.enter(PEER).expect("room for a third");
        assert!(second.connection().close.is_cancelled() && !first.connection().close.is_cancelled());
        let other = third.connection().request();
        assert!(connections.enter(PEER).is_none(), "both serve requests");
        drop((request, other));
        assert!(connections.enter(PEER).is_some());
        drop((first, second, third));
        assert!(connections.open.lock().is_empty());
    }

    #[tokio::test]
    async fn hole_05_the_address_with_most_connections_makes_room() {
        let connections = Connections::of_streams("test", 4);
        let other = IpAddr::from([10, 0, 0, 2]);
        let modest = connections.enter(other).unwrap();
        let greedy = [(); 3].map(|()| connections.enter(PEER).unwrap());
        let _new = connections.enter(PEER).unwrap();
        assert!(!modest.connection().close.is_cancelled() && greedy[0].connection().close.is_cancelled());
    }

    #[tokio::test]
    async fn hole_05_slow_readers_of_pages_do_not_keep_probes_out() {
        let connections = Connections::of_pages("test", 2);
        let slow = [(); 2].map(|()| connections.enter(PEER).unwrap());
        let _requests = [slow[0].connection().request(), slow[1].connection().request()];
        connections.enter(PEER).expect("room for a probe");
        assert!(slow[0].connection().close.is_cancelled() && !slow[1].connection().close.is_cancelled());
    }

    #[tokio::test]
    async fn hole_05_each_state_of_a_connection_has_its_time_limit() {
        let connections = Connections::of_streams("test", 10);
        let elapsed = async |slot: &super::ConnectionSlot, deadlines: &Deadlines| {
            let start = Instant::now();
            slot.connection().expired(deadlines).await;
            start.elapsed()
        };
        let silent = connections.enter(PEER).unwrap();
        assert!(elapsed(&silent, &DEADLINES).await < DEADLINES.idle);
        let idle = connections.enter(PEER).unwrap();
        drop(idle.connection().request());
        assert!(elapsed(&idle, &DEADLINES).await >= DEADLINES.idle);
        let busy = connections.enter(PEER).unwrap();
        let _request = busy.connection().request();
        assert!(elapsed(&busy, &DEADLINES).await >= Duration::from_millis(90));
        let streams = Deadlines { busy: None, idle: Duration::from_millis(5), ..DEADLINES };
        assert!(tokio::time::timeout(Duration::from_millis(50), busy.connection().expired(&streams)).await.is_err());
    }
}
