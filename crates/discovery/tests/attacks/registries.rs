//! Hostile registries.

use std::time::Duration;

use http::Response;
use serde_json::{Map, Value, json};
use testkit::scripted::ScriptedServer;
use testkit::{client, wait};

use crate::honest::{Honest, ask, channel, server};

/// A Consul with twenty services, whose responses about instances never end.
async fn endless_consul() -> ScriptedServer {
    ScriptedServer::start_endless("/v1/health", |asked| async move {
        let names: Map<String, Value> = (0..20).map(|n| (format!("web-{n}"), json!([]))).collect();
        let is_names = asked.path == "/v1/catalog/services";
        let body = if is_names { Value::Object(names).to_string() } else { "[[[[[[[[".to_owned() };
        Response::builder().header("x-consul-index", 7).body(body).expect("a response")
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn hole_11_endless_responses_of_consul_need_bounded_memory() {
    let consul = endless_consul().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("registries.yaml");
    let url = consul.url();
    let entry =
        format!("registries:\n- required: false\n  startupDeadline: 100ms\n  consul: {{addresses: ['{url}']}}\n");
    std::fs::write(&file, entry).unwrap();
    let mut server = server(&[&format!("--registryConfig={}", file.display())], &[]).await;
    ask(channel(&server).await).await.expect("the cart");
    let before = server.process().memory_kib().expect("a running process");
    let honest = Honest::start(&server).await;
    let mut peak = 0;
    let mut failures = 0;
    wait::until_within(Duration::from_secs(60), "an error for every service", async || {
        peak = peak.max(server.process().memory_kib().unwrap_or_default());
        // Each of the twenty queries is repeated only after it failed.
        failures = consul.requests().iter().filter(|asked| asked.path.starts_with("/v1/health")).count();
        if failures > 40 { Ok(()) } else { Err(failures.to_string()) }
    })
    .await;
    let page = client::get(server.http(), "discovery", "/debug/sources").await.expect("a page").body;
    eprintln!("20 endless answers: {} MiB at most, {} MiB before; {failures} questions", peak >> 10, before >> 10);
    assert!(page.contains("longer than"), "{page}");
    assert!(peak < before + (500 << 10), "{before} KiB before, {peak} KiB at most");
    honest.assert_served("endless responses of Consul").await;
}
