//! Time of a review in this process, without HTTP and TLS, and of the injection of a file of 1,000 Deployments:
//! `cargo bench -p inject`. `cargo bench -p discovery --bench reviews` measures the webhook.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use inject::{ChartValues, InjectorConfig, MeshInputs, NativeMode, ReviewInputs, inject_file, review};
use model::config::mesh::default_mesh;
use serde_json::json;

const DEPLOYMENT: &str = r#"apiVersion: apps/v1
kind: Deployment
metadata: {name: cart-NUMBER, namespace: shop}
spec:
  selector: {matchLabels: {app: cart}}
  template:
    metadata: {labels: {app: cart}, annotations: {prometheus.io/port: "9102"}}
    spec:
      containers:
      - name: cart
        image: cart:1
        ports: [{name: http, containerPort: 8080}]
        readinessProbe: {httpGet: {path: /ready, port: http}}
---
"#;

fn main() {
    let values =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/inject-cases/base/values.yaml"));
    let values = ChartValues::parse(&values.unwrap()).unwrap();
    let (config, mesh, environment) = (InjectorConfig::default(), default_mesh(), BTreeMap::new());
    let (config, values, mesh) = (&config, &values, &mesh);
    let shared =
        MeshInputs { config, values, mesh, revision: "default", compliance_policy: "", environment: &environment };

    let pod = json!({
        "metadata": {"generateName": "cart-7d9c-", "labels": {"app": "cart", "pod-template-hash": "7d9c"},
            "annotations": {"prometheus.io/port": "9102"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "cart-7d9c", "controller": true}]},
        "spec": {"containers": [{"name": "cart", "image": "cart:1", "resources": {}, "ports": [{"name": "http", "containerPort": 8080}],
            "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}}}]},
        "status": {},
    });
    let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {"uid": "u", "namespace": "shop", "operation": "CREATE", "object": pod}});
    let body = body.to_string();
    let inputs = ReviewInputs { shared, proxy_configs: &[], native: NativeMode::Disabled, nodes: None };
    const REVIEWS: u32 = 5_000;
    let begin = Instant::now();
    for _ in 0..REVIEWS {
        let answer = review(black_box(body.as_bytes()), "/inject", &inputs);
        black_box(answer.body.to_string());
    }
    println!("review: {:?}", begin.elapsed() / REVIEWS);
    paced(|| drop(black_box(review(black_box(body.as_bytes()), "/inject", &inputs).body.to_string())));

    let file: String = (0..1000).map(|n| DEPLOYMENT.replace("NUMBER", &n.to_string())).collect();
    let begin = Instant::now();
    let injected = inject_file(black_box(&file), &shared, false);
    println!("1,000 Deployments: {:?} ({} bytes)", begin.elapsed(), injected.text.len());
    assert_eq!(injected.failures, Vec::<String>::new());
}

/// Latency at 200 reviews a second: caches are colder than in a loop without pauses.
fn paced(mut answer: impl FnMut()) {
    let (begin, pause) = (Instant::now(), Duration::from_millis(5));
    let mut times: Vec<Duration> = (0..1000)
        .map(|number| {
            let due = begin + pause * number;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let begin = Instant::now();
            answer();
            begin.elapsed()
        })
        .collect();
    times.sort_unstable();
    println!("200 reviews a second: p50 {:?}, p99 {:?}", times[500], times[990]);
}
