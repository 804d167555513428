//! The status writer against a fake API server, for answers that a real one gives only in a race.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;
use model::config::{Key, Kind};
use model::snapshot::gateway_api::ConvertedConfig;
use serde_json::{Value, json};
use sources::kubernetes::access::Access;
use sources::status::StatusWriter;
use testkit::fake_api::{FakeApi, full};
use testkit::wait;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const ROUTE: &str = "/apis/gateway.networking.k8s.io/v1/namespaces/shop/httproutes/first";

fn route() -> Value {
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"name": "first", "namespace": "shop", "uid": "2", "resourceVersion": "7"}})
}

fn key() -> Key {
    Key { kind: Kind::HttpRoute, namespace: "shop".into(), name: "first".into() }
}

/// The only object of a kind is deleted and created again. The write falls between both, and the model sees no change.
#[tokio::test(flavor = "multi_thread")]
async fn the_only_object_of_a_kind_gets_its_status_after_it_was_not_found() {
    let reads = Arc::new(AtomicUsize::new(0));
    let counted = reads.clone();
    let api = FakeApi::start(move |asked| {
        if asked.path == ROUTE && counted.fetch_add(1, Ordering::SeqCst) == 0 {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                "reason": "NotFound", "message": "not found"});
            let mut missing = full(status.to_string());
            *missing.status_mut() = StatusCode::NOT_FOUND;
            return Some(missing);
        }
        asked.path.starts_with(ROUTE).then(|| full(route().to_string()))
    })
    .await;
    api.set("httproutes", vec![route()]);
    let status = json!({"parents": [{"controllerName": "istio.io/gateway-controller", "conditions": [],
        "parentRef": {"name": "front"}}]});
    let mut config = ConvertedConfig::default();
    config.statuses.insert(key(), Arc::new(status));
    let (_sender, wanted) = watch::channel(Arc::new(config));
    let writer = StatusWriter {
        access: Access::kubeconfig(api.kubeconfig().to_owned(), None),
        controller: "istio.io/gateway-controller".to_owned(),
        class: None,
        election: None,
        gateway_api: true,
    };
    let stop = CancellationToken::new();
    let writing = tokio::spawn(writer.run(wanted, stop.clone()));
    wait::until_within(Duration::from_secs(30), "the status", async || {
        let requests = api.requests();
        match requests.iter().any(|asked| asked.path == format!("{ROUTE}/status")) {
            true => Ok(()),
            false => Err(format!("{} requests", requests.len())),
        }
    })
    .await;
    assert!(reads.load(Ordering::SeqCst) > 1, "the first write did not fail");
    stop.cancel();
    writing.await.unwrap();
}
