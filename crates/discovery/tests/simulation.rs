//! A control plane, its sources and proxies of both transports in one thread with a simulated clock: changes in random order
//! with random delays, connections that delay and break, proxies that reject. Afterwards all promises hold, and each proxy
//! has exactly what the pure functions give for the final objects. A failure prints its seed.

// Clippy recognizes tests by their attribute, but not the helper functions.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use discovery::offline::Offline;
use discovery::serve::session::ControlPlane;
use discovery::serve::snapshot_writer::SnapshotWriter;
use futures_util::FutureExt;
use hyper_util::rt::TokioIo;
use model::change::{Batch, Change, SourceId};
use model::config::parse::documents;
use model::config::{Key, Object};
use model::settings::Settings;
use sources::health::SourceHealth;
use sources::source_set::{SourceSet, StartupWait};
use testkit::envoy::XdsTransport;
use testkit::promises::content::Marker;
use testkit::promises::history::TimedEvent;
use testkit::promises::proxy::{Dial, DialedChannel, ProxyOptions, RecordedProxy, held_of};
use testkit::promises::{Checked, Event, FaultScope, History, MeshPart, Promise, ProxyName, check};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::transport::{Endpoint, Server};

/// Seeds in `make test`.
const SEEDS: u64 = 100;
/// Seeds that are run twice.
const SEEDS_TWICE: u64 = 20;
const SERVICES: usize = 4;
const STEPS: usize = 25;
/// Simulated time.
const WINDOW: Duration = Duration::from_secs(30);
/// Three proxies, and the sources.
const PARTIES: u64 = 4;
/// Bytes under way on one half of a connection.
const BUFFER: usize = 64 << 10;
/// A service that only its namespace may see.
const PRIVATE_HOST: &str = "private-4711.ns0.internal";

/// What happens to the connections of a proxy while sources change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Steady,
    /// Connections break after a while.
    Flaky,
    /// Responses are rejected now and then.
    Rejecting,
}

struct Simulation {
    history: History,
    changes: mpsc::Sender<Batch>,
    objects: BTreeMap<Key, Object>,
    random: fastrand::Rng,
    addresses: u32,
    slot: TimeSlot,
}

impl Simulation {
    /// Applies objects and deletes keys in one batch of a source.
    async fn send(&mut self, source: usize, changes: Vec<Change>) {
        for change in &changes {
            match change {
                Change::Applied(object) => drop(self.objects.insert(object.key(), object.clone())),
                Change::Deleted(key) => drop(self.objects.remove(key)),
                _ => {}
            }
        }
        self.changes.send(Batch { source: id(source), changes }).await.unwrap();
    }

    /// A new state of a service: endpoints that were never used before, or none.
    async fn change_service(&mut self, service: usize, and: Vec<Change>) {
        let count = if self.random.u8(..5) == 0 { 0 } else { self.random.usize(1..4) };
        let address = |_| {
            self.addresses += 1;
            Ipv4Addr::from((11 << 24) + self.addresses).to_string()
        };
        let endpoints: BTreeSet<String> = (0..count).map(address).collect();
        let object = service_entry(service, &endpoints);
        let mut changes = and;
        match endpoints.is_empty() {
            // Its routes go with it: a route without its service leads nowhere, as its author wished.
            true => changes.extend([virtual_service(service, 1).key(), object.key()].map(Change::Deleted)),
            false => changes.push(Change::Applied(object)),
        }
        let begun = self.history.now();
        self.send(service % 2, changes).await;
        let (source, service) = (source_name(service % 2).into(), cluster(service).into());
        self.history.record(Event::Input { source, service, endpoints, begun });
    }

    async fn pause(&mut self) {
        let millis = match self.random.u8(..4) {
            0 => 0,
            1 => self.random.u64(..10),
            _ => self.random.u64(..400),
        };
        tokio::time::sleep(Duration::from_millis(millis)).await;
        self.slot.begins().await;
    }

