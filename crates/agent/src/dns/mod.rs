//! The DNS proxy: answers for names of the mesh from the name table the control plane sends, over UDP and
//! TCP; forwards everything else. iptables lead the workload's queries here.

mod answer;
mod connections;
mod forward;
pub mod resolv;
mod table;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use api::nds::NameTable;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::answer::{Verdict, judge, server_failure};
use self::forward::{Forwarder, Transport};
pub use self::table::{Place, Table};
use crate::metrics::Metrics;

/// Upstream's address.
pub const ADDRESS: &str = "127.0.0.1:15053";

/// Queries that wait for other servers at once. Each has a socket of its own, and may wait for as long as all servers
/// together; a query beyond this is answered with SERVFAIL at once. Names of the mesh never wait behind them.
const MAX_FORWARDED: usize = 512;

/// How to serve.
#[derive(Clone, Debug)]
pub struct Options {
    /// Both UDP and TCP. Port 0 for any, the same for both.
    pub address: SocketAddr,
    pub place: Place,
    /// Servers for names the mesh does not know.
    pub servers: Vec<SocketAddr>,
    pub patience: Duration,
    pub parallel: bool,
}

/// The newest name table; None until the first.
pub type Names = watch::Receiver<Option<Arc<NameTable>>>;

/// The open sockets.
pub struct Server {
    udp: Arc<UdpSocket>,
    tcp: TcpListener,
    shared: Arc<Shared>,
    place: Place,
    names: Names,
    table: watch::Sender<Option<Arc<Table>>>,
}

struct Shared {
    table: watch::Receiver<Option<Arc<Table>>>,
    forwarder: Forwarder,
    forwarded: Semaphore,
    /// Queries were refused because too many wait; logged when that begins.
    was_full: AtomicBool,
    metrics: Arc<Metrics>,
}

impl Server {
    pub async fn bind(options: Options, names: Names, metrics: Arc<Metrics>) -> io::Result<Server> {
        let tcp = TcpListener::bind(options.address).await?;
        let address = tcp.local_addr()?;
        let udp = Arc::new(UdpSocket::bind(address).await?);
        info!(%address, servers = ?options.servers, "answering DNS");
        let (table, latest) = watch::channel(None);
        let shared = Shared {
            table: latest,
            forwarder: Forwarder { servers: options.servers, patience: options.patience, parallel: options.parallel },
            forwarded: Semaphore::new(MAX_FORWARDED),
            was_full: AtomicBool::new(false),
            metrics,
        };
        Ok(Server { udp, tcp, shared: Arc::new(shared), place: options.place, names, table })
    }

    /// The address really bound.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Serves until cancelled.
    pub async fn serve(self, stop: CancellationToken) {
        let Server { udp, tcp, shared, place, names, table } = self;
        tokio::select! {
            () = stop.cancelled() => {}
            () = follow(names, &place, &table) => {}
            () = serve_udp(&udp, &shared) => {}
            () = connections::serve(&tcp, &shared) => {}
        }
    }
}

/// Makes a lookup table of every name table that comes.
async fn follow(mut names: Names, place: &Place, table: &watch::Sender<Option<Arc<Table>>>) {
    loop {
        let newest = names.borrow_and_update().clone();
        if let Some(newest) = newest {
            let made = Table::new(&newest, place);
            debug!(names = made.len(), "new DNS table");
            table.send_replace(Some(Arc::new(made)));
        }
        if names.changed().await.is_err() {
            // Nobody sends tables any more; the last one stays.
            std::future::pending::<()>().await;
        }
    }
}

async fn serve_udp(socket: &Arc<UdpSocket>, shared: &Arc<Shared>) {
    let mut tasks = JoinSet::new();
    // Queries are small; what is longer than this is none.
    let mut buffer = [0; 4096];
    loop {
        while tasks.try_join_next().is_some() {}
        let (length, client) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                // Such as the ICMP answer to an earlier reply whose client is gone.
                debug!(%error, "could not receive a DNS query");
                continue;
            }
        };
        let query = &buffer[..length];
        let at_once = match shared.verdict(query, None) {
            None | Some(Verdict::Drop) => continue,
            Some(Verdict::Answer(reply)) => Some(reply),
            // A task for each query that is refused would be the queue that the limit forbids.
            Some(Verdict::Forward) if shared.forwarded.available_permits() == 0 => shared.refuse(query),
            Some(Verdict::Forward) => {
                let (socket, shared, query) = (Arc::clone(socket), Arc::clone(shared), query.to_vec());
                tasks.spawn(async move {
                    if let Some(reply) = shared.forward(&query, Transport::Udp).await {
                        let _ = socket.send_to(&reply, client).await;
                    }
                });
                None
            }
        };
        if let Some(reply) = at_once {
            let _ = socket.send_to(&reply, client).await;
        }
    }
}

impl Shared {
    fn verdict(&self, query: &[u8], limit: Option<usize>) -> Option<Verdict> {
        self.metrics.dns_requests.add();
        let table = self.table.borrow().clone();
        match judge(query, table.as_deref(), limit) {
            Verdict::Drop => None,
            verdict => Some(verdict),
        }
    }

    async fn settle(&self, verdict: Verdict, query: &[u8], transport: Transport) -> Option<Vec<u8>> {
        match verdict {
            Verdict::Answer(reply) => Some(reply),
            Verdict::Drop => None,
            Verdict::Forward => self.forward(query, transport).await,
        }
    }

    /// The answer of another server, or SERVFAIL.
    async fn forward(&self, query: &[u8], transport: Transport) -> Option<Vec<u8>> {
        let Ok(_permit) = self.forwarded.try_acquire() else { return self.refuse(query) };
        if self.forwarded.available_permits() > MAX_FORWARDED / 2 {
            self.was_full.store(false, Ordering::Relaxed);
        }
        self.metrics.dns_upstream_requests.add();
        let began = Instant::now();
        let answer = self.forwarder.ask(query, transport).await;
        self.metrics.dns_upstream_duration.observe(began.elapsed());
        if answer.is_none() {
            self.metrics.dns_upstream_failures.add();
        }
        answer.or_else(|| server_failure(query))
    }

    /// SERVFAIL to a query beyond the limit.
    fn refuse(&self, query: &[u8]) -> Option<Vec<u8>> {
        self.metrics.dns_upstream_refused.add();
        if !self.was_full.swap(true, Ordering::Relaxed) {
            warn!(
                waiting = MAX_FORWARDED,
                servers = ?self.forwarder.servers,
                "too many DNS queries wait for other servers; answering further ones with SERVFAIL"
            );
        }
        server_failure(query)
    }
}
