//! The DNS proxy, over UDP and TCP: answers mesh names from the control plane's name table and forwards all other
//! queries. iptables rules redirect the workload's queries to it.

mod answer;
mod forward;
pub mod resolv_conf;
mod table;
mod tcp;

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

use self::answer::{QueryOutcome, resolve, server_failure};
use self::forward::{DnsTransport, Forwarder};
pub use self::table::{ClientDomain, DnsTable};
use crate::metrics::Metrics;

/// Upstream's default address.
pub const ADDRESS: &str = "127.0.0.1:15053";

/// Maximum number of forwarded queries in flight. Each has its own socket. Queries above the limit get SERVFAIL at once;
/// mesh names are not affected.
const MAX_FORWARDED: usize = 512;

/// Options of the DNS proxy.
#[derive(Clone, Debug)]
pub struct DnsOptions {
    /// For both UDP and TCP. Port 0 picks one free port for both.
    pub address: SocketAddr,
    pub client_domain: ClientDomain,
    /// Servers for names that are not in the table.
    pub servers: Vec<SocketAddr>,
    pub server_timeout: Duration,
    pub parallel: bool,
}

/// The latest name table; `None` before the first.
pub type NameTableReceiver = watch::Receiver<Option<Arc<NameTable>>>;

/// The listening DNS proxy.
pub struct DnsServer {
    udp: Arc<UdpSocket>,
    tcp: TcpListener,
    shared: Arc<DnsState>,
    client_domain: ClientDomain,
    names: NameTableReceiver,
    table: watch::Sender<Option<Arc<DnsTable>>>,
}

struct DnsState {
    table: watch::Receiver<Option<Arc<DnsTable>>>,
    forwarder: Forwarder,
    forwarded: Semaphore,
    /// Queries are being refused; logged once when that starts.
    was_full: AtomicBool,
    metrics: Arc<Metrics>,
}

impl DnsServer {
    pub async fn bind(options: DnsOptions, names: NameTableReceiver, metrics: Arc<Metrics>) -> io::Result<DnsServer> {
        let tcp = TcpListener::bind(options.address).await?;
        let address = tcp.local_addr()?;
        let udp = Arc::new(UdpSocket::bind(address).await?);
        info!(%address, servers = ?options.servers, "serving DNS");
        let (table, latest) = watch::channel(None);
        let shared = DnsState {
            table: latest,
            forwarder: Forwarder {
                servers: options.servers,
                server_timeout: options.server_timeout,
                parallel: options.parallel,
            },
            forwarded: Semaphore::new(MAX_FORWARDED),
            was_full: AtomicBool::new(false),
            metrics,
        };
        Ok(DnsServer { udp, tcp, shared: Arc::new(shared), client_domain: options.client_domain, names, table })
    }

    /// The bound address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Serves until cancelled.
    pub async fn serve(self, stop: CancellationToken) {
        let DnsServer { udp, tcp, shared, client_domain, names, table } = self;
        tokio::select! {
            () = stop.cancelled() => {}
            () = rebuild_tables(names, &client_domain, &table) => {}
            () = serve_udp(&udp, &shared) => {}
            () = tcp::serve(&tcp, &shared) => {}
        }
    }
}

/// Rebuilds the lookup table for every name table received.
async fn rebuild_tables(
    mut names: NameTableReceiver,
    client_domain: &ClientDomain,
    table: &watch::Sender<Option<Arc<DnsTable>>>,
) {
    loop {
        let newest = names.borrow_and_update().clone();
        if let Some(newest) = newest {
            let made = DnsTable::new(&newest, client_domain);
            debug!(names = made.len(), "DNS table updated");
            table.send_replace(Some(Arc::new(made)));
        }
        if names.changed().await.is_err() {
            // The sender is gone; the last table stays.
            std::future::pending::<()>().await;
        }
    }
}

async fn serve_udp(socket: &Arc<UdpSocket>, shared: &Arc<DnsState>) {
    let mut tasks = JoinSet::new();
    // Larger than any query.
    let mut buffer = [0; 4096];
    loop {
        while tasks.try_join_next().is_some() {}
        let (length, client) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                // For example an ICMP error caused by an earlier response.
                debug!(%error, "could not receive a DNS query");
                continue;
            }
        };
        let query = &buffer[..length];
        let immediate = match shared.outcome(query, None) {
            None | Some(QueryOutcome::Drop) => continue,
            Some(QueryOutcome::Answer(reply)) => Some(reply),
            // No task for refused queries: it would be the unbounded queue that the limit prevents.
            Some(QueryOutcome::Forward) if shared.forwarded.available_permits() == 0 => shared.refuse(query),
            Some(QueryOutcome::Forward) => {
                let (socket, shared, query) = (Arc::clone(socket), Arc::clone(shared), query.to_vec());
                tasks.spawn(async move {
                    if let Some(reply) = shared.forward(&query, DnsTransport::Udp).await {
                        let _ = socket.send_to(&reply, client).await;
                    }
                });
                None
            }
        };
        if let Some(reply) = immediate {
            let _ = socket.send_to(&reply, client).await;
        }
    }
}

/// The response to a query from a table. `None` if the query is forwarded to another server, or is none.
pub fn answer(query: &[u8], table: Option<&DnsTable>) -> Option<Vec<u8>> {
    match resolve(query, table, None) {
        QueryOutcome::Answer(reply) => Some(reply),
        QueryOutcome::Forward | QueryOutcome::Drop => None,
    }
}

impl DnsState {
    fn outcome(&self, query: &[u8], limit: Option<usize>) -> Option<QueryOutcome> {
        self.metrics.dns_requests.add();
        let table = self.table.borrow().clone();
        match resolve(query, table.as_deref(), limit) {
            QueryOutcome::Drop => None,
            outcome => Some(outcome),
        }
    }

    async fn finish(&self, outcome: QueryOutcome, query: &[u8], transport: DnsTransport) -> Option<Vec<u8>> {
        match outcome {
            QueryOutcome::Answer(reply) => Some(reply),
            QueryOutcome::Drop => None,
            QueryOutcome::Forward => self.forward(query, transport).await,
        }
    }

    /// The response of a server, or SERVFAIL.
    async fn forward(&self, query: &[u8], transport: DnsTransport) -> Option<Vec<u8>> {
        let Ok(_permit) = self.forwarded.try_acquire() else { return self.refuse(query) };
        if self.forwarded.available_permits() > MAX_FORWARDED / 2 {
            self.was_full.store(false, Ordering::Relaxed);
        }
        self.metrics.dns_upstream_requests.add();
        let start_time = Instant::now();
        let answer = self.forwarder.query(query, transport).await;
        self.metrics.dns_upstream_duration.observe(start_time.elapsed());
        if answer.is_none() {
            self.metrics.dns_upstream_failures.add();
        }
        answer.or_else(|| server_failure(query))
    }

    /// SERVFAIL for a query above the limit.
    fn refuse(&self, query: &[u8]) -> Option<Vec<u8>> {
        self.metrics.dns_upstream_refused.add();
        if !self.was_full.swap(true, Ordering::Relaxed) {
            warn!(
                waiting = MAX_FORWARDED,
                servers = ?self.forwarder.servers,
                "too many forwarded DNS queries are in flight; answering further ones with SERVFAIL"
            );
        }
        server_failure(query)
    }
}
