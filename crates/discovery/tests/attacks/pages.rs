//! Hostile readers of pages: cross-site requests of browsers, slow readers, and more debug pages at once than fit into
//! memory.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use http::Request;
use testkit::client::{self, Reply};
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;
use xds::client::SotwClient;

use crate::honest::{CART, Honest, ask, channel, server};

/// CPU time of a debug build for a request of thousands of pages.
const MOST_CPU: Duration = Duration::from_secs(20);
const ID: &str = "sidecar~10.0.0.1~reader.other~other.svc.cluster.local";

async fn ask_for(port: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)]) -> Reply {
    let request = Request::builder().method(method).uri(path);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    client::send(port, request.body(String::new()).unwrap()).await.unwrap()
}

#[tokio::test]
async fn hole_12_other_web_sites_cannot_read_debug_pages() {
    let server = server(&["--debugHosts=pilot.example.com"], &[]).await;
    let own = format!("127.0.0.1:{}", server.http().port());
    for port in [server.http(), server.monitoring()] {
        let status =
            async |headers: &[(&str, &str)]| ask_for(port, "GET", "/debug/mesh", headers).await.status.as_u16();
        assert_eq!(status(&[("host", &own)]).await, 200);
        assert_eq!(status(&[("host", "pilot.example.com")]).await, 200, "as the operator says");
        assert_eq!(status(&[("host", "istiod.istio-system.svc:15014")]).await, 200);
        assert_eq!(status(&[("host", "rebound.example.com")]).await, 403);
        assert_eq!(status(&[("host", &own), ("sec-fetch-site", "cross-site")]).await, 403);
        assert_eq!(status(&[("host", &own), ("origin", "https://evil.example")]).await, 403);
        // Probes may use any host name.
        assert_eq!(ask_for(port, "GET", "/ready", &[("host", "rebound.example.com")]).await.status, 200);
    }
    let foreign = [("host", "rebound.example.com")];
    assert_eq!(ask_for(server.http(), "GET", "/v1/registration", &foreign).await.status, 403);
    let page = ask_for(server.http(), "GET", "/debug", &[("host", &own)]).await;
    assert_eq!((page.status.as_u16(), page.header("x-content-type-options")), (200, "nosniff"));
    assert!(page.header("content-security-policy").contains("frame-ancestors 'none'"));
    assert_eq!(page.header("cross-origin-resource-policy"), "same-origin");
}

#[tokio::test]
async fn hole_12_a_push_needs_a_post_of_the_same_site() {
    let server = server(&[], &[]).await;
    let own = format!("127.0.0.1:{}", server.http().port());
    let push = async |method: &str, more: &[(&str, &str)]| {
        ask_for(server.http(), method, "/debug/adsz?push=true", &[&[("host", own.as_str())], more].concat()).await
    };
    let refused = push("GET", &[]).await;
    assert_eq!((refused.status.as_u16(), refused.header("allow")), (405, "POST"));
    assert_eq!(push("POST", &[("origin", "https://evil.example")]).await.status, 403);
    assert_eq!(push("POST", &[("sec-fetch-site", "cross-site")]).await.status, 403);
    let pushed = push("POST", &[]).await;
    assert!(pushed.status.is_success() && pushed.body.starts_with("Pushed to"), "{pushed:?}");
}

/// A service with as many endpoints on ten ports.
fn endpoints(count: usize) -> String {
    let mut text =
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: big, namespace: shop}\nspec:\n  \
        hosts: [big.shop.svc.cluster.local]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  ports:\n"
            .to_owned();
    for port in 0..10 {
        let _ = writeln!(text, "  - {{name: tcp-{port}, number: {}, protocol: TCP}}", 9000 + port);
    }
    text.push_str("  endpoints:\n");
    for i in 0..count {
        let _ = writeln!(text, "  - {{address: 10.1.{}.{}}}", i / 250, i % 250);
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_12_a_hundred_slow_readers_share_one_page() {
    let files = vec![("cart.yaml".to_owned(), CART.to_owned()), ("big.yaml".to_owned(), endpoints(5_000))];
    let mut server = DiscoveryProcess::start(
        env!("CARGO_BIN_EXE_pilot-discovery"),
        DiscoveryOptions { files, ..DiscoveryOptions::default() },
    )
    .await;
    let page = client::get(server.http(), "discovery", "/v1/registration").await.unwrap();
    assert!(page.body.len() > 1 << 20, "a page of {} bytes", page.body.len());
    let memory = |server: &mut DiscoveryProcess| server.process().memory_kib().expect("a running process") / 1024;
    let (before, honest) = (memory(&mut server), Honest::start(&server).await);
    let mut readers = Vec::new();
    for _ in 0..100 {
        let mut socket = TcpStream::connect(server.http()).await.unwrap();
        socket.write_all(b"GET /v1/registration HTTP/1.1\r\nhost: discovery\r\n\r\n").await.unwrap();
        // The response has started.
        socket.read_exact(&mut [0; 8]).await.unwrap();
        readers.push(socket);
    }
    let after = memory(&mut server);
    eprintln!("100 slow readers of {} bytes: {before} MiB before, {after} MiB after", page.body.len());
    assert!(after < before + 100, "{before} MiB before, {after} MiB after");
    assert_eq!(client::get(server.http(), "discovery", "/v1/registration").await.unwrap().body, page.body);
    honest.assert_served("slow readers of a page").await;
    drop(readers);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_15_debug_pages_of_one_request_are_bounded() {
    let files = vec![("cart.yaml".to_owned(), CART.to_owned()), ("big.yaml".to_owned(), endpoints(100))];
    let mut server = DiscoveryProcess::start(
        env!("CARGO_BIN_EXE_pilot-discovery"),
        DiscoveryOptions { files, ..DiscoveryOptions::default() },
    )
    .await;
    ask(channel(&server).await).await.unwrap();
    let memory = |server: &mut DiscoveryProcess| server.process().memory_kib().expect("a running process") / 1024;
    let (before, cpu) = (memory(&mut server), server.process().cpu().expect("a running process"));
    let node = || Node { id: ID.to_owned(), ..Node::default() };
    let names: Vec<String> = (0..3_000).map(|i| format!("endpointz?number={i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut greedy = SotwClient::open(channel(&server).await, node(), &TypeUrl::DEBUG, &names).await.unwrap();
    let status = greedy.next().await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    let mut modest = SotwClient::open(channel(&server).await, node(), &TypeUrl::DEBUG, &names[..8]).await.unwrap();
    let answer = modest.next().await.unwrap().unwrap();
    assert_eq!(answer.resources.len(), 8);
    let after = memory(&mut server);
    let spent = server.process().cpu().expect("a running process") - cpu;
    eprintln!("3,000 debug pages in one request: {before} MiB before, {after} MiB after, {spent:?} of CPU");
    assert!(spent < MOST_CPU, "{spent:?} of CPU");
    assert!(after < before + 100, "{before} MiB before, {after} MiB after");
}