    /// One step of the sources.
    async fn step(&mut self) {
        let service = self.random.usize(..SERVICES);
        match self.random.u8(..8) {
            // Routes of a service; its clusters stay the same.
            0 if self.objects.contains_key(&service_entry(service, &BTreeSet::new()).key()) => {
                let seconds = self.random.u8(1..9);
                self.send(service % 2, vec![Change::Applied(virtual_service(service, seconds))]).await;
            }
            1 => self.send(service % 2, vec![Change::Deleted(virtual_service(service, 1).key())]).await,
            // Added and deleted within one batch.
            2 => {
                let gone = service_entry(service, &["10.255.255.255".to_owned()].into());
                let and = vec![Change::Applied(gone.clone()), Change::Deleted(gone.key())];
                self.change_service(service, and).await;
            }
            3 => self.send(service % 2, vec![Change::Renew]).await,
            _ => self.change_service(service, Vec::new()).await,
        }
        self.pause().await;
    }
}

fn source_name(number: usize) -> &'static str {
    ["even", "odd"][number]
}

fn id(number: usize) -> SourceId {
    SourceId(source_name(number).into())
}

fn cluster(service: usize) -> String {
    format!("outbound|80||s{service}.shop.svc.cluster.local")
}

fn object(text: &str) -> Object {
    documents(text, "simulated.yaml").objects.into_iter().next().unwrap()
}

fn service_entry(service: usize, endpoints: &BTreeSet<String>) -> Object {
    let endpoints: Vec<String> = endpoints.iter().map(|address| format!("{{address: {address}}}")).collect();
    object(&format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: s{service}, namespace: shop}}\nspec:\n  \
         hosts: [s{service}.shop.svc.cluster.local]\n  addresses: [10.96.0.{}]\n  location: MESH_INTERNAL\n  \
         resolution: STATIC\n  ports: [{{name: http, number: 80, protocol: HTTP}}]\n  endpoints: [{}]\n",
        service + 1,
        endpoints.join(", ")
    ))
}

fn virtual_service(service: usize, seconds: u8) -> Object {
    let host = format!("s{service}.shop.svc.cluster.local");
    object(&format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: s{service}, namespace: shop}}\nspec:\n  \
         hosts: [{host}]\n  http: [{{timeout: {seconds}s, route: [{{destination: {{host: {host}}}}}]}}]\n"
    ))
}

fn private() -> Object {
    object(&format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: private, namespace: ns0}}\nspec:\n  \
         hosts: [{PRIVATE_HOST}]\n  exportTo: ['.']\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
         ports: [{{name: http, number: 80, protocol: HTTP}}]\n  endpoints: [{{address: 10.7.7.7}}]\n"
    ))
}

/// A server on a simulated network: connections are given to it through the channel.
fn serve(control: Arc<ControlPlane>, stop: CancellationToken) -> mpsc::Sender<io::Result<DuplexStream>> {
    let (connections, incoming) = mpsc::channel(16);
    let options = xds::Options { stop: stop.clone(), ..xds::Options::default() };
    let routes = xds::routes(control, options);
    tokio::spawn(async move {
        let server = Server::builder().add_routes(routes);
        let _ = server.serve_with_incoming_shutdown(ReceiverStream::new(incoming), stop.cancelled_owned()).await;
    });
    connections
}

/// The milliseconds in which one party acts: of each `PARTIES` milliseconds the same one. Tokio wakes tasks that wait for
/// the same event in random order. No two parties act at the same time, so this order changes nothing.
#[derive(Clone, Copy)]
struct TimeSlot {
    start: tokio::time::Instant,
    party: u64,
}

impl TimeSlot {
    /// Waits for the next millisecond of the party, which may be now.
    async fn begins(self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap();
        let wait = (self.party + PARTIES - now % PARTIES) % PARTIES;
        if wait > 0 {
            tokio::time::sleep(Duration::from_millis(wait)).await;
        }
    }
}

