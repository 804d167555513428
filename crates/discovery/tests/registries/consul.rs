//! Consul: registration, failing and critical checks, outage, recovery.

use serde_json::json;
use testkit::backend::HttpBackend;
use testkit::consul::Consul;
use testkit::servers;

use crate::fixture::{MeshFixture, backends};

/// Registers with an agent, with a TTL check that the instance would have to renew.
async fn register(consul: &Consul, name: &str, backend: &HttpBackend) {
    let body = json!({
        "ID": name, "Name": "cart", "Address": backend.address().ip(), "Port": backend.port(),
        "Tags": [format!("version|{name}")], "Meta": {"protocol": "http"},
        "Check": {"CheckID": format!("check-{name}"), "TTL": "3600s", "Status": "passing"},
    });
    consul.put("/v1/agent/service/register", body).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_reach_healthy_consul_instances() {
    if servers::without("consul") {
        return;
    }
    let mut consul = Consul::start().await;
    let (port, all) = backends(["one", "two"]).await;
    register(&consul, "one", &all[0]).await;
    let args = ["--registries=Consul", "--consulserverInterval=2s", &format!("--consulserverURL={}", consul.url())];
    let fixture = MeshFixture::start(&args.map(str::to_owned), "").await;
    let host = "cart.service.consul";
    fixture.answered_by(host, port, &["one"]).await;

    register(&consul, "two", &all[1]).await;
    fixture.answered_by(host, port, &["one", "two"]).await;
    consul.put("/v1/agent/check/fail/check-one", json!({})).await;
    fixture.answered_by(host, port, &["two"]).await;
    consul.put("/v1/agent/check/fail/check-two", json!({})).await;
    fixture.answered_by(host, port, &[]).await;
    consul.put("/v1/agent/check/pass/check-one", json!({})).await;
    fixture.answered_by(host, port, &["one"]).await;

    // The registry is down: the last known endpoints are served.
    consul.kill();
    fixture.until_state("Consul", "stale").await;
    fixture.answered_by(host, port, &["one"]).await;
    consul.restart().await;
    fixture.until_state("Consul", "live").await;
    consul.put("/v1/agent/check/pass/check-two", json!({})).await;
    fixture.answered_by(host, port, &["one", "two"]).await;
    assert_eq!(fixture.envoy.admin().rejected().await, Ok(0), "updates that Envoy refused");
}
