//! DNS over TCP: one query at a time on each connection. Clients that do not speak or do not read cost a connection
//! for a short time only, and where there are too many the one that has been quiet longest makes room for the next.

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

/// Connections at once. A workload asks over TCP only for answers that are too long for UDP.
const MAX_CONNECTIONS: usize = 256;

/// A connection without a whole query for so long is closed.
const IDLE: Duration = Duration::from_secs(10);

/// An answer is at most 64 KiB and the client is on this machine: one that has not read it by then does not read.
const WRITE: Duration = Duration::from_secs(2);

/// Serves clients for as long as it is polled.
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

/// Connections that are open, each with the step at which it was last of use.
#[derive(Default)]
struct OpenConnections {
    tasks: JoinSet<()>,
    last_used: BTreeMap<Id, (Arc<AtomicU64>, AbortHandle)>,
    /// Counts queries and connections: the order in which connections were last of use.
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
            warn!(
                connections = MAX_CONNECTIONS,
                "too many DNS connections over TCP; closing those without a query for longest"
            );
        }
    }
}

/// Answers one query after the other; `used` is called after each answer.
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
