//! How many connections a port may have, and how long one may stay without being of use. A port that is full makes room
//! by closing a connection that serves no request, the oldest of the address that has most: silent connections never
//! keep others out. Where answers end by themselves, slow readers of them do not either.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// How often a full port is logged.
const REPORT: Duration = Duration::from_secs(60);

/// How long connections may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    /// From the connection to its first whole request, a TLS handshake included.
    pub(crate) first_request: Duration,
    /// Between two requests.
    pub(crate) idle: Duration,
    /// With requests in flight all the time; None for streams, which last.
    pub(crate) busy: Option<Duration>,
}

/// The connections of a port, or of several that share a limit.
#[derive(Debug)]
pub(crate) struct Connections {
    name: &'static str,
    limit: usize,
    /// Whether a connection may be closed that serves a request, if none is idle.
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
    /// Asks it to go at once, to make room.
    close: CancellationToken,
}

#[derive(Debug)]
struct ConnectionState {
    requests: usize,
    served_before: bool,
    /// Since when it has been busy, or idle.
    since: Instant,
}

/// A place among the open connections, given back when dropped.
#[derive(Debug)]
pub(crate) struct ConnectionSlot {
    connections: Arc<Connections>,
    number: u64,
    connection: Arc<TcpConnection>,
}

/// A request in flight.
#[derive(Debug)]
pub(crate) struct RequestInFlight(Arc<TcpConnection>);

impl Connections {
    /// Connections whose streams last.
    pub(crate) fn of_streams(name: &'static str, limit: usize) -> Arc<Connections> {
        Connections::new(name, limit, false)
    }

    /// Connections for pages. A probe of readiness counts for more than the reader of a page that takes its time.
    pub(crate) fn of_pages(name: &'static str, limit: usize) -> Arc<Connections> {
        Connections::new(name, limit, true)
    }

    fn new(name: &'static str, limit: usize, closes_busy: bool) -> Arc<Connections> {
        let (open, reported) = (Mutex::default(), Mutex::default());
        Arc::new(Connections { name, limit: limit.max(1), closes_busy, next: AtomicU64::new(0), open, reported })
    }

    /// A place for a new connection; None if all are taken by connections that serve requests.
    pub(crate) fn enter(self: &Arc<Self>, peer: IpAddr) -> Option<ConnectionSlot> {
        let mut open = lock(&self.open);
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
        let mut reported = lock(&self.reported);
        if reported.is_some_and(|at| at.elapsed() < REPORT) {
            return;
        }
        *reported = Some(Instant::now());
        let (port, limit) = (self.name, self.limit);
        if made_room {
            warn!(port, limit, %peer, "too many connections; closing the least useful");
        } else {
            warn!(port, limit, %peer, "too many connections; refusing new ones (raise the limit of open files for more)");
        }
    }
}

/// The oldest of these connections from the address that has most of them.
fn oldest_of_most<'a>(connections: impl Iterator<Item = (&'a u64, &'a Arc<TcpConnection>)>) -> Option<u64> {
    let mut by_address: HashMap<IpAddr, (usize, Reverse<u64>)> = HashMap::new();
    for (number, connection) in connections {
        by_address.entry(connection.peer).or_insert((0, Reverse(*number))).0 += 1;
    }
    by_address.into_values().max().map(|(_, Reverse(oldest))| oldest)
}

impl TcpConnection {
    /// Counts a request until the answer is sent.
    pub(crate) fn request(self: &Arc<Self>) -> RequestInFlight {
        let mut state = lock(&self.state);
        state.requests += 1;
        if state.requests == 1 {
            state.since = Instant::now();
        }
        state.served_before = true;
        drop(state);
        RequestInFlight(self.clone())
    }

    /// Resolves when the connection has to go.
    pub(crate) async fn over(&self, deadlines: &Deadlines) {
        let expired = async {
            loop {
                let due = self.due(deadlines);
                if due <= Instant::now() {
                    return;
                }
                sleep_until(due).await;
            }
        };
        tokio::select! {
            () = expired => {}
            () = self.close.cancelled() => {}
        }
    }

    fn due(&self, deadlines: &Deadlines) -> Instant {
        let state = lock(&self.state);
        match (state.requests, deadlines.busy) {
            (0, _) if state.served_before => state.since + deadlines.idle,
            (0, _) => state.since + deadlines.first_request,
            (_, Some(busy)) => state.since + busy,
            // It may become idle at any time from now on.
            (_, None) => Instant::now() + deadlines.idle,
        }
    }

    fn is_idle(&self) -> bool {
        lock(&self.state).requests == 0
    }
}

impl ConnectionSlot {
    pub(crate) fn connection(&self) -> &Arc<TcpConnection> {
        &self.connection
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        lock(&self.connections.open).remove(&self.number);
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.requests -= 1;
        if state.requests == 0 {
            state.since = Instant::now();
        }
    }
}

/// An answer's body, whose request is in flight until it is sent or given up.
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

/// A panic elsewhere leaves these values whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
    async fn hole_05_silent_connections_make_room_and_busy_ones_stay() {
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
        assert!(connections.open.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn hole_05_room_is_made_by_the_address_that_has_most() {
        let connections = Connections::of_streams("test", 4);
        let other = IpAddr::from([10, 0, 0, 2]);
        let modest = connections.enter(other).unwrap();
        let greedy = [(); 3].map(|()| connections.enter(PEER).unwrap());
        let _new = connections.enter(PEER).unwrap();
        assert!(!modest.connection().close.is_cancelled() && greedy[0].connection().close.is_cancelled());
    }

    #[tokio::test]
    async fn hole_05_slow_readers_of_pages_keep_no_probe_out() {
        let connections = Connections::of_pages("test", 2);
        let slow = [(); 2].map(|()| connections.enter(PEER).unwrap());
        let _requests = [slow[0].connection().request(), slow[1].connection().request()];
        connections.enter(PEER).expect("room for a probe");
        assert!(slow[0].connection().close.is_cancelled() && !slow[1].connection().close.is_cancelled());
    }

    #[tokio::test]
    async fn hole_05_connections_end_by_what_they_wait_for() {
        let connections = Connections::of_streams("test", 10);
        let elapsed = async |place: &super::ConnectionSlot, deadlines: &Deadlines| {
            let begun = Instant::now();
            place.connection().over(deadlines).await;
            begun.elapsed()
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
        assert!(tokio::time::timeout(Duration::from_millis(50), busy.connection().over(&streams)).await.is_err());
    }
}
