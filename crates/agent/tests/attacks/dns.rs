//! A workload that asks too much: names of the mesh are answered all the while.

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
use testkit::wait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

/// How long the dead server is waited for: longer than the whole test, so that what waits for it never comes.
const DEAD: Duration = Duration::from_secs(60);

/// What an honest client waits at most. Answers take less than a millisecond on a quiet machine.
const HONEST: Duration = Duration::from_secs(5);

struct Fixture {
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
    let fixture = Fixture { address, metrics, _names: names, _server: server, _stop: stop.drop_guard() };
    wait::until("the name table", async || match over_udp(address).await {
        Some(answer) if answer.metadata.response_code == ResponseCode::NoError => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    fixture
}

fn query(name: &str) -> Vec<u8> {
    let mut query = Message::query();
    query.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    query.to_vec().unwrap()
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&u16::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
}

/// Asks for the mesh's name once; None when the query or its answer was lost.
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
async fn hole_10_queries_for_a_dead_server_do_not_starve_names_of_the_mesh() {
    let fixture = start(1).await;
    let attacker = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    attacker.connect(fixture.address).await.unwrap();
    let sent: u64 = 1100;
    for n in 0..sent {
        attacker.send(&query(&format!("n{n}.nowhere.example."))).await.unwrap();
        // Sent no faster than they are taken from the socket, so that none is lost there.
        wait::until("a query to be taken", async || {
            let metrics = &fixture.metrics;
            let taken = metrics.dns_upstream_requests.get() + metrics.dns_upstream_refused.get();
            if taken + 50 > n { Ok(()) } else { Err(format!("{taken} of {n}")) }
        })
        .await;
    }
    let begun = Instant::now();
    let answer = over_udp(fixture.address).await;
    let waited = begun.elapsed();
    let (forwarded, refused) =
        (fixture.metrics.dns_upstream_requests.get(), fixture.metrics.dns_upstream_refused.get());
    eprintln!("{forwarded} queries wait, {refused} were refused; a name of the mesh took {waited:?}");
    assert!(answer.is_some_and(|answer| answer.answers.len() == 1) && waited < HONEST, "{waited:?}");
    // A query beyond the limit is refused at once.
    let mut buffer = [0; 4096];
    let length = timeout(wait::PATIENCE, attacker.recv(&mut buffer)).await.expect("a refusal").unwrap();
    assert_eq!(Message::from_vec(&buffer[..length]).unwrap().metadata.response_code, ResponseCode::ServFail);
    assert!(refused > 0 && forwarded < sent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_10_clients_that_do_not_read_do_not_stop_dns_over_tcp() {
    let fixture = start(1000).await;
    let questions = framed(&query("cart.example.")).repeat(100);
    let mut attackers = Vec::new();
    for _ in 0..300 {
        let socket = TcpSocket::new_v4().unwrap();
        // Small segments and buffers: a few answers fill what the kernel holds for a client that does not read.
        socket.set_recv_buffer_size(4096).unwrap();
        setsockopt(&socket, TcpMaxSeg, &536).unwrap();
        let mut stream = socket.connect(fixture.address).await.unwrap();
        // One that had to make room is closed already.
        let _ = stream.write_all(&questions).await;
        attackers.push(stream);
    }
    // Others connect and say nothing.
    for _ in 0..300 {
        attackers.push(TcpStream::connect(fixture.address).await.unwrap());
    }
    let begun = Instant::now();
    let answer = timeout(HONEST, over_tcp(fixture.address)).await;
    eprintln!("{} connections that do not read; an honest one took {:?}", attackers.len(), begun.elapsed());
    assert_eq!(answer.expect("an answer in time").expect("an answer"), 1000);
}
