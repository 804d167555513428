//! The server and the client of this crate talking over real gRPC on loopback.

mod support;

use std::time::Duration;

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use api::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use api::{Struct, Value, value::Kind};
use prost::Message;
use tokio::time::timeout;
use tonic::Code;
use xds::client::{DeltaClient, SotwClient};

use support::{Mesh, Server, node};

const SOON: Duration = Duration::from_secs(10);

fn bodies(resources: &[api::Any]) -> Vec<String> {
    resources.iter().map(|any| String::from_utf8_lossy(&any.value).into_owned()).collect()
}

#[tokio::test]
async fn sotw_client_follows_the_world() {
    let server = Server::start(Mesh::new(&[(TypeUrl::CLUSTER, &["a=1"])])).await;
    let mut client = SotwClient::open(server.channel().await, node("one"), &TypeUrl::CLUSTER, &[]).await.unwrap();
    let first = client.next().await.unwrap().unwrap();
    assert_eq!(bodies(&first.resources), ["a=1"]);
    assert_eq!(first.control_plane.as_ref().unwrap().identifier, "loopback");
    client.ack(&first);
    server.mesh.publish(&[(TypeUrl::CLUSTER, &["a=1", "b=1"])]);
    let second = timeout(SOON, client.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(bodies(&second.resources), ["a=1", "b=1"]);
    assert_ne!(first.version_info, second.version_info);
}

#[tokio::test]
async fn delta_client_reconnects_with_what_it_holds() {
    let world: &[(TypeUrl, &[&str])] = &[(TypeUrl::CLUSTER, &["a=1", "b=1"]), (TypeUrl::ENDPOINT, &["a=1"])];
    let server = Server::start(Mesh::new(world)).await;
    let open = async |held| DeltaClient::open(server.channel().await, node("one"), held, &TypeUrl::CLUSTER, &[]).await;
    let mut client = open(Default::default()).await.unwrap();
    let clusters = client.next().await.unwrap().unwrap();
    client.ack(&clusters);
    client.subscribe(&TypeUrl::ENDPOINT, &["a"]);
    let endpoints = client.next().await.unwrap().unwrap();
    assert_eq!(endpoints.resources.len(), 1);
    client.ack(&endpoints);
    let held = client.held.clone();
    drop(client);

    server.mesh.publish(&[(TypeUrl::CLUSTER, &["a=1", "c=1"]), (TypeUrl::ENDPOINT, &["a=1"])]);
    let mut again = open(held).await.unwrap();
    let difference = again.next().await.unwrap().unwrap();
    assert_eq!(difference.resources.iter().map(|r| r.name.as_str()).collect::<Vec<_>>(), ["c"]);
    again.ack(&difference);
    let removal = timeout(SOON, again.next()).await.unwrap().unwrap().unwrap();
    assert_eq!((removal.resources.len(), removal.removed_resources.as_slice()), (0, ["b".to_owned()].as_slice()));
    again.ack(&removal);
    assert_eq!(again.held[&TypeUrl::CLUSTER].keys().collect::<Vec<_>>(), ["a", "c"]);
}

#[tokio::test]
async fn client_that_does_not_read_gets_the_newest_world_in_the_end() {
    let world = |content: usize| format!("a={content}{}", "x".repeat(200_000));
    let server = Server::start(Mesh::new(&[(TypeUrl::CLUSTER, &[&world(0)])])).await;
    let channel = server.channel().await;
    let mut client = DeltaClient::open(channel, node("one"), Default::default(), &TypeUrl::CLUSTER, &[]).await.unwrap();
    let mut connected = server.mesh.connected();
    connected.wait_for(|count| *count == 1).await.unwrap();
    for content in 1..=100 {
        server.mesh.publish(&[(TypeUrl::CLUSTER, &[&world(content)])]);
        tokio::task::yield_now().await;
    }
    let mut responses = 0;
    loop {
        let response = timeout(SOON, client.next()).await.unwrap().unwrap().unwrap();
        client.ack(&response);
        responses += 1;
        if client.held[&TypeUrl::CLUSTER]["a"].resource.value == world(100).as_bytes() {
            break;
        }
    }
    assert!(responses <= 2, "{responses} responses: the first and the newest are enough");
}

#[tokio::test]
async fn large_worlds_arrive_whole() {
    let large = format!("a={}", "x".repeat(3_000_000));
    let server = Server::start(Mesh::new(&[(TypeUrl::CLUSTER, &[&large, "b=1"])])).await;
    let mut client = SotwClient::open(server.channel().await, node("one"), &TypeUrl::CLUSTER, &[]).await.unwrap();
    let response = client.next().await.unwrap().unwrap();
    assert_eq!(bodies(&response.resources), [large.as_str(), "b=1"]);
}

#[tokio::test]
async fn refusals_are_typed() {
    let server = Server::start(Mesh::new(&[(TypeUrl::CLUSTER, &["a=1"])])).await;
    let refusal = async |node: Node, names: &[&str]| {
        let channel = server.channel().await;
        let mut client = SotwClient::open(channel, node, &TypeUrl::CLUSTER, names).await.unwrap();
        client.next().await.unwrap_err().code()
    };
    assert_eq!(refusal(Node::default(), &[]).await, Code::InvalidArgument);
    assert_eq!(refusal(node("unready"), &[]).await, Code::Unavailable);
    assert_eq!(refusal(node("one"), &vec!["x"; 100_000]).await, Code::ResourceExhausted);
    assert_eq!(refusal(node("one"), &["x".repeat(5 << 20).as_str()]).await, Code::ResourceExhausted);
    let long = Value { kind: Some(Kind::StringValue("x".repeat(1 << 20))) };
    let metadata = Some(Struct { fields: [("LABELS".to_owned(), long)].into() });
    assert_eq!(refusal(Node { metadata, ..node("one") }, &[]).await, Code::ResourceExhausted);
}

#[tokio::test]
async fn node_counts_in_the_first_message_and_must_not_change() {
    let server = Server::start(Mesh::new(&[(TypeUrl::CLUSTER, &["a=1"])])).await;
    let mut client = SotwClient::open(server.channel().await, node("one"), &TypeUrl::CLUSTER, &[]).await.unwrap();
    let first = client.next().await.unwrap().unwrap();
    client.ack(&first);
    let type_url = TypeUrl::CLUSTER.to_string();
    client.send(DiscoveryRequest { node: Some(node("two")), type_url, ..Default::default() });
    assert_eq!(client.next().await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn panic_while_generating_ends_its_own_stream_only() {
    let server = Server::start(Mesh::new(&[(TypeUrl::CLUSTER, &["a=1"])])).await;
    let channel = server.channel().await;
    let open =
        async |id| DeltaClient::open(channel.clone(), node(id), Default::default(), &TypeUrl::CLUSTER, &[]).await;
    let (mut broken, mut sound) = (open("panics").await.unwrap(), open("one").await.unwrap());
    assert_eq!(broken.next().await.unwrap_err().code(), Code::Internal);
    assert_eq!(sound.next().await.unwrap().unwrap().resources.len(), 1);
}

#[tokio::test]
async fn garbage_is_refused() {
    let server = Server::start(Mesh::new(&[(TypeUrl::CLUSTER, &["a=1"])])).await;
    let path = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
    assert_eq!(server.call(path, b"\xff\xff\xff").await.1, Code::InvalidArgument);
}

#[tokio::test]
async fn single_type_services_answer_from_the_same_world() {
    let server = Server::start(Mesh::new(&[(TypeUrl::ROUTE, &["a=1"]), (TypeUrl::CLUSTER, &["c=1"])])).await;
    let node = Some(node("one"));
    let request = DiscoveryRequest { node: node.clone(), resource_names: vec!["a".into()], ..Default::default() };
    let path = "/envoy.service.route.v3.RouteDiscoveryService/StreamRoutes";
    let (bytes, code) = server.call(path, &request.encode_to_vec()).await;
    assert_eq!(code, Code::Ok, "the client left after one request");
    assert_eq!(bodies(&DiscoveryResponse::decode(&*bytes).unwrap().resources), ["a=1"]);

    let request = DeltaDiscoveryRequest { node, ..Default::default() };
    let (bytes, _) =
        server.call("/envoy.service.cluster.v3.ClusterDiscoveryService/DeltaClusters", &request.encode_to_vec()).await;
    assert_eq!(DeltaDiscoveryResponse::decode(&*bytes).unwrap().resources[0].name, "c");
    let fetch = "/envoy.service.cluster.v3.ClusterDiscoveryService/FetchClusters";
    assert_eq!(server.call(fetch, &[]).await.1, Code::Unimplemented);
}

#[tokio::test]
async fn streams_end_when_the_server_stops() {
    let server = Server::start(Mesh::new(&[(TypeUrl::CLUSTER, &["a=1"])])).await;
    let channel = server.channel().await;
    let mut client = DeltaClient::open(channel, node("one"), Default::default(), &TypeUrl::CLUSTER, &[]).await.unwrap();
    client.next().await.unwrap().unwrap();
    server.stop.cancel();
    assert_eq!(timeout(SOON, client.next()).await.unwrap().unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn stream_that_the_client_leaves_is_forgotten() {
    let server = Server::start(Mesh::new(&[(TypeUrl::CLUSTER, &["a=1"])])).await;
    let channel = server.channel().await;
    let mut client = DeltaClient::open(channel, node("one"), Default::default(), &TypeUrl::CLUSTER, &[]).await.unwrap();
    client.next().await.unwrap().unwrap();
    let mut connected = server.mesh.connected();
    connected.wait_for(|count| *count == 1).await.unwrap();
    client.send(DeltaDiscoveryRequest { type_url: TypeUrl::ROUTE.to_string(), ..Default::default() });
    drop(client);
    timeout(SOON, connected.wait_for(|count| *count == 0)).await.unwrap().unwrap();
}
