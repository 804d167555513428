//! `/api/v1` under load: ten thousand real streams in its lists, a thousand event streams.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use http::{Method, Request};
use testkit::client;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::wait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tonic::transport::Endpoint;
use xds::client::SotwClient;

const PROXIES: usize = 10_000;
/// Streams share connections: each connection is a file of both processes.
const PER_CONNECTION: usize = 50;
/// The most event streams; the oldest is closed for a new one.
const STREAMS: usize = 1000;
const PATIENCE: Duration = Duration::from_secs(60);
/// Memory that the allocator may keep of lists of some megabytes each.
const MOST_KIB: u64 = 64 * 1024;
/// Until a thousand readers have an event, in a debug build on a busy machine.
const MOST_DELAY: Duration = Duration::from_secs(5);

async fn start() -> DiscoveryProcess {
    DiscoveryProcess::start(env!("CARGO_BIN_EXE_pilot-discovery"), DiscoveryOptions::default()).await
}

/// Keeps streams that ask for clusters open, and answers them.
async fn connect(server: SocketAddr, from: usize) {
    // Clients of one address share a budget of memory, so each connection has its own address, as machines have.
    let own = Ipv4Addr::LOCALHOST.to_bits() + u32::try_from(from / PER_CONNECTION).unwrap() + 1;
    let endpoint = Endpoint::from_shared(format!("http://{server}")).unwrap();
    let endpoint = endpoint.local_address(Some(IpAddr::V4(Ipv4Addr::from_bits(own))));
    let channel = endpoint.connect().await.unwrap();
    let mut streams = JoinSet::new();
    for number in from..from + PER_CONNECTION {
        let channel = channel.clone();
        streams.spawn(async move {
            let [high, low] = [number / 250, number % 250 + 1];
            let id = format!(
                "sidecar~10.{}.{}.{low}~p{number}.ns{}~ns.svc.cluster.local",
                high / 250,
                high % 250,
                number % 20
            );
            let node = Node { id, ..Node::default() };
            let mut client = SotwClient::open(channel, node, &TypeUrl::CLUSTER, &[]).await.unwrap();
            while let Ok(Some(response)) = client.next().await {
                client.ack(&response);
            }
        });
    }
    streams.join_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_proxies_are_listed() {
    let mut server = start().await;
    let empty = server.process().owned_kib().unwrap();
    let mut connections = JoinSet::new();
    for from in (0..PROXIES).step_by(PER_CONNECTION) {
        connections.spawn(connect(server.grpc(), from));
    }
    let address = server.monitoring();
    let get = async |path: &str| client::get(address, "localhost", path).await;
    wait::until_within(PATIENCE, "ten thousand synced proxies", async || {
        let listed = get("/api/v1/proxies?state=synced&limit=1").await?.json();
        if listed["total"] == PROXIES { Ok(()) } else { Err(listed["total"].to_string()) }
    })
    .await;
    let connected = server.process().owned_kib().unwrap();
    // The floor of this machine and build: a page that lists nothing.
    let mut plain = Duration::MAX;
    let mut whole = Duration::MAX;
    for _ in 0..5 {
        let begun = Instant::now();
        get("/api/v1/status").await.unwrap();
        plain = plain.min(begun.elapsed());
        let begun = Instant::now();
        let listed = get("/api/v1/proxies").await.unwrap();
        whole = whole.min(begun.elapsed());
        assert_eq!(listed.json()["proxies"].as_array().map(Vec::len), Some(PROXIES));
    }
    let page = get("/api/v1/proxies?name=p777&limit=3&offset=2").await.unwrap().json();
    assert_eq!((&page["total"], page["proxies"].as_array().map(Vec::len)), (&11.into(), Some(3)), "{page}");
    let listed = server.process().owned_kib().unwrap();
    println!("10,000 proxies: listed in {whole:?}, status in {plain:?}");
    println!("RssAnon: {empty} KiB, {connected} KiB with 10,000 proxies, {listed} KiB after five lists");
    assert!(listed.saturating_sub(connected) < MOST_KIB, "lists keep {} KiB", listed.saturating_sub(connected));
    let most = Duration::from_secs(1) + plain * 20;
    assert!(whole < most, "{whole:?}; status took {plain:?}");
    connections.abort_all();
}

/// Reads until a text has come; an error if the stream ended before.
async fn read_until(stream: &mut TcpStream, text: &str) -> Result<(), String> {
    let (mut seen, mut part) = (String::new(), [0; 4096]);
    while !seen.contains(text) {
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut part)).await.map_err(|_| "nothing came")?;
        match read {
            Ok(read) if read > 0 => seen += &String::from_utf8_lossy(&part[..read]),
            _ => return Err(format!("the stream ended after {seen:?}")),
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_event_streams_hear_of_a_change_and_the_oldest_makes_room() {
    let server = start().await;
    let mut streams = Vec::new();
    for _ in 0..=STREAMS {
        let mut stream = TcpStream::connect(server.monitoring()).await.unwrap();
        stream.write_all(b"GET /api/v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        read_until(&mut stream, "text/event-stream").await.unwrap();
        streams.push(stream);
    }
    let object = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: new, namespace: shop}\nspec: {hosts: \
                  [new.example.com], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}\n";
    server.write("new.yaml", object);
    let begun = Instant::now();
    let mut oldest = streams.remove(0);
    for stream in &mut streams {
        read_until(stream, "event: change").await.unwrap();
    }
    let took = begun.elapsed();
    println!("{} readers have the event after {took:?}", streams.len());
    assert!(took < MOST_DELAY, "{took:?}");
    assert!(read_until(&mut oldest, "event: change").await.is_err(), "the oldest of too many streams is closed");
    println!("the oldest is closed after {:?}", begun.elapsed());
    // Others are served meanwhile.
    let request = Request::builder().method(Method::GET).uri("/api/v1/status").header("host", "localhost");
    let reply = client::send(server.monitoring(), request.body(String::new()).unwrap()).await.unwrap();
    assert!(reply.status.is_success());
}
