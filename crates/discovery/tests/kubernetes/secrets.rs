//! A gateway that ends TLS with a Secret of the cluster: from the API server to a handshake, and again after the Secret
//! was replaced.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use testkit::certificates::{Authority, Certificate};
use testkit::envoy::{Bootstrap, Envoy, Transport};
use testkit::tls::TlsClient;
use testkit::{ports, wait};

use crate::cluster::{cluster, create, is_left_out};
use crate::serving::serve;

const SECRET: &str = "/api/v1/namespaces/edge/secrets/cert";

pub(crate) fn entries(certificate: &Certificate) -> Value {
    let encoded = |text: &str| BASE64_STANDARD.encode(text);
    json!({"tls.crt": encoded(&certificate.chain), "tls.key": encoded(&certificate.key)})
}

fn objects(port: u16, certificate: &Certificate) -> Vec<Value> {
    let tls = json!({"mode": "SIMPLE", "credentialName": "cert"});
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "edge"}}),
        json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": {"name": "cert", "namespace": "edge"}, "data": entries(certificate)}),
        json!({"apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": {"name": "edge", "namespace": "edge"},
            "spec": {"selector": {"app": "edge"}, "servers": [
                {"port": {"number": port, "name": "https", "protocol": "HTTPS"}, "hosts": ["a.example"], "tls": tls}]}}),
        json!({"apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
            "metadata": {"name": "a", "namespace": "edge"},
            "spec": {"hosts": ["a.example"], "gateways": ["edge"],
                "http": [{"directResponse": {"status": 200, "body": {"string": "hello"}}}]}}),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_shows_the_certificate_of_a_secret_and_its_successor() {
    if is_left_out(&["envoy"]) {
        return;
    }
    let api_server = cluster().await;
    let (first, second) = (Authority::new(), Authority::new());
    let port = ports::free();
    create(&api_server, &objects(port, &first.host("a.example"))).await;
    let trusting = [("PILOTAGE_TRUST_PLAINTEXT".to_owned(), "true".to_owned())];
    let server = serve(api_server.kubeconfig(), None, &trusting).await;
    let ads = server.addresses.grpc.unwrap().port();
    for transport in [Transport::Sotw, Transport::Delta] {
        api_server.patch(SECRET, &json!({"data": entries(&first.host("a.example"))})).await.unwrap();
        let mut envoy = Envoy::start(&Bootstrap::router(ads, transport, "edge", "edge", json!({"app": "edge"}))).await;
        envoy.ready().await;
        let address = envoy.listener(&format!("0.0.0.0_{port}")).await;
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], address.port()));
        let get = async |authority: &Authority| {
            let client = TlsClient::new(authority, None, &[]);
            client.get(address, "a.example", "a.example", "/").await.map(|reply| reply.body)
        };
        wait::until("the certificate of the Secret", async || get(&first).await.map(drop)).await;
        assert_eq!(get(&first).await.as_deref(), Ok("hello"));
        api_server.patch(SECRET, &json!({"data": entries(&second.host("a.example"))})).await.unwrap();
        wait::until("its successor", async || get(&second).await.map(drop)).await;
        assert!(get(&first).await.is_err(), "the old certificate is gone");
    }
    server.stop(Duration::ZERO).await;
}
