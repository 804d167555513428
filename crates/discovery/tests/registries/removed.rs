//! Registries that are removed from the registry file, and added again, while Envoy is connected.

use std::fs;
use std::path::Path;

use serde_json::json;
use testkit::consul::Consul;
use testkit::{client, servers, wait};

use crate::fixture::{MeshFixture, backends};

/// Writes a registry file with one entry per name, all for the same Consul, with hosts below that name.
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
async fn removing_a_registry_removes_only_its_services() {
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
    let fixture = MeshFixture::start(&[format!("--registryConfig={}", file.display())], "").await;
    fixture.answered_by("cart.east", port, &["one"]).await;
    fixture.answered_by("cart.west", port, &["one"]).await;

    describe(&file, &consul.url(), &["west"]);
    unknown(&fixture, "cart.east", port).await;
    assert!(fixture.source("Consul/east").await.is_err(), "a registry that left is still listed");
    fixture.answered_by("cart.west", port, &["one"]).await;
    let ready = client::get(fixture.discovery.http(), "discovery", "/ready").await.unwrap();
    assert_eq!(ready.status.as_u16(), 200, "{}", ready.body);

    describe(&file, &consul.url(), &["east", "west"]);
    fixture.answered_by("cart.east", port, &["one"]).await;
    describe(&file, &consul.url(), &[]);
    unknown(&fixture, "cart.east", port).await;
    unknown(&fixture, "cart.west", port).await;
    assert_eq!(fixture.envoy.admin().rejected().await, Ok(0), "updates that Envoy refused");
}

/// Waits until Envoy has no route or no listener for a host.
async fn unknown(fixture: &MeshFixture, host: &str, port: u16) {
    wait::until(&format!("no {host}"), async || {
        let clusters = fixture.envoy.admin().get("/clusters").await?;
        if clusters.contains(&format!("outbound|{port}||{host}::")) { Err(format!("{host} is there")) } else { Ok(()) }
    })
    .await;
}
