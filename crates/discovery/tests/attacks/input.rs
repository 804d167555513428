//! Hostile input to a running server: every input gets a typed error, the good file next to it stays served, and memory
//! is freed.

use std::fmt::Write as _;
use std::net::SocketAddr;

use api::envoy::config::core::v3::Node;
use api::{Struct, TypeUrl, Value, value};
use testkit::discovery::DiscoveryProcess;
use testkit::{client, wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;
use xds::client::SotwClient;

use crate::honest::{CART, Honest, ask, channel, server};

const ID: &str = "sidecar~10.0.0.1~client.other~other.svc.cluster.local";
/// Allowed growth after a burst of bad input in a debug build.
const LEFT_BEHIND_KIB: u64 = 48 * 1024;

fn bomb() -> String {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..12 {
        let before = format!("*a{}", i - 1);
        let _ = writeln!(text, "a{i}: &a{i} [{}]", [before.as_str(); 9].join(", "));
    }
    text
}

fn route(matching: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: bad, namespace: shop}}\nspec:\n  \
         hosts: [cart.shop.svc.cluster.local]\n  http:\n  - match: [{{uri: {{{matching}}}}}]\n    \
         route: [{{destination: {{host: cart.shop.svc.cluster.local}}}}]\n"
    )
}

/// Invalid files by name.
fn bad_files() -> Vec<(&'static str, String)> {
    vec![
        ("bomb.yaml", bomb()),
        ("deep.yaml", "[".repeat(100_000)),
        ("deep-map.yaml", "{a: ".repeat(100_000)),
        ("duplicate.yaml", CART.replace("kind: ServiceEntry", "kind: ServiceEntry\nkind: Gateway")),
        ("nul.yaml", CART.replace("cart", "ca\0rt")),
        ("number.yaml", CART.replace("number: 80", "number: 99999999999999999999")),
        ("long.yaml", CART.replace("hosts: [cart", &format!("hosts: [{}", "x".repeat(1 << 20)))),
        ("regex.yaml", route("regex: '(((a{1000}){1000}){1000}){1000}'")),
        ("nested-regex.yaml", route(&format!("regex: '{}a{}'", "(".repeat(50_000), ")".repeat(50_000)))),
        ("type.yaml", CART.replace("hosts: [cart.shop.svc.cluster.local]", "hosts: {a: 1}")),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_files_are_reported_without_harm() {
    let mut server = server(&[], &[]).await;
    ask(channel(&server).await).await.expect("the cart");
    let before = server.process().memory_kib().expect("a running process");
    let honest = Honest::start(&server).await;
    for (name, text) in bad_files() {
        server.write(name, &text);
    }
    for (name, _) in bad_files() {
        wait::until(&format!("a problem about {name}"), async || {
            let page = client::get(server.http(), "pilot", "/debug/problems").await?;
            if page.body.contains(name) { Ok(()) } else { Err("not there".to_owned()) }
        })
        .await;
    }
    honest.assert_served("hostile files").await;
    server.process().check_alive();
    bad_files().iter().for_each(|(name, _)| server.remove(name));
    assert_memory_returns(&mut server, before).await;
}

async fn assert_memory_returns(server: &mut DiscoveryProcess, before: u64) {
    wait::until("memory to come back", async || {
        let now = server.process().memory_kib().unwrap_or_default();
        if now <= before + LEFT_BEHIND_KIB { Ok(()) } else { Err(format!("{before} KiB before, {now} now")) }
    })
    .await;
}

/// The status with which the server ends a stream that subscribes with this node to these names.
async fn refusal(server: &DiscoveryProcess, node: Node, names: &[&str]) -> Code {
    match SotwClient::open(channel(server).await, node, &TypeUrl::ENDPOINT, names).await {
        Err(status) => status.code(),
        Ok(mut stream) => match stream.next().await {
            Err(status) => status.code(),
            Ok(_) => Code::Ok,
        },
    }
}

fn metadata(value: &str) -> Option<Struct> {
    let value = Value { kind: Some(value::Kind::StringValue(value.to_owned())) };
    Some(Struct { fields: [("NAMESPACE".to_owned(), value)].into() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_clients_get_a_status_without_harm() {
    let mut server = server(&[], &[]).await;
    ask(channel(&server).await).await.expect("the cart");
    let before = server.process().memory_kib().expect("a running process");
    let honest = Honest::start(&server).await;
    let node = |id: &str| Node { id: id.to_owned(), ..Node::default() };
    let refused = [Code::InvalidArgument, Code::ResourceExhausted, Code::OutOfRange];
    for id in ["", "x", "sidecar~~~", "sidecar~1.2.3.4~a", "cart~1.2.3.4~a.b~c", &"~".repeat(100_000)] {
        let code = refusal(&server, node(id), &["a"]).await;
        assert!(refused.contains(&code), "{code:?} for {:?}", id.get(..20).unwrap_or(id));
    }
    let large = Node { metadata: metadata(&"x".repeat(1 << 20)), ..node(ID) };
    assert!(refused.contains(&refusal(&server, large, &["a"]).await), "1 MB of metadata");
    let names: Vec<String> = (0..100_000).map(|i| format!("outbound|80||s{i}.shop.svc.cluster.local")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert!(refused.contains(&refusal(&server, node(ID), &names).await), "100,000 names");
    let huge = "x".repeat(5 << 20);
    assert!(refused.contains(&refusal(&server, node(ID), &[&huge]).await), "5 MB in one request");
    for port in [server.grpc(), server.http(), server.monitoring()] {
        garbage(port).await;
    }
    honest.assert_served("hostile clients").await;
    server.process().check_alive();
    assert_memory_returns(&mut server, before).await;
}

/// Random bytes: the server may close the connection and must do nothing else.
async fn garbage(address: SocketAddr) {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let frames = [preface, vec![0xff; 4096]].concat();
    for bytes in [vec![0; 4096], vec![0xff; 4096], b"GET / HTTP/9.9\r\n\r\n".to_vec(), frames] {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        let _ = stream.write_all(&bytes).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(wait::PATIENCE, stream.read_to_end(&mut answer)).await;
    }
}
