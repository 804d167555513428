//! Clients that break the protocol, come and go, or send too much. Servers must answer or refuse them, and no one else may
//! notice. Results are ignored: the recorded proxies are the witnesses.

use std::net::SocketAddr;
use std::time::Duration;

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use api::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use api::{Struct, Value, value};
use tonic::transport::{Channel, Endpoint};
use xds::client::{DeltaClient, Held, SotwClient};

/// Time that one odd client gets.
const LIMIT: Duration = Duration::from_secs(5);

fn node(number: usize) -> Node {
    Node {
        id: format!("sidecar~10.66.0.{}~odd{number}.evil~evil.svc.cluster.local", number % 250 + 1),
        ..Node::default()
    }
}

async fn channel(server: SocketAddr) -> Option<Channel> {
    Endpoint::from_shared(format!("http://{server}")).ok()?.connect_timeout(LIMIT).connect().await.ok()
}

/// Wrong nonces, old versions, repeated acknowledgements, unknown types, subscriptions that flap.
pub(super) async fn odd(server: SocketAddr, random: &mut fastrand::Rng) {
    for number in 0..10 {
        let Some(channel) = channel(server).await else { return };
        let seed = random.u64(..);
        let _ = match random.bool() {
            true => tokio::time::timeout(LIMIT, odd_sotw(channel, node(number), seed)).await,
            false => tokio::time::timeout(LIMIT, odd_delta(channel, node(number), seed)).await,
        };
    }
}

async fn odd_sotw(channel: Channel, node: Node, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let Ok(mut client) = SotwClient::open(channel, node, &TypeUrl::CLUSTER, &[]).await else { return };
    let kinds = [TypeUrl::CLUSTER, TypeUrl::ROUTE, TypeUrl::ENDPOINT].map(|kind| kind.to_string());
    let kinds: Vec<String> = kinds.into_iter().chain(["no/such.Type".to_owned(), String::new()]).collect();
    for _ in 0..30 {
        let Ok(Some(response)) = client.next().await else { return };
        client.ack(&response);
        client.ack(&response);
        let names = (0..random.usize(..4)).map(|number| format!("outbound|80||odd{number}")).collect();
        client.send(DiscoveryRequest {
            type_url: random.choice(&kinds).cloned().unwrap_or_default(),
            version_info: format!("{:x}", random.u32(..)),
            response_nonce: if random.bool() { response.nonce.clone() } else { format!("{:x}", random.u32(..)) },
            resource_names: names,
            ..Default::default()
        });
        client.subscribe(&TypeUrl::LISTENER, &[]);
    }
}

async fn odd_delta(channel: Channel, node: Node, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let Ok(mut client) = DeltaClient::open(channel, node, Held::default(), &TypeUrl::CLUSTER, &[]).await else {
        return;
    };
    for _ in 0..30 {
        let Ok(Some(response)) = client.next().await else { return };
        if random.bool() {
            client.ack(&response)
        } else {
            client.nack(&response, "odd")
        }
        let name = || vec!["outbound|80||f0.files.svc.cluster.local".to_owned(), "*".to_owned()];
        client.send(DeltaDiscoveryRequest {
            type_url: TypeUrl::ENDPOINT.to_string(),
            resource_names_subscribe: name(),
            resource_names_unsubscribe: if random.bool() { name() } else { Vec::new() },
            initial_resource_versions: [("bogus".to_owned(), "bogus".to_owned())].into(),
            response_nonce: format!("{:x}", random.u32(..)),
            ..Default::default()
        });
        client.subscribe(&TypeUrl::CLUSTER, &["*"]);
    }
}

/// Many streams that end at once, and one whose node changes on the way.
pub(super) async fn short_streams(server: SocketAddr) {
    for number in 0..100 {
        let Some(channel) = channel(server).await else { return };
        let _ = tokio::time::timeout(LIMIT, SotwClient::open(channel, node(number), &TypeUrl::CLUSTER, &[])).await;
    }
    let Some(channel) = channel(server).await else { return };
    let Ok(mut client) = SotwClient::open(channel, node(0), &TypeUrl::CLUSTER, &[]).await else { return };
    let _ = tokio::time::timeout(LIMIT, client.next()).await;
    let id = "sidecar~10.200.0.1~p0.ns0~ns0.svc.cluster.local".to_owned();
    client.send(DiscoveryRequest {
        node: Some(Node { id, ..Node::default() }),
        type_url: TypeUrl::CLUSTER.to_string(),
        ..Default::default()
    });
    let _ = tokio::time::timeout(LIMIT, client.next()).await;
}

/// A request of 5 MiB, 100,000 names, and a node of a megabyte.
pub(super) async fn oversize(server: SocketAddr) {
    let long = |size: usize| Value { kind: Some(value::Kind::StringValue("x".repeat(size))) };
    let metadata = Some(Struct { fields: [("LABELS".to_owned(), long(1 << 20))].into() });
    let names: Vec<String> = (0..100_000).map(|number| format!("outbound|80||s{number}.evil")).collect();
    let requests = [
        DiscoveryRequest { version_info: "x".repeat(5 << 20), ..Default::default() },
        DiscoveryRequest { resource_names: names, ..Default::default() },
    ];
    for request in requests {
        let Some(channel) = channel(server).await else { return };
        let Ok(mut client) = SotwClient::open(channel, node(1), &TypeUrl::CLUSTER, &[]).await else { return };
        client.send(DiscoveryRequest { type_url: TypeUrl::ENDPOINT.to_string(), ..request });
        while let Ok(Ok(Some(_))) = tokio::time::timeout(LIMIT / 5, client.next()).await {}
    }
    let Some(channel) = channel(server).await else { return };
    let large = Node { metadata, ..node(2) };
    let _ = tokio::time::timeout(LIMIT, SotwClient::open(channel, large, &TypeUrl::CLUSTER, &[])).await;
}
