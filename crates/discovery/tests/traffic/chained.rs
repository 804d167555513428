//! One control plane reads configuration from another over `xds://`: objects of the first reach an Envoy of the second.

use testkit::backend::HttpBackend;
use testkit::client;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::envoy::XdsTransport;
use testkit::wait;

use crate::mesh::{MESH, Mesh, http_service, service_port, virtual_service};

const BINARY: &str = env!("CARGO_BIN_EXE_pilot-discovery");

async fn first(document: String) -> DiscoveryProcess {
    let files = vec![("mesh.yaml".to_owned(), document)];
    let env = vec![("ENABLE_XDS_API_GENERATOR_AUTH".to_owned(), "false".to_owned())];
    DiscoveryProcess::start(BINARY, DiscoveryOptions { files, env, ..DiscoveryOptions::default() }).await
}

/// Start, change, outage and return of the first control plane. The second keeps its objects throughout.
async fn follows(query: &str) {
    let (old, new) = (HttpBackend::start("old").await, HttpBackend::start("new").await);
    let port = service_port();
    let mut first = first(http_service("cart", port, &[&old], &["v1"])).await;
    let sources = format!("{MESH}configSources: [{{address: 'xds://{}{query}'}}]\n", first.grpc());
    let mesh = Mesh::fed(XdsTransport::Delta, port, &sources).await;
    mesh.answered_by("cart", "old").await;

    first.write("mesh.yaml", &http_service("cart", port, &[&new], &["v1"]));
    mesh.answered_by("cart", "new").await;
    first.write("bad.yaml", &virtual_service("cart", "  http: 7"));

    first.process().kill();
    wait::until("the loss to be noticed", async || {
        let page = client::get(mesh.discovery.http(), "pilot", "/debug/sources").await?.body;
        if page.contains("\"stale\"") { Ok(()) } else { Err(page) }
    })
    .await;
    assert_eq!(mesh.get("cart", "/").await.backend(), "new", "the last good configuration stays");

    first.restart().await;
    first.write("mesh.yaml", &http_service("cart", port, &[&old], &["v1"]));
    mesh.answered_by("cart", "old").await;
    mesh.assert_settled().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn configuration_of_one_reaches_an_envoy_of_the_other() {
    follows("").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn configuration_arrives_over_delta_too() {
    follows("?protocol=delta").await;
}
