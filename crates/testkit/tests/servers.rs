//! testkit's own tests: guards leave nothing behind, and a real Envoy reaches a backend.

use std::path::Path;

use serde_json::{Value, json};
use testkit::backend::{HttpBackend, TcpBackend};
use testkit::envoy::{Bootstrap, Envoy, XdsTransport};
use testkit::process::Process;
use testkit::{client, servers, wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn shell(script: &str) -> Process {
    Process::start("shell", Path::new("/bin/sh"), &["-c", script], &[])
}

fn is_running(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[tokio::test]
async fn output_of_both_streams_is_kept() {
    let process = shell("echo one; echo two >&2; exec cat /dev/zero >/dev/null");
    wait::until("both lines", async || {
        let text = process.output();
        if text.contains("one\n") && text.contains("two\n") { Ok(()) } else { Err(text) }
    })
    .await;
}

#[test]
fn a_dropped_process_is_gone() {
    let process = shell("exec cat /dev/zero >/dev/null");
    let pid = process.id();
    assert!(is_running(pid));
    drop(process);
    assert!(!is_running(pid));
}

#[tokio::test]
async fn a_terminated_process_gives_its_status() {
    let mut process = shell("trap 'exit 7' TERM; echo up; while :; do :; done");
    wait::until("the trap", async || if process.output().contains("up") { Ok(()) } else { Err(process.output()) })
        .await;
    assert_eq!(process.terminate().await.code(), Some(7));
}

#[tokio::test]
async fn backends_say_who_they_are() {
    let (web, tcp) = (HttpBackend::start("web").await, TcpBackend::start("raw").await);
    let reply = client::get_with(web.address(), "shop.example", "/a?b=c", &[("x-test", "1")]).await.unwrap();
    assert_eq!((reply.status.as_u16(), reply.backend()), (200, "web"));
    let asked = reply.json();
    assert_eq!(
        (&asked["path"], &asked["authority"], &asked["headers"]["x-test"]),
        (&json!("/a?b=c"), &json!("shop.example"), &json!("1"))
    );
    web.answer_with(503);
    assert_eq!(client::get(web.address(), "x", "/").await.unwrap().status.as_u16(), 503);
    assert_eq!(web.requests(), 2);

    let mut stream = TcpStream::connect(tcp.address()).await.unwrap();
    stream.write_all(b"ping").await.unwrap();
    let mut text = [0; 8];
    stream.read_exact(&mut text).await.unwrap();
    assert_eq!((&text, tcp.connections()), (b"raw\nping", 1));
}

#[tokio::test]
async fn a_real_envoy_reaches_a_backend() {
    if servers::without("envoy") {
        return;
    }
    let backend = HttpBackend::start("web").await;
    let mut envoy = Envoy::start_with(forwarding_to(backend.port())).await;
    envoy.ready().await;
    let address = envoy.listener("entry").await;
    let reply = client::get(address, "shop.example", "/x").await.unwrap();
    assert_eq!((reply.status.as_u16(), reply.backend()), (200, "web"));

    let admin = envoy.admin();
    assert!(admin.warming().await.unwrap().is_empty());
    assert_eq!(admin.rejected().await.unwrap(), 0);
    assert_eq!(admin.stats(r"^cluster\.(backend|other)\.upstream_rq_total$").await.unwrap().values().sum::<u64>(), 1);
    assert!(admin.config_dump().await.unwrap()["configs"].is_array());
    assert_eq!(admin.clusters().await.unwrap()["cluster_statuses"][0]["name"], "backend");
}

#[tokio::test]
async fn envoy_asks_the_given_port_as_the_given_node() {
    if servers::without("envoy") {
        return;
    }
    let ads = TcpBackend::start("no ADS server").await;
    for transport in [XdsTransport::Sotw, XdsTransport::Delta] {
        let before = ads.connections();
        let sidecar = Bootstrap::sidecar(ads.port(), transport, "cart", "shop", json!({"app": "cart"}));
        let envoy = Envoy::start(&sidecar).await;
        let dump = envoy.admin().config_dump().await.unwrap();
        let node = &dump["configs"][0]["bootstrap"]["node"];
        assert_eq!(node["id"], "sidecar~127.0.0.1~cart.shop~shop.svc.cluster.local");
        assert_eq!(node["metadata"]["LABELS"]["app"], "cart");
        wait::until("a call", async || if ads.connections() > before { Ok(()) } else { Err("none".into()) }).await;
    }
}

/// A bootstrap with one listener that sends everything to one port.
fn forwarding_to(port: u16) -> Value {
    let address = |port: u16| json!({"socket_address": {"address": "127.0.0.1", "port_value": port}});
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "entry",
        "http_filters": [{"name": "router", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [
            {"match": {"prefix": "/"}, "route": {"cluster": "backend"}}]}]},
    });
    json!({"static_resources": {
        "listeners": [{"name": "entry", "address": address(0), "filter_chains": [
            {"filters": [{"name": "http", "typed_config": manager}]}]}],
        "clusters": [{"name": "backend", "type": "STATIC", "load_assignment": {"cluster_name": "backend",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(port)}}]}]}}],
    }})
}
