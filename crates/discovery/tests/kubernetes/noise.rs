//! Edits without meaning for the mesh cause no push.

use std::time::{Duration, Instant};

use futures_util::future;
use serde_json::{Value, json};
use testkit::kubernetes::ApiServer;

use crate::cluster::{cluster, create, is_left_out};
use crate::push_recorder::PushRecorder;
use crate::serving::{CLUSTER, SLICE, endpoints, seconds, serve, web};

/// Duration of the edits; 20 seconds are worth trying now and then.
const LENGTH: &str = "PILOTAGE_NOISE_SECONDS";
const A_SECOND: u64 = 50;
/// Edits of different objects, or of different fields.
const AT_ONCE: usize = 10;

const SHOP: &str = "/api/v1/namespaces/shop";
const ROUTE: &str = "/apis/networking.istio.io/v1/namespaces/shop/virtualservices/web";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/shop/leases";

fn objects() -> Vec<Value> {
    let mut objects = web(&["10.4.0.1"]);
    let meta = |name: &str| json!({"name": name, "namespace": "shop"});
    objects.extend([
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta("web-1"),
            "spec": {"nodeName": "n1", "containers": [{"name": "web", "image": "web"}]},
            "status": {"phase": "Running", "podIP": "10.4.0.1", "podIPs": [{"ip": "10.4.0.1"}]}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("leader"), "data": {"holder": "a"}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": meta("password"), "data": {"password": "YQ=="}}),
        json!({"apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": meta("web"),
            "spec": {"hosts": ["web"], "http": [{"route": [{"destination": {"host": "web"}}]}]}}),
    ]);
    objects
}

/// One edit of each kind, as controllers make them.
async fn edit(server: &ApiServer, number: usize) {
    let annotated = json!({"metadata": {"annotations": {"example.com/noise": number.to_string()}}});
    let seconds = format!("2026-01-01T00:{:02}:{:02}Z", number / 60 % 60, number % 60);
    let ready = json!([{"type": "Ready", "status": "True", "lastHeartbeatTime": seconds}]);
    let (path, part) = match number % 10 {
        0 => (SLICE.to_owned(), annotated),
        1 => (format!("{SHOP}/services/web"), annotated),
        2 => ("/api/v1/nodes/n1".to_owned(), annotated),
        3 => (format!("{SHOP}/pods/web-1"), annotated),
        4 => (ROUTE.to_owned(), annotated),
        5 => (format!("{LEASES}/noise"), json!({"spec": {"leaseDurationSeconds": 1 + number % 60}})),
        6 => ("/api/v1/nodes/n1/status".to_owned(), json!({"status": {"conditions": ready}})),
        7 => (format!("{SHOP}/configmaps/leader"), json!({"data": {"holder": number.to_string()}})),
        8 => (format!("{SHOP}/secrets/password"), json!({"stringData": {"password": number.to_string()}})),
        // Only managedFields change.
        _ => (format!("{SLICE}?fieldManager=noise-{}", number % 50), json!({"metadata": {"labels": {"noise": "no"}}})),
    };
    server.patch(&path, &part).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn annotations_and_leases_push_nothing() {
    if is_left_out(&[]) {
        return;
    }
    let api_server = cluster().await;
    create(&api_server, &objects()).await;
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "noise", "namespace": "shop"}, "spec": {"holderIdentity": "a"}});
    api_server.create(LEASES, &lease).await.unwrap();
    crate::cluster::made(&format!("{LEASES}/noise"));
    let server = serve(api_server.kubeconfig(), None, &[]).await;
    let recorder = PushRecorder::of(server.addresses.grpc.unwrap(), &[CLUSTER]).await;
    recorder.until_addresses(CLUSTER, &["10.4.0.1"]).await;
    let (before, pushes) = (server.pilot.world().now().number, recorder.pushes());

    let edits = seconds(LENGTH, 4).as_secs() * A_SECOND;
    let mut pace = tokio::time::interval(Duration::from_secs(1) / A_SECOND as u32);
    let begun = Instant::now();
    for first in (0..edits as usize).step_by(AT_ONCE) {
        for _ in 0..AT_ONCE {
            pace.tick().await;
        }
        future::join_all((first..first + AT_ONCE).map(|number| edit(&api_server, number))).await;
    }
    let took = begun.elapsed();
    // A relevant change arrives after all other edits.
    api_server.patch(SLICE, &endpoints(&["10.4.0.1", "10.4.0.2"])).await.unwrap();
    recorder.until_addresses(CLUSTER, &["10.4.0.1", "10.4.0.2"]).await;
    let snapshots = server.pilot.world().now().number - before;
    let pushes = recorder.pushes() - pushes - 1;
    println!("{edits} edits without meaning in {took:?}: {pushes} pushes, {} snapshots", snapshots - 1);
    assert_eq!((pushes, snapshots), (0, 1), "noise reached the model");
    recorder.assert_calm();
    server.stop(Duration::ZERO).await;
}
