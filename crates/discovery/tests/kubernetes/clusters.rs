//! Two clusters: endpoints of both, new credentials, one that is down at the start, one that is removed.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use testkit::kubernetes::ApiServer;
use testkit::{client, wait};
use tokio::sync::OnceCell;

use crate::cluster::{cluster, create, is_left_out};
use crate::serving::{CLUSTER, SLICE, endpoints, follow, serve, serve_with, web};

const SECRET: &str = "/api/v1/namespaces/istio-system/secrets/east";

/// The second cluster, with `web` at these addresses. Tests use it one at a time.
async fn east(addresses: &[&str]) -> &'static ApiServer {
    static EAST: OnceCell<ApiServer> = OnceCell::const_new();
    let east = EAST.get_or_init(async || {
        let east = ApiServer::start().await;
        create(&east, &web(&[])).await;
        east
    });
    let east = east.await;
    east.patch(SLICE, &endpoints(addresses)).await.unwrap();
    east
}

fn secret(kubeconfig: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "east", "namespace": "istio-system", "labels": {"istio/multiCluster": "true"}},
        "data": {"east": BASE64_STANDARD.encode(kubeconfig)}})
}

/// Creates `web` in the first cluster, and the Secret that names the second one.
async fn begin(api_server: &ApiServer, kubeconfig: &str) {
    create(api_server, &web(&["10.4.0.1"])).await;
    let system = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "istio-system"}});
    create(api_server, &[system, secret(kubeconfig)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_are_added_renewed_and_removed() {
    if is_left_out(&[]) {
        return;
    }
    let api_server = cluster().await;
    let east = east(&["10.5.0.1"]).await;
    let kubeconfig = fs::read_to_string(east.kubeconfig()).unwrap();
    // No server listens there.
    begin(&api_server, &kubeconfig.replace("127.0.0.1:", "127.0.0.2:")).await;

    // A cluster that is down at the start is waited for until a timeout.
    let begun = std::time::Instant::now();
    let patience = [("PILOT_REMOTE_CLUSTER_TIMEOUT".to_owned(), "3s".to_owned())];
    let flags = ["--httpAddr=127.0.0.1:0", "--monitoringAddr=127.0.0.1:0"];
    let server = serve_with(api_server.kubeconfig(), None, &patience, &flags).await;
    println!("ready after {:?} with a dead cluster", begun.elapsed());
    let pushes = follow(server.addresses.grpc.unwrap(), CLUSTER).await;
    pushes.until(&["10.4.0.1"]).await;
    let http = server.addresses.http.unwrap();
    let primary = json!({"id": "Kubernetes", "syncStatus": "synced"});
    let east_is = |status: &str| json!({"id": "east", "secretName": "istio-system/east", "syncStatus": status});
    shows(http, "/debug/clusterz", |page| *page == json!([primary, east_is("timeout")])).await;

    // New credentials that work.
    api_server.patch(SECRET, &json!({"data": secret(&kubeconfig)["data"]})).await.unwrap();
    pushes.until(&["10.4.0.1", "10.5.0.1"]).await;
    shows(http, "/debug/clusterz", |page| *page == json!([primary, east_is("synced")])).await;
    let is_live = |page: &Value| {
        let sources = page.as_array().unwrap().iter();
        sources.filter(|source| source["state"] == "live").any(|source| source["source"] == "Kubernetes/east")
    };
    shows(http, "/debug/sources", is_live).await;
    shows(http, "/debug/registryz?health", is_live).await;
    let metrics = client::get(server.addresses.monitoring.unwrap(), "pilot", "/metrics").await.unwrap().body;
    assert!(metrics.contains("source=\"Kubernetes/east\""), "{metrics}");
    east.patch(SLICE, &endpoints(&["10.5.0.2"])).await.unwrap();
    pushes.until(&["10.4.0.1", "10.5.0.2"]).await;

    // Rotation: a new kubeconfig for the same cluster; no endpoint is removed meanwhile.
    let seen = pushes.all().len();
    let renewed = kubeconfig.replace("\"test\"", "\"renewed\"");
    api_server.patch(SECRET, &json!({"data": secret(&renewed)["data"]})).await.unwrap();
    east.patch(SLICE, &endpoints(&["10.5.0.3"])).await.unwrap();
    pushes.until(&["10.4.0.1", "10.5.0.3"]).await;
    assert!(pushes.all()[seen..].iter().all(|addresses| addresses.len() == 2), "{:?}", pushes.all());

    api_server.delete(SECRET).await.unwrap();
    pushes.until(&["10.4.0.1"]).await;
    shows(http, "/debug/clusterz", |page| *page == json!([primary])).await;
    server.stop(Duration::ZERO).await;
}

/// Waits until a debug page is as expected.
async fn shows(http: SocketAddr, path: &str, is_expected: impl Fn(&Value) -> bool) {
    wait::until(path, async || {
        let reply = client::get(http, "pilot", path).await?;
        if is_expected(&reply.json()) { Ok(()) } else { Err(reply.body) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_with_invalid_credentials_is_not_waited_for() {
    if is_left_out(&[]) {
        return;
    }
    let api_server = cluster().await;
    let east = east(&["10.5.0.1"]).await;
    let kubeconfig = fs::read_to_string(east.kubeconfig()).unwrap();
    let unusable = kubeconfig.replace("authority-data\":\"", "authority-data\":\"!");
    assert_ne!(unusable, kubeconfig);
    begin(&api_server, &unusable).await;

    // If it waited, it would never be ready.
    let patience = [("PILOT_REMOTE_CLUSTER_TIMEOUT".to_owned(), "1h".to_owned())];
    let server = serve(api_server.kubeconfig(), None, &patience).await;
    let pushes = follow(server.addresses.grpc.unwrap(), CLUSTER).await;
    pushes.until(&["10.4.0.1"]).await;
    api_server.patch(SECRET, &json!({"data": secret(&kubeconfig)["data"]})).await.unwrap();
    pushes.until(&["10.4.0.1", "10.5.0.1"]).await;
    server.stop(Duration::ZERO).await;
}

const MAP: &str = "/api/v1/namespaces/istio-system/configmaps/clusters";
const CREDENTIALS: &str = "/api/v1/namespaces/vault/secrets/kubeconfigs";

/// Clusters in Pilot 0.8's ConfigMap; the Secret of the second one is missing.
fn clusters() -> Vec<Value> {
    let entry = |name: &str, secret: &str| {
        let annotations = json!({"config.istio.io/platform": "Kubernetes", "config.istio.io/accessConfigSecret": secret,
            "config.istio.io/accessConfigSecretNamespace": "vault"});
        json!({"apiVersion": "clusterregistry.k8s.io/v1alpha1", "kind": "Cluster",
            "metadata": {"name": name, "annotations": annotations}})
        .to_string()
    };
    let namespace = |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "clusters", "namespace": "istio-system"},
        "data": {"east.yaml": entry("east", "kubeconfigs"), "west.yaml": entry("west", "nowhere")}});
    vec![namespace("istio-system"), namespace("vault"), map]
}

fn kubeconfigs(kubeconfig: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "kubeconfigs", "namespace": "vault"},
        "data": {"east.yaml": BASE64_STANDARD.encode(kubeconfig)}})
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_of_a_config_map_are_added_renewed_and_removed() {
    if is_left_out(&[]) {
        return;
    }
    let api_server = cluster().await;
    let east = east(&["10.5.0.1"]).await;
    create(&api_server, &web(&["10.4.0.1"])).await;
    create(&api_server, &clusters()).await;
    let flags = ["--clusterRegistriesConfigMap=clusters", "--clusterRegistriesNamespace=istio-system"];
    let server = serve_with(api_server.kubeconfig(), None, &[], &flags).await;
    let pushes = follow(server.addresses.grpc.unwrap(), CLUSTER).await;
    pushes.until(&["10.4.0.1"]).await;
    let lacking = "the Secret vault/nowhere has no kubeconfig under \"west.yaml\"";
    wait::until("a problem about the missing Secret", async || {
        let world = server.pilot.world().now();
        let mut problems = world.snapshot.problems.values().flatten();
        if problems.any(|p| *p.message == *lacking) { Ok(()) } else { Err(format!("{:?}", world.snapshot.problems)) }
    })
    .await;

    // The Secret is created after the entry that names it.
    let kubeconfig = fs::read_to_string(east.kubeconfig()).unwrap();
    create(&api_server, &[kubeconfigs(&kubeconfig)]).await;
    pushes.until(&["10.4.0.1", "10.5.0.1"]).await;
    let seen = pushes.all().len();
    let renewed = kubeconfig.replace("\"test\"", "\"renewed\"");
    api_server.patch(CREDENTIALS, &json!({"data": kubeconfigs(&renewed)["data"]})).await.unwrap();
    east.patch(SLICE, &endpoints(&["10.5.0.2"])).await.unwrap();
    pushes.until(&["10.4.0.1", "10.5.0.2"]).await;
    // A cluster is removed with its entry, not with its Secret.
    api_server.delete(CREDENTIALS).await.unwrap();
    east.patch(SLICE, &endpoints(&["10.5.0.3"])).await.unwrap();
    pushes.until(&["10.4.0.1", "10.5.0.3"]).await;
    assert!(pushes.all()[seen..].iter().all(|addresses| addresses.len() == 2), "{:?}", pushes.all());

    api_server.patch(MAP, &json!({"data": {"east.yaml": null}})).await.unwrap();
    pushes.until(&["10.4.0.1"]).await;
    server.stop(Duration::ZERO).await;
}
