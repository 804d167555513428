//! DNS floods by a workload: mesh names are still answered.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent::dns::{ClientDomain, DnsOptions, DnsServer};
use agent::metrics::Metrics;
use api::nds::{NameInfo, NameTable};
use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpMaxSeg;
use testkit::process::cpu_of;
use testkit::wait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Timeout of the dead server: longer than the test, so that queries to it never complete.
const DEAD: Duration = Duration::from_secs(60);

/// CPU time of this process for a flood. The server runs in it, next to the flooding clients and other tests.
const MOST_CPU: Duration = Duration::from_secs(60);

/// Maximum wait of a well-behaved client. Responses take less than a millisecond on an idle machine.
const MAX_WAIT: Duration = Duration::from_secs(5);

struct Fixture {
    cpu: Duration,
    address: SocketAddr,
    metrics: Arc<Metrics>,
    _names: watch::Sender<Option<Arc<NameTable>>>,
    /// Never answers.
    _server: UdpSocket,
    _stop: DropGuard,
}

async fn start(addresses: usize) -> Fixture {
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let options = DnsOptions {
        address: (Ipv4Addr::LOCALHOST, 0).into(),
        client_domain: ClientDomain::new("shop", "shop.svc.cluster.local", None),
        servers: vec![server.local_addr().unwrap()],
        server_timeout: DEAD,
        parallel: false,
    };
    let ips = (0..addresses).map(|n| format!("10.0.{}.{}", n / 250, n % 250)).collect();
    let table = NameTable { table: [("cart.example".to_owned(), NameInfo { ips, ..NameInfo::default() })].into() };
    let (names, latest) = watch::channel(Some(Arc::new(table)));
    let metrics = Arc::new(Metrics::default());
    let dns = DnsServer::bind(options, latest, Arc::clone(&metrics)).await.unwrap();
    let (address, stop) = (dns.address().unwrap(), CancellationToken::new());
    tokio::spawn(dns.serve(stop.clone()));
    let fixture = Fixture { cpu: cpu(), address, metrics, _names: names, _server: server, _stop: stop.drop_guard() };
    wait::until("the name table", async || match over_udp(address).await {
        Some(answer) if answer.metadata.response_code == ResponseCode::NoError => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    fixture
}

fn cpu() -> Duration {
    cpu_of(std::process::id()).unwrap()
}

impl Fixture {
    fn assert_cheap(&self, attack: &str) {
        let spent = cpu() - self.cpu;
        eprintln!("{attack}: {spent:?} of CPU");
        assert!(spent < MOST_CPU, "{attack}: {spent:?} of CPU");
    }
}

fn query(name: &str) -> Vec<u8> {
    let mut query = Message::query();
    query.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    query.to_vec().unwrap()
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&u16::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
}

/// Queries the mesh name once; `None` if the query or the response was lost.
async fn over_udp(to: SocketAddr) -> Option<Message> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    socket.send_to(&query("cart.example."), to).await.unwrap();
    let mut buffer = [0; 4096];
    let length = timeout(Duration::from_secs(1), socket.recv(&mut buffer)).await.ok()?.unwrap();
    Some(Message::from_vec(&buffer[..length]).unwrap())
}

async fn over_tcp(to: SocketAddr) -> Result<usize, std::io::Error> {
    let mut stream = TcpStream::connect(to).await?;
    stream.write_all(&framed(&query("cart.example."))).await?;
    let mut length = [0; 2];
    stream.read_exact(&mut length).await?;
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut answer).await?;
    Ok(Message::from_vec(&answer).unwrap().answers.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_10_queries_to_a_dead_server_do_not_starve_mesh_names() {
    let fixture = start(1).await;
    let attacker = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    attacker.connect(fixture.address).await.unwrap();
    let sent: u64 = 1100;
    for n in 0..sent {
        attacker.send(&query(&format!("n{n}.nowhere.example."))).await.unwrap();
        // Not faster than the server reads them, so that none is lost in the socket buffer.
        wait::until("a query to be taken", async || {
            let metrics = &fixture.metrics;
            let taken = metrics.dns_upstream_requests.get() + metrics.dns_upstream_refused.get();
            if taken + 50 > n { Ok(()) } else { Err(format!("{taken} of {n}")) }
        })
        .await;
    }
    let start_time = Instant::now();
    let answer = over_udp(fixture.address).await;
    let waited = start_time.elapsed();
    let (forwarded, refused) =
        (fixture.metrics.dns_upstream_requests.get(), fixture.metrics.dns_upstream_refused.get());
    eprintln!("{forwarded} queries waiting, {refused} refused; a mesh name took {waited:?}");
    assert!(answer.is_some_and(|answer| answer.answers.len() == 1) && waited < MAX_WAIT, "{waited:?}");
    // A query above the limit is refused at once.
    let mut buffer = [0; 4096];
    let length = timeout(wait::PATIENCE, attacker.recv(&mut buffer)).await.expect("a refusal").unwrap();
    assert_eq!(Message::from_vec(&buffer[..length]).unwrap().metadata.response_code, ResponseCode::ServFail);
    assert!(refused > 0 && forwarded < sent);
    fixture.assert_cheap("queries to a dead server");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_10_clients_that_do_not_read_do_not_stop_dns_over_tcp() {
    let fixture = start(1000).await;
    let queries = framed(&query("cart.example.")).repeat(100);
    let mut attackers = Vec::new();
    for _ in 0..300 {
        let socket = TcpSocket::new_v4().unwrap();
        // Small segments and buffers: a few responses fill the kernel's buffers for a client that does not read.
        socket.set_recv_buffer_size(4096).unwrap();
        setsockopt(&socket, TcpMaxSeg, &536).unwrap();
        let mut stream = socket.connect(fixture.address).await.unwrap();
        // The server may have closed the connection already.
        let _ = stream.write_all(&queries).await;
        attackers.push(stream);
    }
    // Others connect and send nothing.
    for _ in 0..300 {
        attackers.push(TcpStream::connect(fixture.address).await.unwrap());
    }
    let start_time = Instant::now();
    let answer = timeout(MAX_WAIT, over_tcp(fixture.address)).await;
    eprintln!("{} connections that do not read; a well-behaved one took {:?}", attackers.len(), start_time.elapsed());
    assert_eq!(answer.expect("an answer in time").expect("an answer"), 1000);
    fixture.assert_cheap("clients that do not read");
}
