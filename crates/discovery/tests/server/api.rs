//! `/api/v1` and the console's files: described, bounded, and safe against odd requests.

use std::time::{Duration, Instant};

use http::{Method, Request};
use testkit::client::{self, Reply};
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::tracked::{TrackedOptions, TrackedProxy};
use testkit::wait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const SERVICE: &str = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: cart, namespace: shop}\nspec: \
                       {hosts: [cart.example.com], addresses: [10.96.0.7], ports: [{number: 8000, name: http, protocol: HTTP}], \
                       resolution: STATIC, endpoints: [{address: 127.0.0.1}]}\n";

fn route(timeout: usize) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: cart, namespace: shop}}\nspec: {{hosts: \
         [cart.example.com], http: [{{timeout: {timeout}s, route: [{{destination: {{host: cart.example.com}}}}]}}]}}\n"
    )
}

async fn start() -> (DiscoveryProcess, TrackedProxy) {
    let files = vec![("cart.yaml".to_owned(), SERVICE.to_owned())];
    let options = DiscoveryOptions { files, ..DiscoveryOptions::default() };
    let server = DiscoveryProcess::start(env!("CARGO_BIN_EXE_pilot-discovery"), options).await;
    let node = "sidecar~127.0.0.1~cart-1.shop~shop.svc.cluster.local".to_owned();
    let proxy = TrackedProxy::connect(server.grpc(), TrackedOptions { node, ..TrackedOptions::default() });
    wait::until("a synced proxy", async || {
        let listed = get(&server, "/api/v1/proxies?state=synced").await;
        if listed.json()["total"] == 1 { Ok(()) } else { Err(listed.body) }
    })
    .await;
    (server, proxy)
}

async fn get(server: &DiscoveryProcess, path: &str) -> Reply {
    client::get(server.monitoring(), "localhost", path).await.unwrap_or_else(|e| panic!("{path}: {e}"))
}

async fn send(server: &DiscoveryProcess, method: Method, path: &str, body: &str) -> Reply {
    let request =
        Request::builder().method(method).uri(path).header("host", "localhost").body(body.to_owned()).unwrap();
    client::send(server.monitoring(), request).await.unwrap_or_else(|e| panic!("{path}: {e}"))
}

#[tokio::test]
async fn every_described_request_is_answered() {
    let (server, _proxy) = start().await;
    let document = get(&server, "/api/v1/openapi.json").await.json();
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() >= 15, "{document}");
    for path in
        paths.iter().filter(|(path, of)| of["get"].is_object() && !path.ends_with("events")).map(|(path, _)| path)
    {
        let query = match path.as_str() {
            "/api/v1/explain" => "?proxy=cart-1.shop&url=http://cart.example.com:8000/",
            "/api/v1/history/diff" => "?from=1",
            "/api/v1/history/objects" => "?at=1000",
            _ => "",
        };
        let reply = get(&server, &format!("{}{query}", path.replace("{proxy}", "cart-1.shop"))).await;
        assert!(reply.status.is_success() && !reply.json().is_null(), "{path}: {} {}", reply.status, reply.body);
    }
    let detail = get(&server, "/api/v1/proxies/cart-1.shop").await.json();
    assert_eq!((&detail["state"], &detail["types"]["RDS"]), (&"synced".into(), &"SYNCED".into()), "{detail}");
}

