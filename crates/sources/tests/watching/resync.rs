//! An API server whose watches send no events: changes are found by listing again, and only changes are sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use http::{Response, StatusCode};
use model::settings::Settings;
use serde_json::{Value, json};
use sources::kubernetes::access::Access;
use sources::kubernetes::join::ClusterOptions;
use sources::kubernetes::session::WatchOptions;
use sources::kubernetes::source::Kubernetes;
use testkit::scripted::{ScriptedRequest, ScriptedServer};
use testkit::wait;
use tokio::sync::watch;

use crate::follower::Follower;

const SERVICES: &str = "/api/v1/services";

/// An API server with one Service on this port. It rejects streaming lists, as old versions do.
async fn silent(port: Arc<AtomicU16>) -> ScriptedServer {
    ScriptedServer::start(move |asked: ScriptedRequest| {
        let port = port.load(Ordering::Relaxed);
        async move {
            match asked.parameter("watch") {
                Some(_) if asked.parameter("sendInitialEvents").is_some() => refusal(),
                Some(_) => std::future::pending().await,
                None => list(&asked, port),
            }
        }
    })
    .await
}

fn refusal() -> Response<String> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 422,
        "reason": "Invalid", "message": "sendInitialEvents is forbidden"});
    let mut response = Response::new(status.to_string());
    *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
    response
}

fn list(asked: &ScriptedRequest, port: u16) -> Response<String> {
    let service = json!({"metadata": {"name": "web", "namespace": "shop"},
        "spec": {"clusterIP": "10.96.0.9", "ports": [{"name": "http", "port": port}]}});
    let items: Vec<Value> = if asked.path == SERVICES { vec![service] } else { Vec::new() };
    Response::new(json!({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}).to_string())
}

fn source(server: &ScriptedServer, folder: &tempfile::TempDir, resync: Duration) -> Kubernetes {
    let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": server.url()}}], "users": [{"name": "a", "user": {}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]});
    let file = folder.path().join("kubeconfig");
    std::fs::write(&file, kubeconfig.to_string()).unwrap();
    let settings = Settings::default();
    let options = ClusterOptions::own(&settings);
    let watch_options = WatchOptions { resync: Some(resync), ..WatchOptions::default() };
    let (sender, receiver) = watch::channel(Some(settings.clone()));
    // The channel must stay open.
    tokio::spawn(async move { sender.closed().await });
    Kubernetes::primary(Access::kubeconfig(file, None), watch_options, options, receiver, settings)
}

#[tokio::test]
async fn a_resync_finds_changes_without_events_and_sends_nothing_else() {
    let port = Arc::new(AtomicU16::new(80));
    let server = silent(port.clone()).await;
    let folder = tempfile::tempdir().unwrap();
    let mut follower = Follower::synced(source(&server, &folder, Duration::from_millis(200))).await;
    let services = follower.services.clone();
    assert_eq!(services.len(), 1);
    let lists = || server.requests().iter().filter(|a| a.path == SERVICES && a.parameter("watch").is_none()).count();
    wait::until("lists without a change", async || if lists() >= 4 { Ok(()) } else { Err(lists().to_string()) }).await;
    assert_eq!(follower.waiting(), 0, "sent although nothing changed");

    port.store(8080, Ordering::Relaxed);
    follower
        .until("the lost change", |f| f.services.values().any(|s| s.ports.iter().any(|port| port.number == 8080)))
        .await;
    assert_eq!(follower.services.len(), 1);
}
