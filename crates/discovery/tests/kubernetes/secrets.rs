//! A gateway that terminates TLS with a Secret of the cluster, before and after the Secret is replaced. The content of
//! Secrets that no object refers to is not kept in memory.

use std::time::Duration;

use api::TypeUrl;
use api::envoy::config::core::v3::{DataSource, Node, data_source};
use api::envoy::extensions::transport_sockets::tls::v3::{Secret, secret};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use discovery::startup::Server;
use prost::Message;
use serde_json::{Value, json};
use testkit::certificates::{Authority, Certificate};
use testkit::envoy::{Bootstrap, Envoy, XdsTransport};
use testkit::tls::TlsClient;
use testkit::{ports, wait};
use tonic::transport::Endpoint;
use xds::client::SotwClient;

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
async fn a_gateway_presents_the_certificate_of_a_secret_and_its_replacement() {
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
    for transport in [XdsTransport::Sotw, XdsTransport::Delta] {
        api_server.patch(SECRET, &json!({"data": entries(&first.host("a.example"))})).await.unwrap();
        let mut envoy = Envoy::start(&Bootstrap::router(ads, transport, "edge", "edge", json!({"app": "edge"}))).await;
        envoy.ready().await;
        let address = envoy.listener(&format!("0.0.0.0_{port}")).await;
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], address.port()));
        let get = async |authority: &Authority| {
            let client = TlsClient::new(authority, None, &[]);
            client.get(address, "a.example", "a.example", "/").await.map(|reply| reply.body)
        };
        wait::until("the certificate of the Secret", async || Ok(get(&first).await.map(drop)?)).await;
        assert_eq!(get(&first).await.as_deref(), Ok("hello"));
        api_server.patch(SECRET, &json!({"data": entries(&second.host("a.example"))})).await.unwrap();
        wait::until("its successor", async || Ok(get(&second).await.map(drop)?)).await;
        assert!(get(&first).await.is_err(), "the old certificate is gone");
    }
    server.stop(Duration::ZERO).await;
}

const MANY: usize = 40;
const GATEWAY: &str = "/apis/networking.istio.io/v1/namespaces/edge/gateways/edge";

fn secret_named(name: &str, certificate: &Certificate) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": name, "namespace": "edge"}, "data": entries(certificate)})
}

/// A gateway with a server for each of these Secrets.
fn gateway(names: &[&str]) -> Value {
    let servers: Vec<Value> = names
        .iter()
        .map(|name| {
            json!({"port": {"number": 443, "name": format!("https-{name}"), "protocol": "HTTPS"},
                "hosts": [format!("{name}.example")], "tls": {"mode": "SIMPLE", "credentialName": name}})
        })
        .collect();
    json!({"apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": {"name": "edge", "namespace": "edge"},
        "spec": {"selector": {"app": "edge"}, "servers": servers}})
}

/// Names of the Secrets whose content is in memory.
fn held(server: &Server) -> Vec<String> {
    let world = server.pilot.world().now();
    let held = world.snapshot.credentials.iter().filter(|(_, credential)| credential.has_content());
    held.map(|(key, _)| key.name.to_string()).collect()
}

async fn until_held(server: &Server, names: &[&str]) {
    wait::until_within(Duration::from_secs(60), "the named Secrets alone", async || match held(server) {
        held if held == names => Ok(()),
        held => Err(format!("{held:?}")),
    })
    .await;
}

/// A stream of the gateway's proxy that subscribes to a Secret.
async fn follow(server: &Server, name: &str) -> SotwClient {
    let node = Node { id: "router~10.4.9.9~edge.edge~edge.svc.cluster.local".to_owned(), ..Node::default() };
    let channel = Endpoint::from_shared(format!("http://{}", server.addresses.grpc.unwrap())).unwrap().connect_lazy();
    SotwClient::open(channel, node, &TypeUrl::SECRET, &[&format!("kubernetes://{name}")]).await.unwrap()
}

/// The next certificate that the proxy gets.
async fn certificate(client: &mut SotwClient) -> String {
    let response = tokio::time::timeout(Duration::from_secs(60), client.next()).await.expect("no answer");
    let response = response.unwrap().unwrap();
    client.ack(&response);
    let Some(secret::Type::TlsCertificate(pair)) = Secret::decode(&*response.resources[0].value).unwrap().r#type else {
        panic!("no certificate: {response:?}")
    };
    match pair.certificate_chain {
        Some(DataSource { specifier: Some(data_source::Specifier::InlineBytes(bytes)), .. }) => {
            String::from_utf8(bytes.to_vec()).unwrap()
        }
        other => panic!("no certificate: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_secrets_that_an_object_refers_to_are_kept() {
    if is_left_out(&[]) {
        return;
    }
    let api_server = cluster().await;
    let authority = Authority::new();
    let (old, new) = (authority.host("one.example"), authority.host("one.example"));
    let mut objects = vec![json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "edge"}})];
    objects.extend((0..MANY).map(|number| secret_named(&format!("s{number}"), &old)));
    objects.push(gateway(&["s0"]));
    create(&api_server, &objects).await;
    let trusting = [("PILOTAGE_TRUST_PLAINTEXT".to_owned(), "true".to_owned())];
    let server = serve(api_server.kubeconfig(), None, &trusting).await;
    until_held(&server, &["s0"]).await;
    let known = server.pilot.world().now().snapshot.credentials.iter().count();
    println!("{known} Secrets and ConfigMaps known, content held of {:?}", held(&server));
    assert!(known >= MANY, "{known}");

    // A Secret that is referred to later is fetched.
    let mut proxy = follow(&server, "s1").await;
    api_server.patch(GATEWAY, &gateway(&["s0", "s1"])).await.unwrap();
    assert_eq!(certificate(&mut proxy).await, old.chain);
    // Changes of a Secret with a reference arrive by the watch; content without a reference is dropped.
    for name in ["s1", "s2"] {
        let path = format!("/api/v1/namespaces/edge/secrets/{name}");
        api_server.patch(&path, &json!({"data": entries(&new)})).await.unwrap();
    }
    assert_eq!(certificate(&mut proxy).await, new.chain);
    until_held(&server, &["s0", "s1"]).await;
    api_server.patch(GATEWAY, &gateway(&["s2"])).await.unwrap();
    until_held(&server, &["s2"]).await;
    let mut proxy = follow(&server, "s2").await;
    assert_eq!(certificate(&mut proxy).await, new.chain);
    server.stop(Duration::ZERO).await;
}
