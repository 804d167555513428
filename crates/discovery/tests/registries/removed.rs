//! Registries that are taken out of their file, and put back, while Envoy is served.

use std::fs;
use std::path::Path;

use serde_json::json;
use testkit::consul::Consul;
use testkit::{client, servers, wait};

use crate::stage::{Stage, backends};

/// Writes a file that describes one Consul once for each name, with hosts below that name.
fn describe(file: &Path, url: &str, names: &[&str]) {
    let entry = |name: &&str| {
        format!(
            "- name: {name}\n  consul: {{addresses: ['{url}'], host: '{{service}}.{name}', namespace: {name}, \
             interval: 100ms}}\n"
        )
    };
    let entries: String = names.iter().map(entry).collect();
    let text = if names.is_empty() { "registries: []\n".to_owned() } else { format!("registries:\n{entries}") };
    fs::write(file.with_extension("part"), text).unwrap();
    fs::rename(file.with_extension("part"), file).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registry_leaves_with_its_services_and_nobody_elses() {
    if servers::without("consul") {
        return;
    }
    let consul = Consul::start().await;
    let (port, all) = backends(["one"]).await;
    let address = all[0].address().ip().to_string();
    let service = json!({"ID": "c", "Service": "cart", "Address": address, "Port": port, "Meta": {"protocol": "http"}});
    consul.register("outside", &service, "passing").await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("registries.yaml");
    describe(&file, &consul.url(), &["east", "west"]);
    let stage = Stage::start(&[format!("--registryConfig={}", file.display())], "").await;
    stage.answered_by("cart.east", port, &["one"]).await;
    stage.answered_by("cart.west", port, &["one"]).await;

    describe(&file, &consul.url(), &["west"]);
    unknown(&stage, "cart.east", port).await;
    assert!(stage.source("Consul/east").await.is_err(), "a registry that left is still listed");
    stage.answered_by("cart.west", port, &["one"]).await;
    let ready = client::get(stage.discovery.http(), "discovery", "/ready").await.unwrap();
    assert_eq!(ready.status.as_u16(), 200, "{}", ready.body);

    describe(&file, &consul.url(), &["east", "west"]);
    stage.answered_by("cart.east", port, &["one"]).await;
    describe(&file, &consul.url(), &[]);
    unknown(&stage, "cart.east", port).await;
    unknown(&stage, "cart.west", port).await;
    assert_eq!(stage.envoy.admin().rejected().await, Ok(0), "updates that Envoy refused");
}

/// Waits until Envoy knows nothing of a host: no route leads there, or there is no listener any more.
async fn unknown(stage: &Stage, host: &str, port: u16) {
    wait::until(&format!("no {host}"), async || {
        let clusters = stage.envoy.admin().get("/clusters").await?;
        if clusters.contains(&format!("outbound|{port}||{host}::")) { Err(format!("{host} is there")) } else { Ok(()) }
    })
    .await;
}
