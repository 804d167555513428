//! Two replicas give resources the same versions: a client that moves to the other replica already has everything.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use serde_json::json;
use tonic::transport::Endpoint;
use xds::client::{DeltaClient, Held};

use crate::cluster::{cluster, create, is_left_out};
use crate::serving::{CLUSTER, SLICE, endpoints, serve, web};

const KINDS: [(TypeUrl, &[&str]); 4] =
    [(TypeUrl::CLUSTER, &[]), (TypeUrl::ENDPOINT, &[CLUSTER]), (TypeUrl::LISTENER, &[]), (TypeUrl::ROUTE, &["80"])];

/// A delta stream that already has these versions and subscribes to everything.
async fn open(server: SocketAddr, held: Held) -> DeltaClient {
    let node = Node { id: "sidecar~10.9.9.9~client.shop~shop.svc.cluster.local".to_owned(), ..Node::default() };
    let channel = Endpoint::from_shared(format!("http://{server}")).unwrap().connect_lazy();
    let (first, names) = &KINDS[0];
    let mut client = DeltaClient::open(channel, node, held, first, names).await.unwrap();
    KINDS[1..].iter().for_each(|(kind, names)| client.subscribe(kind, names));
    client
}

/// Receives responses until `holds`; returns the names of sent resources.
async fn until(client: &mut DeltaClient, holds: impl Fn(&Held) -> bool) -> Vec<String> {
    let mut sent = Vec::new();
    while !holds(&client.held) {
        let response = client.next().await.unwrap().unwrap();
        sent.extend(response.resources.iter().map(|resource| format!("{} {}", response.type_url, resource.name)));
        client.ack(&response);
    }
    sent
}

fn has_all_kinds(held: &Held) -> bool {
    KINDS.iter().all(|(kind, _)| held.get(kind).is_some_and(|all| !all.is_empty()))
}

fn versions(held: &Held) -> BTreeMap<String, String> {
    let of_kind = held.iter().flat_map(|(kind, all)| all.iter().map(move |(name, one)| (kind, name, one)));
    of_kind.map(|(kind, name, one)| (format!("{kind} {name}"), one.version.clone())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_give_the_same_versions() {
    if is_left_out(&[]) {
        return;
    }
    let api_server = cluster().await;
    create(&api_server, &web(&["10.4.0.1", "10.4.0.2"])).await;
    let rule = json!({"apiVersion": "networking.istio.io/v1", "kind": "DestinationRule",
        "metadata": {"name": "web", "namespace": "shop"}, "spec": {"host": "web", "subsets": [{"name": "v1"}]}});
    create(&api_server, &[rule]).await;
    let (one, other) =
        tokio::join!(serve(api_server.kubeconfig(), None, &[]), serve(api_server.kubeconfig(), None, &[]));
    let (grpc, other_grpc) = (one.addresses.grpc.unwrap(), other.addresses.grpc.unwrap());
    let (mut client, mut other_client) = (open(grpc, Held::default()).await, open(other_grpc, Held::default()).await);
    let sent = until(&mut client, has_all_kinds).await;
    let other_sent = until(&mut other_client, has_all_kinds).await;
    assert_eq!(versions(&client.held), versions(&other_client.held));
    assert!(sent.len() > 6 && sent.len() == other_sent.len(), "{sent:?} and {other_sent:?}");

    // The client moves to the other replica: only later changes are sent.
    let held = client.held.clone();
    let before = held[&TypeUrl::ENDPOINT][CLUSTER].version.clone();
    let mut moved = open(other_grpc, held).await;
    api_server.patch(SLICE, &endpoints(&["10.4.0.3"])).await.unwrap();
    let sent_again = until(&mut moved, |held| held[&TypeUrl::ENDPOINT][CLUSTER].version != before).await;
    println!("{} resources by one replica; by the other, after a change: {sent_again:?}", sent.len());
    assert_eq!(sent_again, [format!("{} {CLUSTER}", TypeUrl::ENDPOINT)]);
    one.stop(Duration::ZERO).await;
    other.stop(Duration::ZERO).await;
}
