//! DNS over TCP: one query at a time on each connection. Silent clients are disconnected after a timeout; above the
//! connection limit the least recently used connection is closed.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::timeout;
use tracing::{debug, warn};

use super::DnsState;
use super::forward::{DnsTransport, read_framed, write_framed};

/// Maximum number of connections. Workloads use TCP only for responses that are too long for UDP.
const MAX_CONNECTIONS: usize = 256;

/// Timeout for receiving a query.
const IDLE: Duration = Duration::from_secs(10);

/// Timeout for sending a response of at most 64 KiB to a local client.
const WRITE: Duration = Duration::from_secs(2);

/// Serves clients. Never returns.
pub(super) async fn serve(listener: &TcpListener, shared: &Arc<DnsState>) {
    let mut open = OpenConnections::default();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => open.add(stream, shared),
            Err(error) => {
                debug!(%error, "could not accept a DNS connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Open connections, each with the step of its last use.
#[derive(Default)]
struct OpenConnections {
    tasks: JoinSet<()>,
    last_used: BTreeMap<Id, (Arc<AtomicU64>, AbortHandle)>,
    /// Counts connections and queries; orders connections by last use.
    steps: Arc<AtomicU64>,
    was_full: bool,
}

impl OpenConnections {
    fn add(&mut self, stream: TcpStream, shared: &Arc<DnsState>) {
        self.forget_ended();
        self.make_room();
        let last = Arc::new(AtomicU64::new(self.steps.fetch_add(1, Ordering::Relaxed)));
        let (shared, steps, used) = (Arc::clone(shared), Arc::clone(&self.steps), Arc::clone(&last));
        let task = self.tasks.spawn(async move {
            if let Err(error) = serve_queries(stream, &shared, || {
                used.store(steps.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
            })
            .await
            {
                debug!(%error, "DNS connection ended");
            }
        });
        self.last_used.insert(task.id(), (last, task));
    }

    fn forget_ended(&mut self) {
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
            self.last_used.remove(&id);
        }
    }

    fn make_room(&mut self) {
        if self.last_used.len() < MAX_CONNECTIONS {
            self.was_full &= self.last_used.len() > MAX_CONNECTIONS / 2;
            return;
        }
        let quietest = self.last_used.iter().min_by_key(|(_, (last, _))| last.load(Ordering::Relaxed));
        if let Some((id, (_, task))) = quietest.map(|(id, entry)| (*id, entry)) {
            task.abort();
            self.last_used.remove(&id);
        }
        if !self.was_full {
            self.was_full = true;
            warn!(connections = MAX_CONNECTIONS, "too many DNS connections over TCP; closing the least recently used");
        }
    }
}

/// Answers queries one by one; calls `used` after each response.
async fn serve_queries(mut stream: TcpStream, shared: &DnsState, used: impl Fn()) -> io::Result<()> {
    while let Ok(query) = timeout(IDLE, read_framed(&mut stream)).await {
        let Some(query) = query? else { break };
        let Some(outcome) = shared.outcome(&query, Some(65_535)) else { break };
        let Some(reply) = shared.finish(outcome, &query, DnsTransport::Tcp).await else { break };
        timeout(WRITE, write_framed(&mut stream, &reply)).await.map_err(|_| io::ErrorKind::TimedOut)??;
        used();
    }
    Ok(())
}
