//! The DNS proxy: answers for names of the mesh from the name table the control plane sends, over UDP and
//! TCP; forwards everything else. iptables lead the workload's queries here.

mod answer;
mod forward;
pub mod resolv;
mod table;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::nds::NameTable;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use self::answer::{Verdict, judge, server_failure};
use self::forward::{Forwarder, Transport, read_framed, write_framed};
pub use self::table::{Place, Table};
use crate::metrics::Metrics;

/// Upstream's address.
pub const ADDRESS: &str = "127.0.0.1:15053";

/// Queries under way at once; more wait in the socket's buffer, and beyond that are lost, as DNS may be.
const MAX_QUERIES: usize = 1024;

/// TCP clients at once, counted apart: they may be idle.
const MAX_CONNECTIONS: usize = 256;

/// A TCP client that says nothing for so long is done.
const IDLE: Duration = Duration::from_secs(10);

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
    queries: Arc<Semaphore>,
    connections: Arc<Semaphore>,
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
            queries: Arc::new(Semaphore::new(MAX_QUERIES)),
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
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
            () = serve_tcp(&tcp, &shared) => {}
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
        let Ok(permit) = Arc::clone(&shared.queries).acquire_owned().await else { return };
        let (length, client) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                // Such as the ICMP answer to an earlier reply whose client is gone.
                debug!(%error, "could not receive a DNS query");
                continue;
            }
        };
        let query = &buffer[..length];
        let Some(verdict) = shared.verdict(query, None) else { continue };
        let (socket, shared, query) = (Arc::clone(socket), Arc::clone(shared), query.to_vec());
        tasks.spawn(async move {
            if let Some(reply) = shared.settle(verdict, &query, Transport::Udp).await {
                let _ = socket.send_to(&reply, client).await;
            }
            drop(permit);
        });
    }
}

async fn serve_tcp(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut tasks = JoinSet::new();
    loop {
        while tasks.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&shared.connections).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let shared = Arc::clone(shared);
                tasks.spawn(async move {
                    if let Err(error) = converse(stream, &shared).await {
                        debug!(%error, "DNS connection ended");
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                debug!(%error, "could not accept a DNS connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn converse(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    while let Ok(query) = timeout(IDLE, read_framed(&mut stream)).await {
        let Some(query) = query? else { break };
        let Some(verdict) = shared.verdict(&query, Some(65_535)) else { break };
        let Some(reply) = shared.settle(verdict, &query, Transport::Tcp).await else { break };
        write_framed(&mut stream, &reply).await?;
    }
    Ok(())
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
            Verdict::Forward => {
                self.metrics.dns_upstream_requests.add();
                let began = Instant::now();
                let answer = self.forwarder.ask(query, transport).await;
                self.metrics.dns_upstream_duration.observe(began.elapsed());
                if answer.is_none() {
                    self.metrics.dns_upstream_failures.add();
                }
                answer.or_else(|| server_failure(query))
            }
        }
    }
}
