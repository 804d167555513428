//! Texts sent by clients in places that others read: metrics and logs.

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use api::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use serde_json::Value;
use testkit::client;
use testkit::discovery::DiscoveryProcess;
use testkit::wait;
use tonic::Code;
use xds::client::SotwClient;

use crate::honest::{Honest, ask, channel, server};

fn node(name: &str) -> Node {
    Node { id: format!("sidecar~10.0.0.1~{name}.other~other.svc.cluster.local"), ..Node::default() }
}

async fn metrics(server: &DiscoveryProcess) -> String {
    client::get(server.monitoring(), "pilot", "/metrics").await.expect("metrics").body
}

async fn nacked(server: &DiscoveryProcess, name: &str, reason: &str) -> (SotwClient, DiscoveryResponse) {
    let mut stream =
        SotwClient::open(channel(server).await, node(name), &TypeUrl::CLUSTER, &[]).await.expect("a stream");
    let response = stream.next().await.expect("a response").expect("a response");
    stream.nack(&response, reason);
    // The response shows that the NACK was processed.
    let after = stream.next().await.expect("a response").expect("a response");
    (stream, after)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_06_clients_cannot_create_time_series() {
    let server = server(&[], &[]).await;
    ask(channel(&server).await).await.expect("the cart");
    drop(nacked(&server, "first", "no").await);
    let (before, honest) = (metrics(&server).await.len(), Honest::start(&server).await);
    for number in 0..100 {
        let name = format!("{}-{number}", "x".repeat(400));
        let (stream, _) = nacked(&server, &name, "no").await;
        for suffix in ["a", "b", "c"] {
            let kind = format!("type.googleapis.com/made.up.{}{number}{suffix}", "x".repeat(200));
            stream.send(DiscoveryRequest { type_url: kind.clone(), ..Default::default() });
            stream.send(DiscoveryRequest { type_url: kind, response_nonce: "none".into(), ..Default::default() });
        }
        if number == 99 {
            wait::until("the client in the metrics", async || {
                let text = metrics(&server).await;
                if text.contains(&format!("pilot_xds_cds_reject{{node=\"{name}.other\"")) { Ok(()) } else { Err(text) }
            })
            .await;
        }
    }
    let after = wait::until("metrics as they were", async || {
        let now = metrics(&server).await;
        let is_bounded = now.len() < before + 4096 && !now.contains("xxxx");
        if is_bounded { Ok(now.len()) } else { Err(format!("{before} bytes before, {} now", now.len())) }
    })
    .await;
    eprintln!("/metrics: {before} bytes before, {after} after 100 clients that are gone");
    honest.assert_served("clients that create time series").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_06_long_texts_are_rejected() {
    let server = server(&[], &[]).await;
    let honest = Honest::start(&server).await;
    let opened = async |node: Node, kind: &str| {
        let kind = TypeUrl::from(kind.to_owned());
        let mut stream = SotwClient::open(channel(&server).await, node, &kind, &[]).await?;
        stream.next().await.map(drop)
    };
    let clusters = TypeUrl::CLUSTER;
    let clusters = clusters.as_str();
    let refused = opened(node(&"x".repeat(3 << 20)), clusters).await.expect_err("a node id of 3 MB");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("node") && refused.message().len() < 200, "{refused:?}");
    let cluster = Node { cluster: "x".repeat(1 << 20), ..node("web") };
    assert_eq!(opened(cluster, clusters).await.expect_err("a cluster of 1 MB").code(), Code::ResourceExhausted);
    let forged = opened(node("web\nforged"), clusters).await.expect_err("a node id of two lines");
    assert_eq!(forged.code(), Code::InvalidArgument);
    let made_up = opened(node("web"), &"x".repeat(1 << 20)).await.expect_err("a type of 1 MB");
    assert_eq!(made_up.code(), Code::InvalidArgument);
    // The longest valid names of a pod and a namespace.
    let (pod, namespace) = ("p".repeat(253), "n".repeat(63));
    let longest = format!("sidecar~{}~{pod}.{namespace}~{namespace}.svc.{}", "1".repeat(4) + "::2", "d".repeat(180));
    opened(Node { id: longest, ..Node::default() }, clusters).await.expect("a node of real names");
    honest.assert_served("long texts").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_06_a_nack_is_one_log_line() {
    let mut server = server(&[], &[]).await;
    let honest = Honest::start(&server).await;
    let forged = "2026-01-01T00:00:00.000000Z\terror\tads\tall is lost";
    let reason = format!("bad\n{forged}\r\n{forged}\u{1b}[2J{}", "x".repeat(1 << 20));
    let (_stream, _) = nacked(&server, "web", &reason).await;
    wait::until("the refusal in the log", async || {
        let log = server.process().output();
        if log.contains("all is lost") { Ok(()) } else { Err(log) }
    })
    .await;
    let log = server.process().output();
    let of_refusal: Vec<&str> = log.lines().filter(|line| line.contains("all is lost")).collect();
    assert!(of_refusal.iter().all(|line| line.contains("\twarn\t") && line.len() < 3000), "{of_refusal:#?}");
    assert!(!log.contains('\u{1b}') && !log.contains('\r'), "{log}");
    honest.assert_served("a NACK of many lines").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_06_json_log_lines_have_unique_keys() {
    let mut server = server(&["--log_as_json"], &[]).await;
    let (_stream, _) = nacked(&server, "web", "taste\nless").await;
    wait::until("the refusal in the log", async || {
        let log = server.process().output();
        if log.contains("taste\\nless") { Ok(()) } else { Err(log) }
    })
    .await;
    for line in server.process().output().lines() {
        let parsed: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert!(parsed["msg"].is_string(), "{line}");
        for key in ["msg", "level", "time", "scope"] {
            assert_eq!(line.matches(&format!("\"{key}\":")).count(), 1, "{key} in {line}");
        }
    }
}
