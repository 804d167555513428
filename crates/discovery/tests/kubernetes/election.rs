//! Two replicas: one writes statuses; the other takes over after a crash or a shutdown.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::faulty::FaultyProxy;
use testkit::kubernetes::ApiServer;
use testkit::wait;

use crate::cluster::{definitions, is_left_out, path};

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/istio-system/leases/istio-gateway-status-leader";

/// A replica and the proxy through which it reaches the API server.
pub(crate) struct Replica {
    pub(crate) name: &'static str,
    proxy: FaultyProxy,
    pub(crate) discovery: DiscoveryProcess,
}

impl Replica {
    pub(crate) async fn start(api_server: &ApiServer, name: &'static str) -> Replica {
        Replica::of_revision(api_server, name, "").await
    }

    pub(crate) async fn of_revision(api_server: &ApiServer, name: &'static str, revision: &str) -> Replica {
        let proxy = api_server.faulty().await;
        let kubeconfig = format!("--kubeconfig={}", proxy.kubeconfig().display());
        let args = ["--registries=Kubernetes", &kubeconfig, "--shutdownDuration=0s"].map(String::from).to_vec();
        let env = [("POD_NAME", name), ("REVISION", revision)];
        let env = env.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        let setup = DiscoveryOptions { args, env, ..DiscoveryOptions::default() };
        let mut discovery = DiscoveryProcess::start_unready(env!("CARGO_BIN_EXE_pilot-discovery"), setup).await;
        discovery.ready().await;
        Replica { name, proxy, discovery }
    }

    /// All its write requests except those of the Lease.
    pub(crate) fn written(&self) -> Vec<String> {
        let is_write = |asked: &&String| !asked.starts_with("GET ") && !asked.contains("/leases");
        self.proxy.requests().iter().filter(is_write).cloned().collect()
    }
}

pub(crate) fn objects() -> Vec<Value> {
    let namespace = |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    vec![
        namespace("istio-system"),
        namespace("shop"),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"ports": [{"name": "http", "port": 80}]}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "front", "namespace": "shop"},
            "spec": {"ports": [{"name": "http", "port": 80}]}}),
        json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "front", "namespace": "shop"},
            "spec": {"gatewayClassName": "istio", "addresses": [{"type": "Hostname", "value": "front"}],
                "listeners": [{"name": "web", "port": 80, "protocol": "HTTP"}]}}),
        route("first"),
    ]
}

pub(crate) fn route(name: &str) -> Value {
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"parentRefs": [{"name": "front"}], "rules": [{"backendRefs": [{"name": "web", "port": 80}]}]}})
}

pub(crate) async fn create(api_server: &ApiServer, object: &Value) {
    let collection = match object["kind"].as_str() {
        Some("Namespace") => "/api/v1/namespaces".to_owned(),
        _ => path(object).0,
    };
    api_server.create(&collection, object).await.unwrap();
}

/// Waits until a route is accepted, and returns it.
pub(crate) async fn accepted(api_server: &ApiServer, name: &str) -> Value {
    wait::until_within(Duration::from_secs(60), "an accepted route", async || {
        let object = api_server.get(&path(&route(name)).1).await?;
        let conditions = object["status"]["parents"][0]["conditions"].as_array().cloned().unwrap_or_default();
        match conditions.iter().any(|c| c["type"] == "Accepted" && c["status"] == "True") {
            true => Ok(object),
            false => Err(object["status"].to_string()),
        }
    })
    .await
}

/// Name of the leader, and the number of leader transitions.
async fn leader(api_server: &ApiServer) -> (String, i64) {
    let spec = api_server.get(LEASE).await.unwrap()["spec"].clone();
    let holder = spec["holderIdentity"].as_str().unwrap_or_default();
    (holder.split('-').next().unwrap_or_default().to_owned(), spec["leaseTransitions"].as_i64().unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_replica_writes_statuses_and_another_takes_over() {
    if is_left_out(&[]) {
        return;
    }
    let api_server = ApiServer::start().await;
    api_server.define(&definitions()).await;
    for object in objects() {
        create(&api_server, &object).await;
    }
    let replicas = tokio::join!(Replica::start(&api_server, "a"), Replica::start(&api_server, "b"));
    let first = accepted(&api_server, "first").await;
    let (name, transitions) = leader(&api_server).await;
    let (mut leads, mut follows) = if replicas.0.name == name { replicas } else { (replicas.1, replicas.0) };
    assert_eq!((leads.name, transitions), (name.as_str(), 0));
    let statuses = leads.written().iter().filter(|asked| asked.contains("/status")).count();
    assert!(statuses >= 2, "a route's and a gateway's: {:?}", leads.written());
    assert_eq!(follows.written(), [""; 0], "a replica that does not lead writes nothing");

    leads.discovery.process().kill();
    let killed = Instant::now();
    create(&api_server, &route("second")).await;
    accepted(&api_server, "second").await;
    let after_crash = killed.elapsed();
    assert_eq!(leader(&api_server).await, (follows.name.to_owned(), 1));
    let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
    let kept = accepted(&api_server, "first").await;
    assert_eq!(version(&kept), version(&first), "what is as wanted is not written again");

    // The first replica restarts and the other is stopped, which releases the Lease.
    leads.discovery.restart().await;
    follows.discovery.process().terminate().await;
    let stopped = Instant::now();
    create(&api_server, &route("third")).await;
    accepted(&api_server, "third").await;
    let after_stop = stopped.elapsed();
    assert_eq!(leader(&api_server).await.0, leads.name);
    println!(
        "{statuses} statuses written by one of two replicas, none by the other; taken over {after_crash:?} after a \
         crash and {after_stop:?} after a stop"
    );
    assert!(after_stop < Duration::from_secs(12), "the Lease was not given up: {after_stop:?}");
}
