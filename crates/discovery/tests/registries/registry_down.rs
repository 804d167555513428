//! Registries that are down at the start: a required one blocks readiness, others only until their deadline.

use std::fs;
use std::time::Duration;

use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::{client, ports, wait};

async fn start(required: bool) -> DiscoveryProcess {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("registries.yaml");
    let unused = format!("http://127.0.0.1:{}", ports::free());
    let text = format!(
        "registries:\n- name: away\n  required: {required}\n  startupDeadline: 300ms\n  consul: {{addresses: ['{unused}']}}\n"
    );
    fs::write(&file, text).expect("a file");
    let args = vec![format!("--registryConfig={}", file.display())];
    DiscoveryProcess::start_unready(
        env!("CARGO_BIN_EXE_pilot-discovery"),
        DiscoveryOptions { args, ..DiscoveryOptions::default() },
    )
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_optional_registry_is_waited_for_until_its_deadline() {
    let mut server = start(false).await;
    server.ready().await;
    let health = client::get(server.http(), "discovery", "/debug/registryz?health").await.unwrap().json();
    let away = health.as_array().unwrap().iter().find(|s| s["source"] == "Consul/away").unwrap().clone();
    assert_eq!(away["state"], "syncing");
    assert!(away["lastFailure"]["message"].as_str().is_some_and(|m| m.contains("could not reach")), "{away}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_required_registry_blocks_readiness() {
    let server = start(true).await;
    let begun = std::time::Instant::now();
    wait::until("many failures past the deadline", async || {
        let ready = client::get(server.http(), "discovery", "/ready").await?;
        assert_eq!(ready.status.as_u16(), 503, "{}", ready.body);
        let metrics = client::get(server.monitoring(), "discovery", "/metrics").await?.body;
        let line = metrics.lines().find(|l| l.starts_with("pilotage_source_requests{source=\"Consul/away\"}"));
        let asked: f64 = line.and_then(|l| l.rsplit(' ').next()?.parse().ok()).unwrap_or_default();
        let is_late = begun.elapsed() > Duration::from_millis(600);
        if asked >= 3.0 && is_late { Ok(()) } else { Err(format!("asked {asked} times")) }
    })
    .await;
}
