//! istiod reads its configuration from our server over xDS and serves it. Runs only where istiod is on this machine.

use std::fs;

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::istiod::Istiod;
use testkit::{client, wait};
use tonic::transport::Endpoint;
use xds::client::SotwClient;

use crate::cluster::{cluster, is_left_out};

const ENTRY: &str = "\
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.shop.example]
  addresses: [10.9.0.1]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.0.0.1}]
";

/// istiod without its CA.
const SERVING_ALONE: [(&str, &str); 3] =
    [("ENABLE_CA_SERVER", "false"), ("PILOT_CERT_PROVIDER", "none"), ("XDS_AUTH", "false")];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn istiod_serves_what_it_reads_from_us() {
    if is_left_out(&[]) || !testkit::servers::has("istiod") {
        return;
    }
    let api_server = cluster().await;
    let env = vec![("ENABLE_XDS_API_GENERATOR_AUTH".to_owned(), "false".to_owned())];
    let files = vec![("shop.yaml".to_owned(), ENTRY.to_owned())];
    // Mock is an example of a registry that istiod does not have.
    let setup =
        DiscoveryOptions { files, env, args: vec!["--registries=Mock".to_owned()], ..DiscoveryOptions::default() };
    let mut ours = DiscoveryProcess::start(env!("CARGO_BIN_EXE_pilot-discovery"), setup).await;

    let folder = tempfile::tempdir().unwrap();
    let [mesh, networks] = ["mesh.yaml", "networks.yaml"].map(|name| folder.path().join(name));
    fs::write(&mesh, format!("configSources: [{{address: 'xds://{}'}}]\n", ours.grpc())).unwrap();
    fs::write(&networks, "networks: {}\n").unwrap();
    let env = SERVING_ALONE.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let mut istiod = Istiod::start(&api_server, (&mesh, &networks), &env).await;
    let (grpc, http) = (istiod.grpc(), istiod.http());
    let mut endpoints = async |address: &str, is_there: bool| {
        wait::until(&format!("{address}: {is_there}"), async || {
            istiod.process().check_alive();
            let page = client::get(http, "istiod", "/debug/endpointz").await?.body;
            if page.contains(&format!("\"{address}\"")) == is_there { Ok(()) } else { Err(page) }
        })
        .await;
    };
    endpoints("10.0.0.1", true).await;
    endpoints("10.1.1.0", true).await; // of Mock's hello
    ours.write("shop.yaml", &ENTRY.replace("10.0.0.1", "10.0.0.2"));
    endpoints("10.0.0.2", true).await;
    endpoints("10.0.0.1", false).await;
    ours.restart().await;
    ours.write("shop.yaml", &ENTRY.replace("10.0.0.1", "10.0.0.3"));
    endpoints("10.0.0.3", true).await;

    let channel = Endpoint::from_shared(format!("http://{grpc}")).unwrap().connect().await.unwrap();
    let node = Node { id: "sidecar~127.0.0.1~a-1.shop~shop.svc.cluster.local".to_owned(), ..Node::default() };
    let mut stream = SotwClient::open(channel, node, &TypeUrl::CLUSTER, &[]).await.unwrap();
    // An istiod that has just started may push in several steps.
    let names = ["outbound|80||web.shop.example", "outbound|90||hello.default.svc.cluster.local"];
    loop {
        let clusters = tokio::time::timeout(wait::PATIENCE, stream.next()).await.unwrap().unwrap().unwrap();
        stream.ack(&clusters);
        let text: String = clusters.resources.iter().map(|any| String::from_utf8_lossy(&any.value)).collect();
        if names.iter().all(|name| text.contains(name)) {
            break;
        }
    }
}
