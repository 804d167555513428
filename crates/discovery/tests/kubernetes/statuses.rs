//! Statuses that are lost are written again: of recreated objects, and those that another writer changed.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::kubernetes::ApiServer;
use testkit::wait;

use crate::cluster::{definitions, is_left_out};
use crate::election::{accepted, create, objects, route};

const ROUTES: &str = "/apis/gateway.networking.k8s.io/v1/namespaces/shop/httproutes";
const GATEWAY: &str = "/apis/gateway.networking.k8s.io/v1/namespaces/shop/gateways/front";

/// Types of the conditions of the gateway's listener.
async fn listener_conditions(api_server: &ApiServer) -> Vec<Value> {
    let gateway = api_server.get(GATEWAY).await.unwrap();
    let conditions = gateway["status"]["listeners"][0]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().map(|condition| condition["type"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_statuses_are_written_again_and_conditions_of_others_are_kept() {
    if is_left_out(&[]) {
        return;
    }
    let api_server = ApiServer::start().await;
    api_server.define(&definitions()).await;
    for object in objects() {
        create(&api_server, &object).await;
    }
    let kubeconfig = format!("--kubeconfig={}", api_server.kubeconfig().display());
    let args = ["--registries=Kubernetes", &kubeconfig].map(String::from).to_vec();
    let setup = DiscoveryOptions { args, ..DiscoveryOptions::default() };
    let _server = DiscoveryProcess::start(env!("CARGO_BIN_EXE_pilot-discovery"), setup).await;
    accepted(&api_server, "first").await;

    // The model may never notice that the object was gone.
    for _ in 0..4 {
        api_server.delete(&format!("{ROUTES}/first")).await.unwrap();
        create(&api_server, &route("first")).await;
        accepted(&api_server, "first").await;
    }

    api_server.patch(&format!("{ROUTES}/first/status"), &json!({"status": {"parents": []}})).await.unwrap();
    accepted(&api_server, "first").await;

    // Of the listener's conditions one is by another controller, and one of ours is missing.
    let gateway = api_server.get(GATEWAY).await.unwrap();
    let mut listeners = gateway["status"]["listeners"].clone();
    let foreign = json!({"type": "example.com/Checked", "status": "True", "reason": "R", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    listeners[0]["conditions"] = json!([foreign]);
    api_server.patch(&format!("{GATEWAY}/status"), &json!({"status": {"listeners": listeners}})).await.unwrap();
    wait::until_within(Duration::from_secs(60), "our conditions", async || {
        let types = listener_conditions(&api_server).await;
        if types.contains(&json!("Accepted")) { Ok(()) } else { Err(format!("{types:?}")) }
    })
    .await;
    assert!(listener_conditions(&api_server).await.contains(&json!("example.com/Checked")));
}
