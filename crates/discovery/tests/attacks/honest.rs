//! The server under attack, and an honest client that connects repeatedly while its waits are measured.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use serde_json::Value;
use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::process::{cpu_of, signal};
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

/// The median wait under an attack, on a quiet machine.
const PROMPT: Duration = Duration::from_millis(100);
/// The longest wait under an attack, on a quiet machine. Programs under test are debug builds, which parse a hostile
/// request in seconds where a release build takes tenths.
const LONGEST: Duration = Duration::from_secs(2);
/// On a busy machine: how much longer than at the control server, both for the median and for the longest wait.
const SLOWER: u32 = 10;
/// CPU time that an attack may cost a debug build, beyond that of the control server, unless the attack names its own
/// limit. The figures are of CPU time, so they do not depend on other work of the machine.
const MOST_CPU: Duration = Duration::from_secs(40);
/// The pause between two visits.
const PAUSE: Duration = Duration::from_millis(20);
/// Honest clients have an address of their own: limits per address affect attackers alone.
const OWN_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 77));

/// Attacks during which honest clients were served.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// An honest client that connects again and again, in turn to the attacked server and to a control server that is not
/// attacked. Other work of the machine delays both. Measures the CPU time of both too.
pub(crate) struct Honest {
    stop: CancellationToken,
    task: JoinHandle<[Waits; 2]>,
    /// Visits to each server so far.
    visits: Arc<AtomicUsize>,
    control: DiscoveryProcess,
    /// Processes of both, with their CPU time so far.
    processes: [(u32, Duration); 2],
}

/// How long a client waited, in order of its visits.
type Waits = Vec<Duration>;

impl Honest {
    pub(crate) async fn start(attacked: &DiscoveryProcess) -> Honest {
        let control = server(&[], &[]).await;
        let addresses = [attacked, &control].map(|server| format!("http://{}", server.grpc()));
        let processes = [attacked, &control].map(|server| (server.id(), cpu_of(server.id()).unwrap_or_default()));
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let visits = Arc::<AtomicUsize>::default();
        let counted = visits.clone();
        let task = tokio::spawn(async move {
            let mut waits = [Waits::new(), Waits::new()];
            while !stopped.is_cancelled() {
                for (waits, address) in waits.iter_mut().zip(&addresses) {
                    waits.push(visit(address).await);
                }
                counted.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(PAUSE).await;
            }
            waits
        });
        Honest { stop, task, visits, control, processes }
    }

    /// How often the client has visited each server.
    pub(crate) fn visits(&self) -> usize {
        self.visits.load(Ordering::Relaxed)
    }

    /// Stops the client and checks that it was answered in time: within 100 ms, or on a busy machine not much later than by
    /// the control server; and that the attack cost at most [`MOST_CPU`].
    pub(crate) async fn assert_served(self, attack: &str) {
        self.assert_served_within(attack, MOST_CPU).await;
    }

    /// The same for an attack that may cost this much CPU time.
    pub(crate) async fn assert_served_within(self, attack: &str, most: Duration) {
        match self.served(most).await {
            Ok(figures) => eprintln!("held: {attack}: {figures}; {} so far", HELD.fetch_add(1, Ordering::Relaxed) + 1),
            Err(figures) => panic!("not held: {attack}: {figures}"),
        }
    }

    /// CPU time that the attacked server used since the start beyond that of the control server.
    fn cost(&self) -> Duration {
        let used = |(id, before): (u32, Duration)| cpu_of(id).expect("a running server").saturating_sub(before);
        let [attacked, control] = self.processes.map(used);
        attacked.saturating_sub(control)
    }

    /// Stops the client; the figures, as an error if it was not served in time or the attack cost more CPU time.
    async fn served(self, most_cpu: Duration) -> Result<String, String> {
        let cost = self.cost();
        self.stop.cancel();
        let waits = self.task.await.expect("an honest client that was always answered");
        drop(self.control);
        let [attacked, control] = waits.map(|waits| Figures::of(&waits));
        let figures = format!("honest client {attacked}; control {control}; {cost:.1?} of CPU, at most {most_cpu:?}");
        let is_prompt = attacked.median < PROMPT.max(control.median * SLOWER);
        let is_steady = attacked.longest < LONGEST.max(control.longest * SLOWER);
        let is_held = attacked.visits > 0 && is_prompt && is_steady && cost <= most_cpu;
        if is_held { Ok(figures) } else { Err(figures) }
    }
}

/// How long a client waited.
#[derive(Debug, PartialEq)]
struct Figures {
    visits: usize,
    median: Duration,
    longest: Duration,
}

impl Figures {
    /// A client that waits makes no further visits. Those that it would have made every [`PAUSE`] count too, so that one
    /// stall of a minute is not outweighed by a few quick answers.
    fn of(waits: &[Duration]) -> Figures {
        let missed = |wait: &Duration| {
            (0..).map_while({
                let wait = *wait;
                move |number| wait.checked_sub(PAUSE * number).filter(|left| number == 0 || !left.is_zero())
            })
        };
        let mut all: Waits = waits.iter().flat_map(missed).collect();
        all.sort_unstable();
        let median = all.get(all.len() / 2).copied().unwrap_or_default();
        Figures { visits: waits.len(), median, longest: all.last().copied().unwrap_or_default() }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "waited {:.1?}, at most {:.1?} in {} visits", self.median, self.longest, self.visits)
    }
}

/// Connects a new client and returns how long it waited for its clusters.
async fn visit(address: &str) -> Duration {
    let begun = Instant::now();
    let endpoint = Endpoint::from_shared(address.to_owned()).expect("an address");
    let channel = endpoint.local_address(Some(OWN_ADDRESS)).connect().await;
    ask(channel.expect("a connection for the honest client")).await.expect("an answer for the honest client");
    begun.elapsed()
}

#[test]
fn a_stall_counts_as_all_visits_that_it_prevented() {
    let ms = Duration::from_millis;
    let quick = vec![ms(10); 20];
    assert_eq!(Figures::of(&quick), Figures { visits: 20, median: ms(10), longest: ms(10) });
    let stalled = Figures::of(&[quick, vec![ms(2_000)]].concat());
    assert_eq!((stalled.visits, stalled.longest), (21, ms(2_000)));
    assert!(stalled.median > ms(500), "{stalled}");
    assert_eq!(Figures::of(&[]).visits, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_honest_client_notices_a_server_that_stalls() {
    let mut server = server(&[], &[]).await;
    let honest = Honest::start(&server).await;
    let id = server.process().id();
    signal(id, "STOP");
    // The length of the stall is what is measured.
    tokio::time::sleep(LONGEST * 2).await;
    signal(id, "CONT");
    let late = honest.served(MOST_CPU).await.expect_err("a stall of four seconds");
    eprintln!("found: a server that stalls: {late}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attack_that_costs_more_cpu_than_allowed_is_noticed() {
    let server = server(&[], &[]).await;
    let honest = Honest::start(&server).await;
    for _ in 0..200 {
        client::get(server.http(), "pilot", "/debug/configz").await.expect("a page");
    }
    let costly = honest.served(Duration::ZERO).await.expect_err("200 pages for nothing");
    eprintln!("found: an attack that costs too much: {costly}");
}
