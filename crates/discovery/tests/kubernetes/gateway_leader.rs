//! Two replicas with leader election: one deploys gateways, the other takes over after a crash and keeps what is deployed.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::kubernetes::ApiServer;
use testkit::wait;

use crate::cluster::{definitions, is_left_out};
use crate::election::Replica;
use crate::managed_gateways::{DEPLOYMENTS, GATEWAYS, create_injector, gateway};

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/istio-system/leases/istio-gateway-deployment";
const PATIENCE: Duration = Duration::from_secs(120);

async fn deployed(api: &ApiServer, name: &str, is_met: impl Fn(&Value) -> bool) -> Value {
    wait::until_within(PATIENCE, "a gateway's Deployment", async || {
        let object = api.get(&format!("{DEPLOYMENTS}/{name}-istio")).await?;
        if is_met(&object) { Ok(object) } else { Err(object["metadata"].to_string()) }
    })
    .await
}

async fn holder(api: &ApiServer) -> String {
    let lease = api.get(LEASE).await.unwrap();
    let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
    holder.split('-').next().unwrap_or_default().to_owned()
}

/// Writes of Deployments by a replica.
fn deployments(replica: &Replica) -> usize {
    replica.written().iter().filter(|request| request.contains("/deployments/")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_replica_deploys_gateways_and_another_takes_over() {
    if is_left_out(&[]) {
        return;
    }
    let api = ApiServer::start().await;
    api.define(&definitions()).await;
    for name in ["istio-system", "shop"] {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        api.create("/api/v1/namespaces", &namespace).await.unwrap();
    }
    create_injector(&api).await;
    let replicas = tokio::join!(Replica::start(&api, "a"), Replica::start(&api, "b"));
    api.create(GATEWAYS, &gateway("first", &[80])).await.unwrap();
    let first = deployed(&api, "first", |_| true).await;
    let name = holder(&api).await;
    let (mut leads, follows) = if replicas.0.name == name { replicas } else { (replicas.1, replicas.0) };
    assert_eq!(leads.name, name);
    assert!(deployments(&leads) > 0, "{:?}", leads.written());
    assert_eq!(deployments(&follows), 0, "a replica that does not lead deploys nothing: {:?}", follows.written());

    leads.discovery.process().kill();
    let killed = Instant::now();
    api.create(GATEWAYS, &gateway("second", &[80])).await.unwrap();
    deployed(&api, "second", |_| true).await;
    println!("taken over {:?} after a crash", killed.elapsed());
    assert_eq!(holder(&api).await, follows.name);
    let kept = deployed(&api, "first", |_| true).await;
    assert_eq!(kept["metadata"]["generation"], first["metadata"]["generation"], "a deployed gateway was changed");

    // The new leader also watches what the old one deployed.
    api.delete(&format!("{DEPLOYMENTS}/first-istio")).await.unwrap();
    deployed(&api, "first", |object| object["metadata"]["uid"] != first["metadata"]["uid"]).await;
}
