//! Consul: registered, failing, all critical, unreadable, back again.

use serde_json::json;
use testkit::backend::HttpBackend;
use testkit::consul::Consul;
use testkit::servers;

use crate::stage::{Stage, backends};

/// Registers with an agent, which keeps a check that the instance would have to renew.
async fn register(consul: &Consul, name: &str, backend: &HttpBackend) {
    let body = json!({
        "ID": name, "Name": "cart", "Address": backend.address().ip(), "Port": backend.port(),
        "Tags": [format!("version|{name}")], "Meta": {"protocol": "http"},
        "Check": {"CheckID": format!("check-{name}"), "TTL": "3600s", "Status": "passing"},
    });
    consul.put("/v1/agent/service/register", body).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_reach_what_consul_says_is_well() {
    if servers::without("consul") {
        return;
    }
    let mut consul = Consul::start().await;
    let (port, all) = backends(["one", "two"]).await;
    register(&consul, "one", &all[0]).await;
    let args = ["--registries=Consul", "--consulserverInterval=2s", &format!("--consulserverURL={}", consul.url())];
    let stage = Stage::start(&args.map(str::to_owned), "").await;
    let host = "cart.service.consul";
    stage.answered_by(host, port, &["one"]).await;

    register(&consul, "two", &all[1]).await;
    stage.answered_by(host, port, &["one", "two"]).await;
    consul.put("/v1/agent/check/fail/check-one", json!({})).await;
    stage.answered_by(host, port, &["two"]).await;
    consul.put("/v1/agent/check/fail/check-two", json!({})).await;
    stage.answered_by(host, port, &[]).await;
    consul.put("/v1/agent/check/pass/check-one", json!({})).await;
    stage.answered_by(host, port, &["one"]).await;

    // Nobody can be asked: what was known last is served.
    consul.kill();
    stage.until_state("Consul", "stale").await;
    stage.answered_by(host, port, &["one"]).await;
    consul.restart().await;
    stage.until_state("Consul", "live").await;
    consul.put("/v1/agent/check/pass/check-two", json!({})).await;
    stage.answered_by(host, port, &["one", "two"]).await;
    assert_eq!(stage.envoy.admin().rejected().await, Ok(0), "updates that Envoy refused");
}
