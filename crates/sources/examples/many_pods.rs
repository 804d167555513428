//! Measures a cluster of 20,000 pods and 2,000 services: resident memory per pod, and the time from a changed
//! EndpointSlice to the new snapshot. `cargo run --release -p sources --example many_pods` prints the figures.

use std::time::Instant;

use model::change::{Batch, SourceId};
use model::settings::Settings;
use model::snapshot::Snapshot;
use serde_json::{Value, json};
use sources::kubernetes::join::{ClusterOptions, ClusterState};
use sources::kubernetes::schema::ClusterObject;

const SERVICES: usize = 2_000;
const PODS_EACH: usize = 10;

fn main() {
    let settings = Settings::default();
    let options = ClusterOptions::own(&settings);
    let mut cluster = ClusterState::new(options, settings.clone());
    let mut world = Snapshot::empty(settings);
    for number in 0..SERVICES {
        apply(&mut cluster, service(number));
    }
    publish(&mut cluster, &mut world);
    let before = resident_kib();
    for number in 0..SERVICES {
        (0..PODS_EACH).for_each(|pod| apply(&mut cluster, self::pod(number, pod)));
        apply(&mut cluster, slice(number, PODS_EACH));
    }
    publish(&mut cluster, &mut world);
    let pods = SERVICES * PODS_EACH;
    let bytes = (resident_kib() - before) * 1024 / pods;
    println!("{pods} pods behind {SERVICES} services: {bytes} bytes of resident memory per pod");

    let mut times: Vec<f64> = (0..200).map(|round| reaction(&mut cluster, &mut world, round)).collect();
    times.sort_by(f64::total_cmp);
    println!("slice to snapshot: median {:.2} ms, p99 {:.2} ms", times[100], times[197]);
}

/// Milliseconds from a slice with one endpoint less to the new snapshot.
fn reaction(cluster: &mut ClusterState, world: &mut Snapshot, round: usize) -> f64 {
    let object = slice(round, PODS_EACH - 1);
    let begun = Instant::now();
    apply(cluster, object);
    publish(cluster, world);
    begun.elapsed().as_secs_f64() * 1000.0
}

fn apply(cluster: &mut ClusterState, object: Value) {
    cluster.apply(ClusterObject::read(object).expect("the objects above are well formed"));
}

fn publish(cluster: &mut ClusterState, world: &mut Snapshot) {
    let batch = Batch { source: SourceId("Kubernetes".into()), changes: cluster.changes() };
    *world = world.apply(vec![batch]).0;
}

fn namespace(number: usize) -> String {
    format!("ns-{}", number % 50)
}

fn service(number: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": format!("app-{number}"), "namespace": namespace(number)},
        "spec": {"type": "ClusterIP", "clusterIP": format!("10.96.{}.{}", number / 250, number % 250 + 1),
            "selector": {"app": format!("app-{number}")},
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}]}})
}

fn address(number: usize, pod: usize) -> String {
    let index = number * PODS_EACH + pod;
    format!("10.{}.{}.{}", 100 + index / 62_500, index / 250 % 250, index % 250 + 1)
}

fn pod(number: usize, pod: usize) -> Value {
    let ip = address(number, pod);
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("app-{number}-7d9c5b8f6d-{pod:05}"), "namespace": namespace(number),
            "generateName": format!("app-{number}-7d9c5b8f6d-"),
            "labels": {"app": format!("app-{number}"), "version": "v1", "pod-template-hash": "7d9c5b8f6d",
                "security.istio.io/tlsMode": "istio", "service.istio.io/canonical-name": format!("app-{number}")},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "uid": "1", "controller": true,
                "name": format!("app-{number}-7d9c5b8f6d")}]},
        "spec": {"nodeName": format!("node-{}", (number + pod) % 500), "serviceAccountName": format!("app-{number}"),
            "containers": [{"name": "app", "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}]}]},
        "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True"}]}})
}

fn slice(number: usize, pods: usize) -> Value {
    let endpoint = |pod: usize| {
        json!({"addresses": [address(number, pod)], "conditions": {"ready": true, "serving": true, "terminating": false},
            "targetRef": {"kind": "Pod", "namespace": namespace(number),
                "name": format!("app-{number}-7d9c5b8f6d-{pod:05}")}})
    };
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": format!("app-{number}-x"), "namespace": namespace(number),
            "labels": {"kubernetes.io/service-name": format!("app-{number}")}},
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": (0..pods).map(endpoint).collect::<Vec<_>>()})
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}