#[tokio::test]
async fn changes_are_in_the_journal_and_in_events() {
    let (server, _proxy) = start().await;
    let mut events = TcpStream::connect(server.monitoring()).await.unwrap();
    events.write_all(b"GET /api/v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut heard = String::new();
    let mut part = [0; 4096];
    for timeout in 1..=3 {
        server.write("route.yaml", &route(timeout));
        let body = route(timeout);
        wait::until("the proxy", async || {
            let report = send(&server, Method::POST, "/api/v1/wait?timeout=5", &body).await;
            if report.json()["state"] == "done" { Ok(()) } else { Err(report.body) }
        })
        .await;
    }
    let list = get(&server, "/api/v1/history?object=virtualservice/shop/cart&proxies").await.json();
    let entries = list["entries"].as_array().unwrap();
    let changes: Vec<&str> = entries.iter().map(|entry| entry["objects"][0]["change"].as_str().unwrap()).collect();
    assert_eq!(changes, ["changed", "changed", "added"], "{list}");
    assert!(entries[0]["objects"][0]["file"].as_str().unwrap().ends_with("route.yaml"), "{list}");
    assert_eq!(entries[0]["proxies"][0]["proxy"], "cart-1.shop", "{list}");
    let second = entries[1]["snapshot"].as_u64().unwrap();
    let past =
        get(&server, &format!("/api/v1/history/objects?at={second}&object=VirtualService/shop/cart")).await.json();
    assert_eq!(past["objects"][0]["spec"]["http"][0]["timeout"], "2s", "{past}");
    let diff = get(&server, &format!("/api/v1/history/diff?from={}", second - 1)).await.json();
    assert_eq!(diff["objects"][0]["after"]["spec"]["http"][0]["timeout"], "3s", "{diff}");
    assert_eq!(diff["objects"][0]["before"]["spec"]["http"][0]["timeout"], "1s", "{diff}");
    while !heard.contains("event: change") || !heard.contains("event: sync") {
        let read = tokio::time::timeout(wait::PATIENCE, events.read(&mut part)).await.expect("an event").unwrap();
        assert!(read > 0, "the stream ended: {heard}");
        heard += &String::from_utf8_lossy(&part[..read]);
    }
}

#[tokio::test]
async fn an_explanation_has_lines_of_rules_the_other_end_and_a_hint() {
    let (server, _proxy) = start().await;
    let body = route(3);
    server.write("route.yaml", &body);
    wait::until("the proxy", async || {
        let report = send(&server, Method::POST, "/api/v1/wait?timeout=5", &body).await;
        if report.json()["state"] == "done" { Ok(()) } else { Err(report.body) }
    })
    .await;
    let page = "/api/v1/explain?proxy=cart-1.shop&url=http://";
    let found = get(&server, &format!("{page}cart.example.com:8000/")).await.json();
    let config = found["route"]["config"].as_str().unwrap_or_else(|| panic!("no object of the route: {found:#}"));
    let place = |of: &str| found["places"][of].as_str().unwrap_or_default().rsplit('/').next().unwrap().to_owned();
    assert_eq!(place(config), "route.yaml:1", "{found:#}");
    assert_eq!(place(&format!("route from {config}")), "route.yaml:4", "{found:#}");
    assert_eq!(found["arrivals"][0]["proxy"], "cart-1.shop", "{found:#}");
    assert!(found["unknownHost"].is_null(), "{found:#}");
    let missing = get(&server, &format!("{page}crat.example.com:8000/")).await.json();
    let hint = missing["unknownHost"].as_str().unwrap_or_else(|| panic!("no hint: {missing:#}"));
    assert!(hint.contains("\"crat.example.com\"; did you mean \"cart.example.com\"?"), "{hint}");
}

#[tokio::test]
async fn odd_requests_are_refused_and_nothing_is_reflected() {
    let (server, _proxy) = start().await;
    for (path, status) in [
        ("/api/v1/proxies/%3Cscript%3Ealert(1)%3C/script%3E", 404),
        ("/api/v1/proxies/..%2f..%2fetc%2fpasswd", 404),
        ("/api/v1/proxies/%ff", 400),
        ("/api/v1/../../etc/passwd", 404),
        ("/api/v1/nothing", 404),
        ("/api/v1/proxies?limit=many", 400),
        ("/api/v1/history/objects?at=yesterday", 400),
        ("/api/v1/explain?proxy=cart-1.shop&url=cart", 400),
        ("/api/v1/plan", 405),
    ] {
        let reply = get(&server, path).await;
        assert_eq!(reply.status.as_u16(), status, "{path}: {}", reply.body);
        assert!(!reply.body.contains("<script>") && !reply.body.contains("root:"), "{path}: {}", reply.body);
    }
    let page = get(&server, "/ui/..%2f..%2fetc%2fpasswd").await;
    assert!(
        page.body.starts_with("<!doctype html>")
            && page.header("content-security-policy").contains("default-src 'none'")
    );
    let foreign = client::get(server.monitoring(), "evil.example.com", "/ui").await.unwrap();
    assert_eq!(foreign.status.as_u16(), 403, "a page under a foreign name");
    let with_body = send(&server, Method::GET, "/api/v1/status", &"x".repeat(1 << 20)).await;
    assert!(with_body.status.is_success(), "{}", with_body.body);
    for (body, reason) in [
        ("kind: [", "could not parse"),
        ("", "no objects"),
        ("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a}\nspec: {hosts: 7}\n", "hosts"),
        (
            "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e \
          [*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e]\n",
            "mistakes",
        ),
    ] {
        let begun = Instant::now();
        for path in ["/api/v1/plan", "/api/v1/wait?timeout=0"] {
            let reply = send(&server, Method::POST, path, body).await;
            assert_eq!(reply.status.as_u16(), 400, "{path} {body}: {}", reply.body);
            assert!(reply.body.contains(reason), "{path}: no {reason:?} in {}", reply.body);
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{body}");
    }
}

/// Their memory is reserved before it is read, so clients that announce much use little and are few.
#[tokio::test]
async fn hole_12_large_changes_that_never_arrive_leave_room_for_others() {
    let (server, _proxy) = start().await;
    let announce = async |path: &str| {
        let mut stream = TcpStream::connect(server.monitoring()).await.unwrap();
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", 32 << 20);
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    };
    let mut silent = Vec::new();
    for path in ["/api/v1/plan", "/api/v1/wait", "/api/v1/plan"] {
        silent.push(announce(path).await);
    }
    wait::until("the fourth to be refused", async || {
        let mut fourth = announce("/api/v1/plan").await;
        let mut status = [0; 12];
        let read = tokio::time::timeout(Duration::from_secs(1), fourth.read_exact(&mut status)).await;
        let is_refused = read.is_ok() && status == *b"HTTP/1.1 503";
        if is_refused { Ok(()) } else { Err(String::from_utf8_lossy(&status).into_owned()) }
    })
    .await;
    let small = send(&server, Method::POST, "/api/v1/plan", &route(3)).await;
    assert!(small.status.is_success(), "{}", small.body);
    drop(silent);
    wait::until("room for a large change", async || {
        let large = format!("# {}\n{}", "x".repeat(2 << 20), route(3));
        let reply = send(&server, Method::POST, "/api/v1/plan", &large).await;
        if reply.status.is_success() { Ok(()) } else { Err(reply.body) }
    })
    .await;
}

#[tokio::test]
async fn readers_that_stop_do_not_hold_up_others() {
    let (server, _proxy) = start().await;
    let mut stopped = Vec::new();
    for path in ["/api/v1/events", "/api/v1/proxies/cart-1.shop/config", "/ui"].iter().cycle().take(60) {
        let mut stream = TcpStream::connect(server.monitoring()).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).await.unwrap();
        stopped.push(stream);
    }
    for timeout in 1..=20 {
        server.write("route.yaml", &route(timeout));
        assert!(get(&server, "/api/v1/status").await.status.is_success());
    }
    let body = route(20);
    wait::until("the proxy", async || {
        let report = send(&server, Method::POST, "/api/v1/wait?timeout=5", &body).await;
        if report.json()["state"] == "done" { Ok(()) } else { Err(report.body) }
    })
    .await;
    drop(stopped);
}
