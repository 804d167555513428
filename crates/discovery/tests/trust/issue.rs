//! Issuing: chain layout, renewal by certificate, names of the server, what is kept over a restart.

use std::fs;

use testkit::ca_client::{CaClient, call_over};
use testkit::{client, wait};
use tokio::net::TcpStream;
use trust::bundle::RootBundle;
use trust::certificate::Certificate;

use crate::fixture::{FRONT, Mesh, assert_refused, now};

#[tokio::test]
async fn a_token_gets_a_certificate_which_gets_the_next_one() {
    let mesh = Mesh::start(&[]).await;
    let client = mesh.client().await;
    let (own, reply) = client.certificate("spiffe://cluster.local/ns/bank/sa/admin", 600).await.unwrap();
    assert_eq!(reply.len(), 2, "the leaf and the roots");
    assert_eq!(reply[1], mesh.roots().await);
    let leaf = &Certificate::all_from_pem(&reply[0]).unwrap()[0];
    assert_eq!(leaf.uris, [FRONT], "the identity of the token, not of the CSR");
    assert!((now() + 590..=now() + 600).contains(&leaf.not_after));
    assert!(leaf.is_signed_by(&RootBundle::from_pem(&reply[1]).unwrap().roots()[0]));
    let renewing = CaClient::new(mesh.secure, &reply[1], Some(&own), None);
    let (_, renewed) = renewing.certificate(FRONT, 0).await.unwrap();
    assert_eq!(Certificate::all_from_pem(&renewed[0]).unwrap()[0].uris, [FRONT]);
    assert_eq!(mesh.metric("citadel_server_csr_count").await, 2.0);
    assert_eq!(mesh.metric("citadel_server_success_cert_issuance_count").await, 2.0);
    assert!(mesh.metric("citadel_server_root_cert_expiry_seconds").await > 3649.0 * 86_400.0);
}

#[tokio::test]
async fn the_server_has_upstreams_names_and_custom_ones() {
    let mesh = Mesh::start(&[("ISTIOD_CUSTOM_HOST", "127.0.0.1,ca.example"), ("REVISION", "canary")]).await;
    for name in ["istiod", "istiod-remote", "istio-pilot", "istiod-canary"] {
        let client = CaClient { name: format!("{name}.istio-system.svc"), ..mesh.client().await };
        client.certificate(FRONT, 0).await.unwrap();
    }
    for name in ["", "ca.example"] {
        let client = CaClient { name: name.to_owned(), ..mesh.client().await };
        client.certificate(FRONT, 0).await.unwrap();
    }
    let other = CaClient { name: "istiod.other.svc".to_owned(), ..mesh.client().await };
    assert_eq!(other.certificate(FRONT, 0).await.unwrap_err().0, -1, "the handshake fails");
}

#[tokio::test]
async fn certificates_are_never_issued_in_plain_text() {
    let mesh = Mesh::start(&[]).await;
    let headers = mesh.client().await.headers;
    let stream = TcpStream::connect(mesh.server.grpc()).await.unwrap();
    assert_refused("plain text", call_over(stream, &headers, &[]).await, tonic::Code::Unimplemented);
}

#[tokio::test]
async fn a_root_survives_a_restart() {
    let mut mesh = Mesh::start(&[]).await;
    let before = mesh.serves_an_honest_caller().await;
    let roots = mesh.roots().await;
    mesh.server.restart().await;
    assert_eq!(mesh.roots().await, roots);
    let renewing = CaClient::new(mesh.secure, &roots, Some(&before), None);
    testkit::wait::until("a renewal after the restart", async || {
        renewing.certificate(FRONT, 0).await.map_err(|refusal| format!("{refusal:?}"))
    })
    .await;
}

#[tokio::test]
async fn without_a_ca_the_service_does_not_exist() {
    let mesh = Mesh::start_in(tempfile::tempdir().unwrap(), &[("ENABLE_CA_SERVER", "false")]).await;
    assert!(TcpStream::connect(mesh.secure).await.is_err(), "the TLS port is off");
}

/// The API server calls the webhooks of a ready server, so it must have its certificate by then.
#[tokio::test]
async fn a_server_is_ready_once_it_has_its_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let ca = folder.path().join("ca");
    fs::create_dir(&ca).unwrap();
    // While another server holds the lock of the folder, no root is made.
    let lock = fs::File::create(ca.join("lock")).unwrap();
    lock.lock().unwrap();
    let mut mesh = Mesh::start_unready(folder, &[], Vec::new(), Vec::new()).await;
    wait::until("only the certificate is missing", async || {
        let reply = client::get(mesh.server.http(), "discovery", "/ready").await?;
        let is_waiting = reply.status == 503 && reply.body.contains("waiting for the certificate of this server");
        if is_waiting { Ok(()) } else { Err(format!("{} {}", reply.status, reply.body)) }
    })
    .await;
    lock.unlock().unwrap();
    mesh.server.ready().await;
    mesh.serves_an_honest_caller().await;
}
