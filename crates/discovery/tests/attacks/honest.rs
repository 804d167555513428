//! The server under attack, and an honest client that connects repeatedly and measures its longest wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use serde_json::Value;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::{client, wait};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use xds::client::SotwClient;

/// One service, `cart.shop`.
pub(crate) const CART: &str = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: cart, namespace: shop}\nspec:\n  \
    hosts: [cart.shop.svc.cluster.local]\n  addresses: [10.96.0.1]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
    ports: [{name: http, number: 80, protocol: HTTP}]\n  endpoints: [{address: 10.0.0.9}]\n";

/// The cluster that every client of [`CART`] gets.
pub(crate) const CART_CLUSTER: &[u8] = b"outbound|80||cart.shop.svc.cluster.local";

const NODE_ID: &str = "sidecar~10.0.0.1~client.other~other.svc.cluster.local";

/// Starts the server on a folder with [`CART`], with additional arguments and environment variables.
pub(crate) async fn server(args: &[&str], env: &[(&str, &str)]) -> DiscoveryProcess {
    let setup = DiscoveryOptions {
        files: vec![("cart.yaml".to_owned(), CART.to_owned())],
        args: args.iter().map(ToString::to_string).collect(),
        env: env.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        ..DiscoveryOptions::default()
    };
    DiscoveryProcess::start(env!("CARGO_BIN_EXE_pilot-discovery"), setup).await
}

/// A connection to the plain-text xDS port.
pub(crate) async fn channel(server: &DiscoveryProcess) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc())).expect("an address");
    endpoint.connect().await.expect("a connection")
}

/// Connects a new client and waits for [`CART_CLUSTER`]; returns the elapsed time.
pub(crate) async fn ask(channel: Channel) -> Result<Duration, String> {
    let begun = Instant::now();
    let node = Node { id: NODE_ID.to_owned(), ..Node::default() };
    let mut stream = SotwClient::open(channel, node, &TypeUrl::CLUSTER, &[]).await.map_err(|s| s.to_string())?;
    let response = stream.next().await.map_err(|status| status.to_string())?.ok_or("the stream ended")?;
    let is_cart = |value: &[u8]| value.windows(CART_CLUSTER.len()).any(|window| window == CART_CLUSTER);
    if response.resources.iter().any(|resource| is_cart(&resource.value)) {
        Ok(begun.elapsed())
    } else {
        Err("the cart is missing".to_owned())
    }
}

/// Waits for a problem that has all these parts.
pub(crate) async fn until_problem(server: &DiscoveryProcess, parts: &[&str]) {
    wait::until(&format!("a problem with {parts:?}"), async || {
        let page = client::get(server.http(), "pilot", "/debug/problems").await?.json();
        let mut problems = page.as_array().into_iter().flatten().map(Value::to_string);
        let found = problems.any(|problem| parts.iter().all(|part| problem.contains(part)));
        if found { Ok(()) } else { Err(page.to_string()) }
    })
    .await;
}

/// The resources of each response that a new client gets.
pub(crate) async fn fetch(channel: Channel, kind: &TypeUrl, names: &[&str]) -> Result<Vec<u8>, String> {
    let node = Node { id: NODE_ID.to_owned(), ..Node::default() };
    let mut stream = SotwClient::open(channel, node, kind, names).await.map_err(|status| status.to_string())?;
    let response = stream.next().await.map_err(|status| status.to_string())?.ok_or("the stream ended")?;
    Ok(response.resources.into_iter().flat_map(|resource| resource.value).collect())
}

/// Longest wait of an honest client. Without an attack it is about 10 ms on a quiet machine, but tests run on busy ones;
/// the attacks made it minutes.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// The median wait under an attack, on a quiet machine.
const PROMPT: Duration = Duration::from_millis(100);
/// On a busy machine, the median under an attack compared with that after it.
const SLOWER: u32 = 10;

/// An honest client that connects again and again.
pub(crate) struct Honest {
    address: Arc<str>,
    stop: CancellationToken,
    task: JoinHandle<Vec<Duration>>,
}

impl Honest {
    pub(crate) fn start(server: &DiscoveryProcess) -> Honest {
        let address: Arc<str> = format!("http://{}", server.grpc()).into();
        let stop = CancellationToken::new();
        let (stopped, server) = (stop.clone(), address.clone());
        let task = tokio::spawn(async move {
            let mut waits = Vec::new();
            while !stopped.is_cancelled() {
                waits.push(visit(&server).await);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            waits
        });
        Honest { address, stop, task }
    }

    /// Stops the client and checks that it was answered in time: within 100 ms, or on a busy machine not much later than
    /// without the attack.
    pub(crate) async fn assert_served(self, attack: &str) {
        let address = self.address.clone();
        let waits = self.waits().await;
        let mut after = Vec::new();
        for _ in 0..10 {
            after.push(visit(&address).await);
        }
        after.sort_unstable();
        let (median, longest) = (middle(&waits), waits.last().copied().unwrap_or_default());
        let usual = middle(&after);
        eprintln!(
            "{attack}: {} honest clients waited {median:?}, at most {longest:?}; {usual:?} afterwards",
            waits.len()
        );
        assert!(!waits.is_empty() && longest < LONGEST_WAIT, "{attack}: {longest:?}");
        assert!(median < PROMPT.max(usual * SLOWER), "{attack}: {median:?} instead of {usual:?}");
    }

    /// Stops the client and returns its waits in ascending order.
    pub(crate) async fn waits(self) -> Vec<Duration> {
        self.stop.cancel();
        let mut waits = self.task.await.expect("an honest client that was always answered");
        waits.sort_unstable();
        waits
    }
}

/// Connects a new client and returns how long it waited for its clusters.
async fn visit(address: &str) -> Duration {
    let begun = Instant::now();
    let endpoint = Endpoint::from_shared(address.to_owned()).expect("an address");
    let channel = endpoint.connect().await.expect("a connection for the honest client");
    ask(channel).await.expect("an answer for the honest client");
    begun.elapsed()
}

/// The median of sorted waits.
fn middle(waits: &[Duration]) -> Duration {
    waits.get(waits.len() / 2).copied().unwrap_or_default()
}