/// Copies one direction with random delays. What arrives during a delay is delivered together.
async fn pump(mut from: impl AsyncReadExt + Unpin, mut to: impl AsyncWriteExt + Unpin, slot: TimeSlot, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut buffer = vec![0; BUFFER];
    while let Ok(mut count) = from.read(&mut buffer).await {
        if random.bool() {
            tokio::time::sleep(Duration::from_millis(random.u64(..50))).await;
        }
        slot.begins().await;
        while let Some(Ok(more @ 1..)) = from.read(&mut buffer[count..]).now_or_never() {
            count += more;
        }
        if count == 0 || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Connections of a proxy. They break after a random time until `calm`.
fn dial(
    server: mpsc::Sender<io::Result<DuplexStream>>,
    manner: Manner,
    slot: TimeSlot,
    seed: u64,
    calm: CancellationToken,
) -> Dial {
    let random = Arc::new(parking_lot::Mutex::new(fastrand::Rng::with_seed(seed)));
    Box::new(move || {
        let (server, calm, random) = (server.clone(), calm.clone(), random.clone());
        let connected: DialedChannel = Box::pin(async move {
            slot.begins().await;
            let (client, near) = duplex(BUFFER);
            let (far, accepted) = duplex(BUFFER);
            server.send(Ok(accepted)).await.map_err(|_| Status::unavailable("stopped"))?;
            let [up, down, lifetime] = [(); 3].map(|()| random.lock().u64(..));
            tokio::spawn(async move {
                let ((near_read, near_write), (far_read, far_write)) = (tokio::io::split(near), tokio::io::split(far));
                let both = async {
                    tokio::join!(pump(near_read, far_write, slot, up), pump(far_read, near_write, slot, down))
                };
                let broken = async {
                    tokio::time::sleep(Duration::from_millis(lifetime % 3_000)).await;
                    slot.begins().await;
                    if manner != Manner::Flaky || calm.is_cancelled() {
                        std::future::pending::<()>().await;
                    }
                };
                tokio::select! {
                    biased;
                    _ = both => {}
                    () = broken => {}
                }
            });
            let mut once = Some(client);
            let connector = tower::service_fn(move |_| {
                let client = once.take().ok_or_else(|| io::Error::other("used"));
                async move { client.map(TokioIo::new) }
            });
            let endpoint = Endpoint::from_static("http://simulated");
            let channel = endpoint.connect_with_connector(connector).await;
            Ok((channel.map_err(|error| Status::unavailable(error.to_string()))?, 0))
        });
        connected
    })
}

/// The proxies of a run: name, number of its node, transport and manner.
fn roles(random: &mut fastrand::Rng) -> Vec<(ProxyName, usize, XdsTransport, Manner)> {
    let manners = [Manner::Steady, Manner::Flaky, Manner::Rejecting];
    let role = |(number, manner): (usize, Manner)| {
        let transport = if random.bool() { XdsTransport::Delta } else { XdsTransport::Sotw };
        (format!("{manner:?}-{transport:?}").into(), number, transport, manner)
    };
    manners.into_iter().enumerate().map(role).collect()
}

async fn run(seed: u64) -> (Checked, Vec<TimedEvent>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let stop = CancellationToken::new();
    let start = tokio::time::Instant::now();
    let roles = roles(&mut random);
    // The first proxy is in the namespace of the private service.
    let marker = Marker { bytes: PRIVATE_HOST.into(), allowed: [roles[0].0.clone()].into() };
    let history = History::new(vec![marker]);
    let writer = SnapshotWriter::start(Settings::default(), Arc::default(), stop.clone());
    let set = SourceSet::default();
    for number in 0..2 {
        set.insert(id(number), SourceHealth::new(id(number)), StartupWait::Always);
    }
    let changes = writer.changes();
    let connections = serve(Arc::new(ControlPlane::new(writer, set)), stop.clone());
    let calm = CancellationToken::new();
    let mut proxies = Vec::new();
    let mut nodes: Vec<(ProxyName, Node)> = Vec::new();
    for (name, number, transport, manner) in roles {
        let mut options = ProxyOptions::sidecar(&name, number, transport);
        (options.seed, options.rejects) = (random.u64(..), if manner == Manner::Rejecting { 20 } else { 0 });
        if manner != Manner::Steady {
            let scope = FaultScope::of([MeshPart::Proxy(name.clone())]);
            history.record(Event::FaultBegun { fault: name.clone(), scope });
        }
        if manner != Manner::Rejecting {
            nodes.push((name.clone(), options.node.clone()));
        }
        let slot = TimeSlot { start, party: number as u64 };
        let dial = dial(connections.clone(), manner, slot, random.u64(..), calm.clone());
        proxies.push(RecordedProxy::start_with(&history, options, dial));
    }
    // The last party is the sources.
    let slot = TimeSlot { start, party: PARTIES - 1 };
    let mut simulation = Simulation { history, changes, objects: BTreeMap::new(), random, addresses: 0, slot };
    slot.begins().await;
    for service in 0..SERVICES {
        simulation.change_service(service, Vec::new()).await;
    }
    simulation.send(0, vec![Change::Applied(private()), Change::Synced]).await;
    simulation.pause().await;
    simulation.send(1, vec![Change::Synced]).await;
    for _ in 0..STEPS {
        simulation.step().await;
    }
    calm.cancel();
    // Long enough for the last connection to break, and for the window after it.
    tokio::time::sleep(Duration::from_secs(5)).await;
    for (name, _) in &nodes {
        simulation.history.record(Event::FaultEnded { fault: name.clone() });
    }
    tokio::time::sleep(WINDOW * 2).await;
    let mesh = Offline::new(Settings::default(), simulation.objects.into_values().collect());
    for (proxy, node) in nodes {
        let held = held_of(|kind: &TypeUrl, names| {
            let resources = mesh.resources(&node, kind, names).unwrap();
            resources.into_iter().map(|resource| (resource.name.to_string(), resource.body.joined())).collect()
        });
        simulation.history.record(Event::Expected { proxy, held });
    }
    let events = simulation.history.events();
    let checked = check(&events, simulation.history.markers(), WINDOW);
    stop.cancel();
    drop(proxies);
    (checked, events)
}

/// One thread and a simulated clock: the order of everything follows from the seed.
fn simulate(seed: u64) -> (Checked, Vec<TimedEvent>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(run(seed))
}

/// Runs a range of seeds and returns how often each promise was examined.
fn simulate_all(seeds: std::ops::Range<u64>) -> BTreeMap<Promise, usize> {
    let begun = Instant::now();
    let count = seeds.end - seeds.start;
    let mut examined: BTreeMap<Promise, usize> = BTreeMap::new();
    for seed in seeds {
        let (checked, _) = simulate(seed);
        assert!(checked.violations.is_empty(), "seed {seed}:\n{}", checked.report());
        for (promise, count) in checked.examined {
            *examined.entry(promise).or_default() += count;
        }
        if seed % 1_000 == 0 && seed > 0 {
            println!("all seeds up to {seed} after {:.0?}", begun.elapsed());
        }
    }
    println!("{count} seeds in {:?}: {examined:?}", begun.elapsed());
    examined
}

#[test]
fn promises_hold_for_all_seeds() {
    let examined = simulate_all(0..SEEDS);
    for promise in Promise::ALL.into_iter().filter(|promise| *promise != Promise::Honesty) {
        assert!(examined.contains_key(&promise), "{promise} was never examined");
    }
}

/// The history of a seed, one event in a line. Nonces are random, so that one server does not know those of another; here
/// they are numbered in the order of their appearance.
fn history(seed: u64) -> Vec<String> {
    let mut nonces: BTreeMap<String, usize> = BTreeMap::new();
    let mut number = |nonce: &mut String| {
        let next = nonces.len();
        *nonce = nonces.entry(std::mem::take(nonce)).or_insert(next).to_string();
    };
    let line = |mut timed: TimedEvent| {
        match &mut timed.event {
            Event::Received { response, .. } => number(&mut response.nonce),
            Event::Answered { nonce, .. } => number(nonce),
            _ => {}
        }
        format!("{:?} {:?}", timed.at, timed.event)
    };
    simulate(seed).1.into_iter().map(line).collect()
}

/// Without this a seed in a failure report would be worth little.
#[test]
fn a_seed_gives_the_same_history_every_time() {
    for seed in 0..SEEDS_TWICE {
        let (first, second) = (history(seed), history(seed));
        assert!(first.len() > 100, "seed {seed}: {} events", first.len());
        let differs = first.iter().zip(&second).position(|(one, other)| one != other);
        if let Some(at) = differs {
            panic!("seed {seed}, event {at} of {}:\n{}\n{}", first.len(), first[at], second[at]);
        }
        assert_eq!(first.len(), second.len(), "seed {seed}");
    }
    assert_ne!(history(0), history(1), "seeds differ");
}

/// Ten thousand seeds, about half an hour: `cargo test -p discovery --test simulation -- --ignored --nocapture`.
#[test]
#[ignore = "half an hour"]
fn promises_hold_for_ten_thousand_seeds() {
    simulate_all(SEEDS..SEEDS + 10_000);
}
