//! Delay of a client behind a file that changes 100 times a second for 10 seconds.
//! `cargo bench -p discovery --bench reaction`

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use api::envoy::config::endpoint::v3::ClusterLoadAssignment;
use prost::Message;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use tonic::transport::Endpoint;
use xds::client::{DeltaClient, Held};

const EDITS: u32 = 1000;
const PAUSE: Duration = Duration::from_millis(10);
const CLUSTER: &str = "outbound|80||cart.shop.svc.cluster.local";

#[tokio::main]
async fn main() {
    let files = vec![("cart.yaml".to_owned(), service(0))];
    let server = DiscoveryProcess::start(
        env!("CARGO_BIN_EXE_pilot-discovery"),
        DiscoveryOptions { files, ..DiscoveryOptions::default() },
    )
    .await;
    let node = Node { id: "sidecar~10.0.0.1~client.other~other.svc.cluster.local".to_owned(), ..Node::default() };
    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc())).expect("an address");
    let channel = endpoint.connect().await.expect("a connection");
    let mut client =
        DeltaClient::open(channel, node, Held::default(), &TypeUrl::ENDPOINT, &[CLUSTER]).await.expect("a stream");
    // Time of each edit; the number of the edit is the endpoint's port.
    let written = Arc::new(Mutex::new(vec![Instant::now()]));
    let writer = tokio::spawn({
        let written = written.clone();
        async move {
            let mut ticks = tokio::time::interval(PAUSE);
            for edit in 1..=EDITS {
                ticks.tick().await;
                written.lock().expect("no panic elsewhere").push(Instant::now());
                server.write("cart.yaml", &service(edit));
            }
            server
        }
    });
    let mut lags = Vec::new();
    let mut seen = 0;
    while seen < EDITS {
        let answer = client.next().await.expect("an answer").expect("an open stream");
        let now = Instant::now();
        for resource in &answer.resources {
            let assignment = resource.resource.as_ref().expect("a resource");
            let edit = port(&ClusterLoadAssignment::decode(&*assignment.value).expect("a load assignment"));
            let times = written.lock().expect("no panic elsewhere");
            // The delay counts from the first edit that the client had not seen.
            if edit > seen {
                lags.push(now - times[seen as usize + 1]);
            }
            seen = seen.max(edit);
        }
        client.ack(&answer);
    }
    let _server = writer.await.expect("the writer ends");
    lags.sort();
    let at = |share: f64| lags[((lags.len() - 1) as f64 * share) as usize];
    println!(
        "{EDITS} edits, {} answers; behind: median {:?}, 99 % {:?}, most {:?}",
        lags.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

fn service(edit: u32) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: cart, namespace: shop}}\nspec:\n  \
         hosts: [cart.shop.svc.cluster.local]\n  addresses: [10.96.0.1]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
         ports: [{{name: http, number: 80, protocol: HTTP}}]\n  endpoints: [{{address: 10.0.0.9, ports: {{http: {}}}}}]\n",
        edit + 1
    )
}

fn port(assignment: &ClusterLoadAssignment) -> u32 {
    use api::envoy::config::core::v3::{address::Address, socket_address::PortSpecifier};
    use api::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
    let endpoint = assignment.endpoints.first().and_then(|l| l.lb_endpoints.first());
    let Some(HostIdentifier::Endpoint(endpoint)) = endpoint.and_then(|e| e.host_identifier.clone()) else { return 0 };
    let Some(Address::SocketAddress(socket)) = endpoint.address.and_then(|a| a.address) else { return 0 };
    match socket.port_specifier {
        Some(PortSpecifier::PortValue(port)) => port - 1,
        _ => 0,
    }
}
