//! Clients that try to block others: expensive requests, endless requests, millions of names, and idle connections.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use api::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::StreamExt;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::{client, wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::{Code, Status};
use xds::client::{DeltaClient, SotwClient};

use crate::honest::{CART, Honest, ask, channel, server};

const ID: &str = "sidecar~10.0.0.1~attacker.other~other.svc.cluster.local";

fn node() -> Node {
    Node { id: ID.to_owned(), ..Node::default() }
}

fn cpu(server: &mut DiscoveryProcess) -> Duration {
    server.process().cpu().expect("a running process")
}

fn memory_mib(server: &mut DiscoveryProcess) -> u64 {
    server.process().memory_kib().expect("a running process") / 1024
}

/// The status with which the server ends a delta stream that sends this.
async fn end_of(server: &DiscoveryProcess, requests: Vec<DeltaDiscoveryRequest>) -> Option<Status> {
    let mut stream =
        DeltaClient::open(channel(server).await, node(), Default::default(), &TypeUrl::CLUSTER, &[]).await.unwrap();
    stream.next().await.unwrap();
    requests.into_iter().for_each(|request| stream.send(request));
    let end = async {
        loop {
            match stream.next().await {
                Ok(Some(response)) => stream.ack(&response),
                Ok(None) => return None,
                Err(status) => return Some(status),
            }
        }
    };
    tokio::time::timeout(wait::PATIENCE, end).await.expect("an end of the stream")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_05_a_request_with_two_million_names_delays_no_client() {
    let mut server = server(&[], &[]).await;
    ask(channel(&server).await).await.unwrap();
    let (honest, before) = (Honest::start(&server).await, cpu(&mut server));
    let request = DeltaDiscoveryRequest {
        type_url: TypeUrl::ROUTE.to_string(),
        resource_names_subscribe: (0..49_000).map(|i| format!("outbound|80||s{i}")).collect(),
        resource_names_unsubscribe: vec![String::new(); 1_900_000],
        ..Default::default()
    };
    let status = end_of(&server, vec![request]).await.expect("a status");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    let ready = client::get(server.http(), "discovery", "/ready").await.unwrap();
    assert!(ready.status.is_success());
    let spent = cpu(&mut server) - before;
    eprintln!("two million names: {spent:?} of CPU");
    assert!(spent < Duration::from_secs(20), "{spent:?}");
    honest.assert_served("two million names").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_05_a_nack_of_four_megabytes_is_cut_before_it_is_searched() {
    let mut server = server(&[], &[]).await;
    let honest = Honest::start(&server).await;
    let mut stream = SotwClient::open(channel(&server).await, node(), &TypeUrl::CLUSTER, &[]).await.unwrap();
    let response = stream.next().await.unwrap().unwrap();
    let before = cpu(&mut server);
    stream.nack(&response, &"'10.0.0.9', \"cart.shop\", ".repeat(150_000));
    // The response to another request comes after the NACK was processed.
    stream.subscribe(&TypeUrl::LISTENER, &[]);
    let listeners = async {
        while let Some(response) = stream.next().await.unwrap() {
            if response.type_url == TypeUrl::LISTENER.as_str() {
                return;
            }
            stream.ack(&response);
        }
    };
    tokio::time::timeout(wait::PATIENCE, listeners).await.expect("listeners");
    let spent = cpu(&mut server) - before;
    let longest = server.process().output().lines().map(str::len).max().unwrap_or_default();
    eprintln!("a NACK of 3.6 MB: {spent:?} of CPU, a log line of {longest} bytes");
    assert!(spent < Duration::from_secs(15), "{spent:?}");
    assert!(longest < 64 << 10, "a log line of {longest} bytes");
    honest.assert_served("a long NACK").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_05_names_are_bounded_over_all_types() {
    let mut server = server(&[], &[]).await;
    ask(channel(&server).await).await.unwrap();
    let (honest, before) = (Honest::start(&server).await, memory_mib(&mut server));
    let request = |kind: usize| DeltaDiscoveryRequest {
        type_url: format!("example.com/v1/Kind{kind}"),
        resource_names_subscribe: (0..900).map(|i| format!("{i}-{}", "x".repeat(4_000))).collect(),
        ..Default::default()
    };
    let status = end_of(&server, (0..20).map(request).collect()).await.expect("a status");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    let after = memory_mib(&mut server);
    eprintln!("20 types of 3.6 MB of names each: {before} MiB before, {after} MiB after");
    assert!(after < before + 64, "{before} MiB before, {after} MiB after");
    honest.assert_served("names of many types").await;
}

/// Opens streams over one connection that each send a part of a large message and stay open.
async fn unfinished(address: SocketAddr, streams: usize, bytes: usize) -> Vec<tokio::task::JoinHandle<()>> {
    let socket = TcpStream::connect(address).await.unwrap();
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.unwrap();
    let driver = tokio::spawn(async move { drop(connection.await) });
    let open = |_| {
        let mut sender = sender.clone();
        tokio::spawn(async move {
            let mut head = BytesMut::new();
            head.put_u8(0);
            head.put_u32(4 << 20);
            let piece = Bytes::from(vec![0; 16 << 10]);
            let pieces = std::iter::once(head.freeze()).chain(std::iter::repeat_n(piece, bytes >> 14));
            let frames = pieces.map(|piece| Ok::<_, Infallible>(Frame::data(piece)));
            let body = StreamBody::new(futures_util::stream::iter(frames).chain(futures_util::stream::pending()));
            let path = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
            let request = Request::post(format!("http://{address}{path}")).header("content-type", "application/grpc");
            let response: Result<Response<Incoming>, _> = sender.send_request(request.body(body).unwrap()).await;
            // Until the server ends the stream.
            if let Ok(response) = response {
                let _ = http_body_util::BodyExt::collect(response.into_body()).await;
            }
        })
    };
    (0..streams).map(open).chain([driver]).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_05_unfinished_messages_need_bounded_memory() {
    let mut server = server(&["--maxClientMemoryPerAddress=32"], &[]).await;
    ask(channel(&server).await).await.unwrap();
    let (before, honest) = (memory_mib(&mut server), Honest::start(&server).await);
    let mut tasks = Vec::new();
    for _ in 0..4 {
        tasks.extend(unfinished(server.grpc(), 25, (4 << 20) - (16 << 10)).await);
    }
    // The budget is used up when the first streams are refused.
    wait::until("a refused stream", async || {
        let page = client::get(server.monitoring(), "pilot", "/metrics").await?;
        let refused =
            page.body.lines().find(|line| line.starts_with("pilotage_refused_streams{type=\"ResourceExhausted\"}"));
        refused.map(ToOwned::to_owned).ok_or_else(|| "none".to_owned())
    })
    .await;
    let after = memory_mib(&mut server);
    eprintln!("100 unfinished messages of 4 MiB: {before} MiB before, {after} MiB after");
    assert!(after < before + 150, "{before} MiB before, {after} MiB after");
    honest.assert_served("unfinished messages").await;
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    // Their memory is free again for the next client of this address.
    wait::until("an answer", async || ask(channel(&server).await).await).await;
}

/// Starts the server with a limit of open files.
async fn limited(limit: &str) -> (DiscoveryProcess, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("limited");
    let binary = env!("CARGO_BIN_EXE_pilot-discovery");
    std::fs::write(&script, format!("#!/bin/sh\nulimit {limit}\nexec {binary} \"$@\"\n")).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let files = vec![("cart.yaml".to_owned(), CART.to_owned())];
    let server =
        DiscoveryProcess::start(script.to_str().unwrap(), DiscoveryOptions { files, ..DiscoveryOptions::default() })
            .await;
    (server, folder)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_05_idle_connections_to_pages_leave_descriptors_for_xds() {
    let (mut server, _folder) = limited("-n 256").await;
    let honest = Honest::start(&server).await;
    let mut silent = Vec::new();
    for port in [server.http(), server.monitoring(), server.grpc()] {
        for _ in 0..300 {
            silent.extend(TcpStream::connect(port).await);
        }
    }
    let begun = Instant::now();
    for port in [server.http(), server.monitoring()] {
        let ready = client::get(port, "discovery", "/ready").await.unwrap();
        assert!(ready.status.is_success());
    }
    eprintln!("{} silent connections: /ready on both ports in {:?}", silent.len(), begun.elapsed());
    ask(channel(&server).await).await.expect("an answer with all connections open");
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.process().id())).unwrap().count();
    eprintln!("{open} of 256 files are open");
    assert!(open < 256, "{open} open files");
    honest.assert_served("silent connections").await;
    drop(silent);
}

#[tokio::test]
async fn hole_05_the_limit_of_open_files_is_raised_at_start() {
    let (mut server, _folder) = limited("-Sn 200").await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.process().id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<&str> = line.split_whitespace().skip(3).take(2).collect();
    assert_eq!(numbers[0], numbers[1], "{line}");
    assert!(server.process().output().contains("limit of open files"), "it is logged");
}

/// Lifetime of a connection that sends only this.
async fn lifetime(port: SocketAddr, bytes: &[u8]) -> Duration {
    let begun = Instant::now();
    let mut socket = TcpStream::connect(port).await.unwrap();
    socket.write_all(bytes).await.unwrap();
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(wait::PATIENCE, socket.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "{port} keeps a connection after {:?}", String::from_utf8_lossy(bytes));
    begun.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_05_connections_without_a_complete_request_are_closed_on_every_port() {
    let certificates = tempfile::tempdir().unwrap();
    let secure = SocketAddr::from(([127, 0, 0, 1], testkit::ports::free()));
    let made = testkit::certificates::Authority::new().workload("spiffe://cluster.local/ns/istio-system/sa/istiod");
    let file = |name: &str, text: &str| {
        let path = certificates.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let chain = format!("--tlsCertFile={}", file("chain.pem", &made.chain));
    let key = format!("--tlsKeyFile={}", file("key.pem", &made.key));
    let server = server(&[&chain, &key, &format!("--secureGRPCAddr={secure}")], &[]).await;
    let honest = Honest::start(&server).await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let half: [&[u8]; 4] = [b"", b"GET /ready HTT", b"PRI * HT", preface];
    let hello = [&b""[..], b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03"];
    let plain = [server.grpc(), server.http(), server.monitoring()];
    let attempts = plain.iter().flat_map(|port| half.iter().map(|bytes| lifetime(*port, bytes)));
    let attempts: Vec<_> = attempts.chain(hello.iter().map(|bytes| lifetime(secure, bytes))).collect();
    let longest = futures_util::future::join_all(attempts).await.into_iter().max().unwrap();
    eprintln!("connections without a request: the longest lived for {longest:?}");
    honest.assert_served("connections without a request").await;
}
