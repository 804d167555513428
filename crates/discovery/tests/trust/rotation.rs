//! Rotation of a self-signed root, on request, with clients of all ages.

use testkit::ca_client::CaClient;
use testkit::{client, wait};
use trust::bundle::RootBundle;

use crate::fixture::{FRONT, Mesh};

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
