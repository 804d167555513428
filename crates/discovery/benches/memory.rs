//! Memory that a server owns (`RssAnon`), and with pages of its files: empty, and with 1000 services of 10 endpoints
//! each, before and after a client has read everything, and what a CA with its TLS port adds.
//! `cargo bench -p discovery --bench memory`; `PILOTAGE_DISCOVERY` names another binary to measure.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;
use std::{env, fs};

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use serde_json::json;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::ports;
use tonic::transport::Endpoint;
use trust::key::{KeyKind, PrivateKey};
use trust::token;
use xds::client::{DeltaClient, Held};

const SERVICES: usize = 1000;
const ENDPOINTS: usize = 10;
/// Long enough for temporary memory of a start or a client to be freed.
const REST: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() {
    let binary = env::var("PILOTAGE_DISCOVERY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_pilot-discovery").to_owned());
    let mut empty = DiscoveryProcess::start(&binary, DiscoveryOptions::default()).await;
    println!("empty: {}", weight(&mut empty).await);
    let folder = tempfile::tempdir().expect("a folder");
    let mut with_ca = DiscoveryProcess::start(&binary, trusting(folder.path())).await;
    println!("empty, with a CA, its TLS port and identities of clients: {}", weight(&mut with_ca).await);
    let files = vec![("services.yaml".to_owned(), services())];
    let options = DiscoveryOptions { files, ..DiscoveryOptions::default() };
    let mut full = DiscoveryProcess::start(&binary, options).await;
    println!("{SERVICES} services of {ENDPOINTS} endpoints: {}", weight(&mut full).await);
    let (clusters, endpoints) = read_all(&full).await;
    println!("and a client that holds {clusters} clusters, {endpoints} load assignments: {}", weight(&mut full).await);
}

/// A server with a self-signed root and a rule for tokens.
fn trusting(folder: &Path) -> DiscoveryOptions {
    let issuer = PrivateKey::generate(KeyKind::P256).expect("a key");
    let keys = folder.join("keys.json");
    fs::write(&keys, token::key_set(&issuer, "bench").expect("a key set")).expect("a file");
    let rule = json!({"issuer": "https://issuer.test", "audiences": ["istio-ca"],
        "jwks_uri": format!("file://{}", keys.display())});
    DiscoveryOptions {
        env: vec![("ROOT_CA_DIR".to_owned(), "/nonexistent".to_owned()), ("JWT_RULE".to_owned(), rule.to_string())],
        args: vec![
            format!("--secureGRPCAddr=127.0.0.1:{}", ports::free()),
            format!("--caDir={}", folder.join("ca").display()),
        ],
        ..DiscoveryOptions::default()
    }
}

async fn weight(server: &mut DiscoveryProcess) -> String {
    tokio::time::sleep(REST).await;
    let process = server.process();
    let [owned, resident] = [process.owned_kib(), process.memory_kib()].map(Option::unwrap_or_default);
    format!("{owned} KiB owned, {resident} KiB resident")
}

fn services() -> String {
    let mut text = String::new();
    for s in 0..SERVICES {
        let (high, low) = (s / 250, s % 250 + 1);
        let _ = write!(
            text,
            "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: s{s}, namespace: n{}}}\n\
             spec:\n  hosts: [s{s}.n{}.svc.cluster.local]\n  addresses: [10.96.{high}.{low}]\n  location: MESH_INTERNAL\n  \
             resolution: STATIC\n  ports: [{{name: http, number: 80, targetPort: 8080, protocol: HTTP}}]\n  endpoints:\n",
            s % 50,
            s % 50
        );
        for e in 0..ENDPOINTS {
            let _ = writeln!(
                text,
                "  - {{address: 10.{e}.{high}.{low}, labels: {{app: s{s}, version: v1}}, serviceAccount: s{s}}}"
            );
        }
    }
    text
}

/// Everything that an Envoy would subscribe to.
async fn read_all(server: &DiscoveryProcess) -> (usize, usize) {
    let node = Node { id: "sidecar~10.0.0.1~client.n1~n1.svc.cluster.local".to_owned(), ..Node::default() };
    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc())).expect("an address");
    let channel = endpoint.connect().await.expect("a connection");
    let mut client = DeltaClient::open(channel, node, Held::default(), &TypeUrl::CLUSTER, &[]).await.expect("a stream");
    let clusters = client.next().await.expect("clusters").expect("an open stream");
    client.ack(&clusters);
    let names: Vec<&str> = clusters.resources.iter().map(|r| &*r.name).filter(|n| n.starts_with("outbound|")).collect();
    client.subscribe(&TypeUrl::ENDPOINT, &names);
    let mut held = 0;
    while held < names.len() {
        let answer = client.next().await.expect("endpoints").expect("an open stream");
        if answer.type_url == TypeUrl::ENDPOINT.as_str() {
            held += answer.resources.len();
        }
        client.ack(&answer);
    }
    (clusters.resources.len(), held)
}
