//! Rotation of a self-signed root, on request, with clients of all ages.

use std::fs;

use model::config::timestamp;
use serde_json::Value;
use testkit::ca_client::CaClient;
use testkit::{client, wait};
use trust::bundle::RootBundle;
use trust::certificate::Certificate;

use crate::fixture::{FRONT, Mesh};

fn lifetime(reply: &[String]) -> i64 {
    let leaf = &Certificate::all_from_pem(&reply[0]).unwrap()[0];
    leaf.not_after - leaf.not_before - 120
}

fn about(seconds: i64) -> std::ops::RangeInclusive<i64> {
    seconds - 2..=seconds + 2
}

/// Asks for a rotation, and returns the CA's state once it is announced.
async fn announced(mesh: &Mesh) -> Value {
    let request = http::Request::post("/debug/trustz?rotate=true").header("host", "localhost").body(String::new());
    let reply = client::send(mesh.server.monitoring(), request.unwrap()).await.unwrap();
    assert_eq!(reply.json()["rotationRequested"], true);
    until_step(mesh, "announced").await;
    serde_json::from_str::<Value>(&mesh.page("/debug/trustz").await).unwrap()["authority"].clone()
}

fn seconds_between(state: &Value, one: &str, other: &str) -> i64 {
    let [one, other] = [one, other].map(|name| timestamp::parse(state[name].as_str().unwrap()).unwrap().0);
    other - one
}

/// A workload that renews its certificate after ten hours learns the new root in time.
#[tokio::test]
async fn a_step_waits_for_certificates_that_live_long() {
    let mesh = Mesh::start(&[("DEFAULT_WORKLOAD_CERT_TTL", "1h")]).await;
    mesh.serves_an_honest_caller().await;
    let stored = || fs::read_to_string(mesh.path("ca/istio-ca-secret.json")).unwrap();
    let recorded = |text: &str| serde_json::from_str::<Value>(text).unwrap()["pilotage-longest-leaf"].clone();
    assert_eq!(recorded(&stored()), "3600");
    let client = mesh.client().await;
    let (_, long) = client.certificate(FRONT, 36_000).await.unwrap();
    assert!(about(36_000).contains(&lifetime(&long)), "{}", lifetime(&long));
    // In whole days, and written before the certificate was issued.
    assert_eq!(recorded(&stored()), "86400");
    let state = announced(&mesh).await;
    assert_eq!(seconds_between(&state, "since", "stepEnd"), 86_400 + 120, "{state}");
    // Until the new root signs, all certificates are short.
    for (requested, expected) in [(36_000, 3600), (0, 3600), (60, 60)] {
        let (_, reply) = client.certificate(FRONT, requested).await.unwrap();
        assert!(about(expected).contains(&lifetime(&reply)), "{requested}: {}", lifetime(&reply));
    }
    assert_eq!(recorded(&stored()), "86400", "the step does not grow");
}

async fn until_step(mesh: &Mesh, step: &str) {
    let line = format!("pilotage_root_rotation_step{{step=\"{step}\"}}");
    wait::until(&format!("step {step}"), async || {
        if mesh.metric(&line).await == 1.0 { Ok(()) } else { Err(mesh.page("/debug/trustz").await) }
    })
    .await;
}

#[tokio::test]
async fn a_requested_rotation_passes_through_its_steps() {
    let mesh = Mesh::start(&[("PILOTAGE_ROOT_ROTATION_STEP", "4s")]).await;
    let old = mesh.serves_an_honest_caller().await;
    let old_roots = mesh.roots().await;
    let address = mesh.server.monitoring();
    let refused = client::get(address, "discovery", "/debug/trustz?rotate=true").await.unwrap();
    assert_eq!(refused.status, 405, "a GET changes nothing");
    let request = http::Request::post("/debug/trustz?rotate=true").header("host", "localhost").body(String::new());
    let reply = client::send(address, request.unwrap()).await.unwrap();
    assert_eq!(reply.json()["rotationRequested"], true);
    until_step(&mesh, "announced").await;
    let both = mesh.roots().await;
    assert_eq!(RootBundle::from_pem(&both).unwrap().roots().len(), 2);
    assert!(both.starts_with(&old_roots), "the old root is still the first");
    // A client that has not learned the new root yet.
    let (_, reply) = CaClient::new(mesh.secure, &old_roots, Some(&old), None).certificate(FRONT, 0).await.unwrap();
    assert_eq!(reply.last(), Some(&both));
    until_step(&mesh, "signing").await;
    // One that has learned it, with a certificate of the old root.
    let (new, _) = CaClient::new(mesh.secure, &both, Some(&old), None).certificate(FRONT, 0).await.unwrap();
    until_step(&mesh, "alone").await;
    let alone = mesh.roots().await;
    assert!(both.ends_with(&alone) && alone != old_roots);
    CaClient::new(mesh.secure, &alone, Some(&new), None).certificate(FRONT, 0).await.unwrap();
    // The old root is no longer trusted: its certificates do not open a connection.
    let late = CaClient::new(mesh.secure, &alone, Some(&old), None).certificate(FRONT, 0).await;
    assert_eq!(late.unwrap_err().0, -1);
}
