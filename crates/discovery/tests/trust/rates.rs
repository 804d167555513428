//! The rate of `CreateCertificate` is limited for each identity: one that floods the CA is refused, others are served.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use testkit::ca_client::CaClient;
use testkit::wait;
use tonic::Code;
use trust::wire::{CREATE_CERTIFICATE, IstioCertificateRequest};

use crate::fixture::{FRONT, Mesh};
use crate::streams::secured;

/// Requests that an identity has at once; more come with time.
const BURST: usize = 2000;
const BATCH: usize = 500;
const MOST: usize = 20_000;

/// Sends a request without a usable CSR; returns the gRPC code.
async fn code(mut sender: SendRequest<Full<Bytes>>, token: &str) -> i32 {
    let message = IstioCertificateRequest { csr: "none".to_owned(), ..Default::default() }.encode_to_vec();
    let frame = [&[0], &(message.len() as u32).to_be_bytes()[..], &message].concat();
    let request = Request::post(format!("http://ca{CREATE_CERTIFICATE}"))
        .header("content-type", "application/grpc")
        .header("authorization", format!("Bearer {token}"))
        .body(Full::from(frame));
    let (head, body) = sender.send_request(request.unwrap()).await.unwrap().into_parts();
    let body = body.collect().await.unwrap();
    let headers = body.trailers().filter(|all| all.contains_key("grpc-status")).unwrap_or(&head.headers);
    headers["grpc-status"].to_str().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_identity_that_floods_the_ca_is_refused_and_others_are_served() {
    let mesh = Mesh::start(&[]).await;
    let stream = secured(&mesh, None).await;
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let flood = mesh.token("front");
    let (mut answered, mut refused) = (0, 0);
    while refused == 0 && answered < MOST {
        let codes = (0..BATCH).map(|_| code(sender.clone(), &flood));
        for code in futures_util::future::join_all(codes).await {
            match code {
                code if code == Code::InvalidArgument as i32 => answered += 1,
                code if code == Code::ResourceExhausted as i32 => refused += 1,
                other => panic!("code {other}"),
            }
        }
    }
    eprintln!("{answered} requests were answered before {refused} were refused");
    assert!(refused > 0 && answered >= BURST, "{answered} answered, {refused} refused");
    // Another identity is served at once, and this one after a while.
    let client = CaClient::new(mesh.secure, &mesh.roots().await, None, Some(&mesh.token("back")));
    client.certificate("spiffe://cluster.local/ns/shop/sa/back", 0).await.unwrap();
    let client = mesh.client().await;
    wait::until_within(Duration::from_secs(30), "the first identity", async || {
        client.certificate(FRONT, 0).await.map(drop).map_err(|refusal| format!("{refusal:?}"))
    })
    .await;
}
