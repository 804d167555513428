//! Injection by the webhook over TLS, as an API server requests it: 200 reviews a second on one connection. CPU time of the
//! server per review, and latency. Run with `cargo bench -p discovery --bench reviews`.
//!
//! `PILOTAGE_DISCOVERY` names another binary to measure.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::time::{Duration, Instant};
use std::{env, fs};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::fake_api::FakeApi;
use testkit::tls::TlsClient;
use testkit::{ports, wait};
use tokio::task::JoinSet;

const RATE: u32 = 200;
const SECONDS: u32 = 20;

#[tokio::main]
async fn main() {
    let folder = tempfile::tempdir().unwrap();
    let api = FakeApi::start(|_| None).await;
    let values = json!({"global": {"hub": "h", "tag": "1"}, "sidecarInjectorWebhook": {"rewriteAppHTTPProbe": true}});
    let map = json!({"metadata": {"name": "istio-sidecar-injector", "namespace": "istio-system", "resourceVersion": "1"},
        "data": {"config": "policy: enabled", "values": values.to_string()}});
    api.set("configmaps", vec![map]);
    let https = SocketAddr::from(([127, 0, 0, 1], ports::free()));
    let options = DiscoveryOptions {
        env: [
            ("ENABLE_LEADER_ELECTION", "false"),
            ("ENABLE_NATIVE_SIDECARS", "false"),
            ("ROOT_CA_DIR", "/nonexistent"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec(),
        args: vec![
            "--registries=Kubernetes".to_owned(),
            format!("--kubeconfig={}", api.kubeconfig().display()),
            format!("--httpsAddr={https}"),
            format!("--caDir={}", folder.path().join("ca").display()),
        ],
        ..DiscoveryOptions::default()
    };
    let binary = env::var("PILOTAGE_DISCOVERY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_pilot-discovery").to_owned());
    let mut server = DiscoveryProcess::start(&binary, options).await;
    let root = folder.path().join("ca/root-cert.pem");
    let root = wait::until("the root", async || fs::read_to_string(&root).map_err(|error| error.to_string())).await;
    let tls = TlsClient::trusting(&root, None, &["h2"]);
    let stream = wait::until("the webhook port", async || {
        tls.connect(https, "istiod.istio-system.svc").await.map_err(|error| error.to_string())
    })
    .await;
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let body = Bytes::from(review().to_string());
    wait::until("an injected pod", async || match answer(sender.clone(), body.clone()).await {
        text if text.contains("JSONPatch") => Ok(()),
        text => Err(text),
    })
    .await;
    let cpu = server.process().cpu().unwrap();
    let mut times = paced(&sender, &body).await;
    let cpu = server.process().cpu().unwrap() - cpu;
    times.sort_unstable();
    let at = |percent: usize| times[times.len() * percent / 100];
    println!(
        "{RATE} reviews a second for {SECONDS} s over TLS: CPU of the server {:.2?} a review; p50 {:.2?}, p99 {:.2?}, most {:.2?}",
        cpu / (RATE * SECONDS),
        at(50),
        at(99),
        times[times.len() - 1]
    );
    println!("memory of the server: {} KiB owned", server.process().owned_kib().unwrap());
}

/// Sends reviews at the rate, whether or not earlier ones were answered; returns their times.
async fn paced(sender: &SendRequest<Full<Bytes>>, body: &Bytes) -> Vec<Duration> {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE);
    let mut answers = JoinSet::new();
    for _ in 0..RATE * SECONDS {
        ticks.tick().await;
        let (sender, body) = (sender.clone(), body.clone());
        answers.spawn(async move {
            let begun = Instant::now();
            let text = answer(sender, body).await;
            assert!(text.contains("JSONPatch"), "{text}");
            begun.elapsed()
        });
    }
    answers.join_all().await
}

async fn answer(mut sender: SendRequest<Full<Bytes>>, body: Bytes) -> String {
    let request = Request::post("https://istiod.istio-system.svc/inject?timeout=10s");
    let request = request.header("content-type", "application/json").header("content-length", body.len());
    let response = sender.send_request(request.body(Full::new(body)).unwrap()).await.unwrap();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The review of a pod of a Deployment, as API servers send it.
fn review() -> serde_json::Value {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"generateName": "cart-7d9c-", "namespace": "shop",
            "labels": {"app": "cart", "pod-template-hash": "7d9c"}, "annotations": {"prometheus.io/port": "9102"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "cart-7d9c", "uid": "1",
                "controller": true}]},
        "spec": {"serviceAccountName": "cart", "containers": [{"name": "cart", "image": "cart:1", "resources": {},
            "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
            "readinessProbe": {"httpGet": {"path": "/ready", "port": "http", "scheme": "HTTP"}}}]},
        "status": {},
    });
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {"uid": "b2a4", "namespace": "shop", "operation": "CREATE", "dryRun": false, "object": pod}})
}
