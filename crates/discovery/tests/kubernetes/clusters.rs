//! Two clusters: endpoints of both, new credentials, one that is dead at the start, one that is removed.

use std::fs;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use testkit::kubernetes::ApiServer;

use crate::cluster::{cluster, create, is_left_out};
use crate::serving::{CLUSTER, SLICE, endpoints, follow, serve, web};

const SECRET: &str = "/api/v1/namespaces/istio-system/secrets/east";

fn secret(kubeconfig: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "east", "namespace": "istio-system", "labels": {"istio/multiCluster": "true"}},
        "data": {"east": BASE64_STANDARD.encode(kubeconfig)}})
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_are_added_renewed_and_removed() {
    if is_left_out(&[]) {
        return;
    }
    let api_server = cluster().await;
    let east = ApiServer::start().await;
    create(&east, &web(&["10.5.0.1"])).await;
    create(&api_server, &web(&["10.4.0.1"])).await;
    let system = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "istio-system"}});
    let kubeconfig = fs::read_to_string(east.kubeconfig()).unwrap();
    // Nobody listens there.
    let dead = kubeconfig.replace("127.0.0.1:", "127.0.0.2:");
    create(&api_server, &[system, secret(&dead)]).await;

    // A cluster that is dead at the start is waited for, but not for ever.
    let begun = std::time::Instant::now();
    let patience = [("PILOT_REMOTE_CLUSTER_TIMEOUT".to_owned(), "3s".to_owned())];
    let server = serve(api_server.kubeconfig(), None, &patience).await;
    println!("ready after {:?} with a dead cluster", begun.elapsed());
    let told = follow(server.addresses.grpc.unwrap(), CLUSTER).await;
    told.until(&["10.4.0.1"]).await;

    // New credentials that work.
    api_server.patch(SECRET, &json!({"data": secret(&kubeconfig)["data"]})).await.unwrap();
    told.until(&["10.4.0.1", "10.5.0.1"]).await;
    east.patch(SLICE, &endpoints(&["10.5.0.2"])).await.unwrap();
    told.until(&["10.4.0.1", "10.5.0.2"]).await;

    // Rotation: the same cluster by other words; nothing is taken away meanwhile.
    let seen = told.all().len();
    let renewed = kubeconfig.replace("\"test\"", "\"renewed\"");
    api_server.patch(SECRET, &json!({"data": secret(&renewed)["data"]})).await.unwrap();
    east.patch(SLICE, &endpoints(&["10.5.0.3"])).await.unwrap();
    told.until(&["10.4.0.1", "10.5.0.3"]).await;
    assert!(told.all()[seen..].iter().all(|addresses| addresses.len() == 2), "{:?}", told.all());

    api_server.delete(SECRET).await.unwrap();
    told.until(&["10.4.0.1"]).await;
    server.stop(Duration::ZERO).await;
}
