//! What single clients may rely on: short names of endpoints, and an end to streams whose client takes no response.

#![allow(clippy::unwrap_used, reason = "a test has no better answer than a panic")]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use api::envoy::config::endpoint::v3::ClusterLoadAssignment;
use prost::Message;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::{client, wait};
use tonic::transport::Endpoint;
use xds::client::DeltaClient;

const SERVICES: usize = 1000;

/// A service of the mesh with an endpoint of version 1, and a subset of it.
const CART: &str = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: cart, namespace: shop}\n\
                    spec:\n  hosts: [cart.shop.svc.cluster.local]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
                    ports: [{name: http, number: 80, protocol: HTTP}]\n  \
                    endpoints: [{address: 10.0.0.9, labels: {version: v1}}]\n---\n\
                    apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: cart, namespace: shop}\n\
                    spec: {host: cart.shop.svc.cluster.local, subsets: [{name: v1, labels: {version: v1}}]}\n";

/// The addresses of the endpoints of each cluster, until all of them have this many.
async fn endpoints(client: &mut DeltaClient, names: &[&str], count: usize) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    while names.iter().any(|name| found.get(*name).is_none_or(|all: &Vec<String>| all.len() != count)) {
        let response = tokio::time::timeout(wait::PATIENCE, client.next()).await;
        let response = response.unwrap_or_else(|_| panic!("only {found:?}")).unwrap().unwrap();
        client.ack(&response);
        for resource in response.resources {
            let assignment = ClusterLoadAssignment::decode(&*resource.resource.unwrap().value).unwrap();
            let all = assignment.endpoints.iter().flat_map(|locality| &locality.lb_endpoints);
            found.insert(assignment.cluster_name, all.map(|endpoint| format!("{endpoint:?}")).collect());
        }
    }
    found
}

#[tokio::test]
async fn endpoints_of_a_short_name_are_those_of_the_full_name() {
    let files = vec![("cart.yaml".to_owned(), CART.to_owned())];
    let setup = DiscoveryOptions { files, ..DiscoveryOptions::default() };
    let server = DiscoveryProcess::start(env!("CARGO_BIN_EXE_pilot-discovery"), setup).await;
    let mut client = stream(&server).await;
    let clusters = client.next().await.unwrap().unwrap();
    client.ack(&clusters);
    let [full, short] = ["outbound|80||cart.shop.svc.cluster.local", "outbound|80||cart.shop"];
    let [full_subset, short_subset] = ["outbound|80|v1|cart.shop.svc.cluster.local", "outbound|80|v1|cart.shop"];
    let names = [full, short, full_subset, short_subset];
    client.subscribe(&TypeUrl::ENDPOINT, &names);
    let found = endpoints(&mut client, &names, 1).await;
    assert_eq!(found[full], found[short]);
    assert_eq!(found[full_subset], found[short_subset]);

    // A change of the endpoints is sent under both names.
    let two = "[{address: 10.0.0.9, labels: {version: v1}}, {address: 10.0.0.10, labels: {version: v1}}]";
    server.write("cart.yaml", &CART.replace("[{address: 10.0.0.9, labels: {version: v1}}]", two));
    let changed = endpoints(&mut client, &names, 2).await;
    assert_eq!(changed[full], changed[short]);
    assert_eq!(changed[full_subset], changed[short_subset]);
    assert!(changed[short][1].contains("10.0.0.10"), "{changed:?}");
}

/// A control plane whose clusters are larger than a client's window.
async fn server(env: &[(&str, &str)]) -> DiscoveryProcess {
    let mut text = String::new();
    for number in 0..SERVICES {
        writeln!(
            text,
            "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\n\
             metadata: {{name: s{number}, namespace: shop}}\nspec:\n  hosts: [s{number}.example.com]\n  \
             location: MESH_EXTERNAL\n  resolution: STATIC\n  ports: [{{name: http, number: 80, protocol: HTTP}}]\n  \
             endpoints: [{{address: 10.0.0.1}}]"
        )
        .unwrap();
    }
    let env = env.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    let files = vec![("services.yaml".to_owned(), text)];
    let setup = DiscoveryOptions { files, env, ..DiscoveryOptions::default() };
    DiscoveryProcess::start(env!("CARGO_BIN_EXE_pilot-discovery"), setup).await
}

/// A stream whose client has a small window.
async fn stream(server: &DiscoveryProcess) -> DeltaClient {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc())).unwrap();
    let endpoint = endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
    let node = Node { id: "sidecar~10.0.0.1~a.shop~shop.svc.cluster.local".to_owned(), ..Node::default() };
    let channel = endpoint.connect().await.unwrap();
    DeltaClient::open(channel, node, Default::default(), &TypeUrl::CLUSTER, &[]).await.unwrap()
}

async fn connections(server: &DiscoveryProcess) -> Result<usize, String> {
    let page = client::get(server.http(), "pilot", "/debug/connections").await?.json();
    Ok(page["clients"].as_array().map_or(0, Vec::len))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_takes_no_response_is_disconnected_and_counted() {
    let server = server(&[("PILOT_XDS_SEND_TIMEOUT", "1s")]).await;
    let (begun, stuck) = (Instant::now(), stream(&server).await);
    wait::until("a connected client", async || match connections(&server).await? {
        1 => Ok(()),
        other => Err(other.to_string()),
    })
    .await;
    wait::until("no client", async || match connections(&server).await? {
        0 => Ok(()),
        other => Err(other.to_string()),
    })
    .await;
    println!("disconnected after {:?}", begun.elapsed());
    let metrics = client::get(server.monitoring(), "pilot", "/metrics").await.unwrap().body;
    let counted = metrics.lines().find(|line| line.contains("refused_streams") && line.contains("DeadlineExceeded"));
    assert!(counted.is_some_and(|line| line.ends_with(" 1")), "{counted:?}");
    drop(stuck);
    // A client that reads, also slowly, gets everything and stays.
    let mut reader = stream(&server).await;
    let response = reader.next().await.unwrap().unwrap();
    assert!(response.resources.len() >= SERVICES);
    reader.ack(&response);
    tokio::time::timeout(Duration::from_secs(3), reader.next()).await.expect_err("the stream stays open");
    assert_eq!(connections(&server).await.unwrap(), 1);
}
