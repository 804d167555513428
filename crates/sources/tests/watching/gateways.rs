//! The deployment of gateways against a fake API server that refuses every write with a conflict, as one does whose objects
//! another writer changes all the time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::StatusCode;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sources::gateways::{DeploymentProblems, GatewayDeployer, GatewayDeployment, GatewayName, WantedDeployments};
use sources::kubernetes::access::Access;
use testkit::fake_api::{FakeApi, FakeResponse, full};
use testkit::wait;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const SERVICE: &str = "/api/v1/namespaces/shop/services/front-istio";
const PATIENCE: Duration = Duration::from_secs(60);
/// Writes of one object before it is left for a while.
const TRIES: usize = 5;

fn service() -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "front-istio", "namespace": "shop"}})
}

fn status(code: StatusCode, reason: &str) -> FakeResponse {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(),
        "reason": reason, "message": "the object has been modified"});
    let mut response = full(status.to_string());
    *response.status_mut() = code;
    response
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_refuses_each_write_with_a_conflict_is_not_flooded() {
    let (writes, refuses) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(true)));
    let (seen, is_refused) = (writes.clone(), refuses.clone());
    let api = FakeApi::start(move |asked| match (asked.path == SERVICE, asked.parameter("fieldManager").is_some()) {
        (true, true) => {
            seen.lock().push(Instant::now());
            let mut written = service();
            written["metadata"]["resourceVersion"] = json!("8");
            let conflict = is_refused.load(Ordering::SeqCst);
            Some(if conflict { status(StatusCode::CONFLICT, "Conflict") } else { full(written.to_string()) })
        }
        (true, false) => Some(status(StatusCode::NOT_FOUND, "NotFound")),
        _ => None,
    })
    .await;
    let gateway = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "front", "namespace": "shop", "uid": "1", "resourceVersion": "7"}});
    api.set("gateways", vec![gateway]);
    let deployer = GatewayDeployer { access: Access::kubeconfig(api.kubeconfig().to_owned(), None), election: None };
    let name = GatewayName { namespace: "shop".to_owned(), name: "front".to_owned() };
    let deployment = GatewayDeployment { objects: Arc::new(vec![service()]), content: 1, ..Default::default() };
    let wanted: WantedDeployments = [(name.clone(), Arc::new(deployment))].into();
    let (_sender, wanted) = watch::channel(wanted);
    let (sender, mut problems) = watch::channel(DeploymentProblems::new());
    let stop = CancellationToken::new();
    let running = tokio::spawn(deployer.run(wanted, sender, stop.clone()));

    let named = tokio::time::timeout(PATIENCE, problems.wait_for(|all| !all.is_empty())).await;
    let named = named.expect("no problem").unwrap()[&name].clone();
    let expected = "could not write Service shop/front-istio: other writers changed it 5 times in a row";
    assert_eq!(named, [expected]);
    wait::until_within(PATIENCE, "two more attempts", async || match writes.lock().len() {
        count if count >= 3 * TRIES => Ok(()),
        count => Err(format!("{count} writes")),
    })
    .await;
    let at = writes.lock().clone();
    let pauses = [TRIES, 2 * TRIES].map(|next| at[next] - at[next - 1]);
    println!("{} writes, pauses {pauses:?}", at.len());
    assert!(pauses.iter().all(|pause| *pause > Duration::from_millis(400)), "no pause between attempts: {pauses:?}");

    // The conflicts end: the object is written, and there is no problem any more.
    refuses.store(false, Ordering::SeqCst);
    let ended = tokio::time::timeout(PATIENCE, problems.wait_for(BTreeMap::is_empty)).await;
    ended.expect("the problem stays").unwrap();
    stop.cancel();
    running.await.unwrap();
}
