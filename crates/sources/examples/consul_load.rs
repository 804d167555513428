//! The load of the Consul registry on a real Consul: requests per second and connections, with 1,000 idle services and
//! at 10 changes per second, next to the requests of Pilot's adapters for the same services.
//! `cargo run -p sources --example consul_load [SERVICES [SECONDS]]`

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use model::change::{Batch, Change, SourceId};
use serde_json::{Value, json};
use sources::health::SourceHealth;
use sources::registry::adapter::SourcePlace;
use sources::registry::consul::{ConsulOptions, ConsulRegistry};
use sources::registry::diff::MassLossGuard;
use sources::source::spawn;
use testkit::consul::Consul as Server;
use tokio::sync::mpsc;
use tokio::time::{interval, timeout};
use tokio_util::sync::CancellationToken;

const NODES: usize = 10;
const CHANGES_A_SECOND: u32 = 10;

#[tokio::main]
async fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|text| text.parse::<usize>().ok());
    let (services, seconds) = (numbers.next().unwrap_or(1000), numbers.next().unwrap_or(20) as u64);
    let server = Server::start().await;
    register(&server, services).await;

    let options = ConsulOptions { addresses: vec![server.url()], ..ConsulOptions::default() };
    let place = SourcePlace { id: SourceId("Consul".into()), cluster: "c1".into(), guard: MassLossGuard::default() };
    let source = ConsulRegistry::new(options, place);
    let (batches, mut changes) = mpsc::channel(64);
    let begun = Instant::now();
    let running = spawn(source, batches, CancellationToken::new());
    while !is_synced(&changes.recv().await.expect("the source lives")) {}
    let health = running.health.clone();
    let counts = health.report().counts;
    println!("{services} services, in sync after {:?} and {} requests", begun.elapsed(), counts.requests);

    let idle =
        measured(&health, &server, seconds, async { tokio::time::sleep(Duration::from_secs(seconds)).await }).await;
    let mut delays = Vec::new();
    let busy = measured(&health, &server, seconds, change(&server, services, seconds, &mut changes, &mut delays)).await;
    delays.sort();
    let at = |percent: usize| delays.get(delays.len() * percent / 100).copied().unwrap_or_default();

    let n = services as f64;
    println!("                                      requests/s idle   requests/s at 10 changes/s   connections");
    println!("this registry                         {:15.2}   {:26.1}   {:11}", idle.0, busy.0, busy.1.max(idle.1));
    println!(
        "Pilot 0.8-1.3, computed: (n+2)/2s     {:15.2}   {:26.1}   one a request",
        (n + 2.0) / 2.0,
        (n + 2.0) / 2.0
    );
    println!("Pilot 1.4-1.7, computed: (n+1)/2s     {:15.2}   {:26.1}   one a request", 1.0 / 600.0, (n + 1.0) / 2.0);
    // Blocking queries wait for up to five minutes, longer than the measurement.
    let rate = idle.0.max(2.0 / 300.0);
    println!("idle: at most {rate:.4} requests/s, {:.0} times fewer than Pilot 0.8-1.3", (n + 2.0) / 2.0 / rate);
    println!("{} changes seen, half of them within {:?}, 99% within {:?}", delays.len(), at(50), at(99));
}

/// Requests per second and the maximum number of connections while `work` runs.
async fn measured(
    health: &SourceHealth,
    server: &Server,
    seconds: u64,
    work: impl Future<Output = ()>,
) -> (f64, usize) {
    let before = health.report().counts.requests;
    let port: u16 = server.url().rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let mut most = 0;
    let mut look = interval(Duration::from_millis(100));
    tokio::pin!(work);
    loop {
        tokio::select! {
            () = &mut work => break,
            _ = look.tick() => most = most.max(connections(port)),
        }
    }
    ((health.report().counts.requests - before) as f64 / seconds as f64, most)
}

/// Connections from this process to a port, as the kernel lists them.
fn connections(port: u16) -> usize {
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap_or_default();
    let remote = format!(":{port:04X}");
    let is_one = |line: &&str| {
        let mut fields = line.split_whitespace().skip(2);
        fields.next().is_some_and(|address| address.ends_with(&remote)) && fields.next() == Some("01")
    };
    table.lines().filter(is_one).count()
}

fn service(number: usize, port: u16) -> Value {
    json!({"ID": format!("s{number}"), "Service": format!("s{number}"), "Address": "10.0.0.1", "Port": port})
}

async fn register(server: &Server, services: usize) {
    for node in 0..NODES.min(services) {
        server.put("/v1/catalog/register", json!({"Node": format!("n{node}"), "Address": "10.0.0.1"})).await;
    }
    let all: Vec<usize> = (0..services).collect();
    for some in all.chunks(100) {
        let set = |n: &usize| json!({"Service": {"Verb": "set", "Node": format!("n{}", n % NODES), "Service": service(*n, 80)}});
        server.put("/v1/txn", some.iter().map(set).collect()).await;
    }
}

/// Half of the changes move an instance, half fail a check. Each is timed from its acceptance by Consul to its
/// publication. Changes are made at a fixed rate, however long Consul takes for one.
async fn change(
    server: &Server,
    services: usize,
    seconds: u64,
    changes: &mut mpsc::Receiver<Batch>,
    delays: &mut Vec<Duration>,
) {
    let mut pending: BTreeMap<String, Instant> = BTreeMap::new();
    let mut tick = interval(Duration::from_secs(1) / CHANGES_A_SECOND);
    let mut making = FuturesUnordered::new();
    let (begun, mut number) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(seconds) {
        tokio::select! {
            _ = tick.tick() => {
                number += 1;
                making.push(change_one(server, number, services));
            }
            Some(host) = making.next() => {
                pending.entry(host).or_insert_with(Instant::now);
            }
            Some(batch) = changes.recv() => see(&batch, &mut pending, delays),
        }
    }
    println!("{number} changes asked for in {seconds} s, {} of them still under way in Consul", making.len());
    while let Ok(Some(batch)) = timeout(Duration::from_secs(3), changes.recv()).await {
        see(&batch, &mut pending, delays);
    }
}

/// The host name of the changed service.
async fn change_one(server: &Server, number: usize, services: usize) -> String {
    let target = number * 7 % services;
    let (port, status) =
        if number.is_multiple_of(2) { (8000 + (number % 1000) as u16, "passing") } else { (80, "critical") };
    server.register(&format!("n{}", target % NODES), &service(target, port), status).await;
    format!("s{target}.service.consul")
}

fn see(batch: &Batch, pending: &mut BTreeMap<String, Instant>, delays: &mut Vec<Duration>) {
    for change in &batch.changes {
        if let Change::Endpoints(key, _) = change {
            delays.extend(pending.remove(key.hostname.as_str()).map(|since| since.elapsed()));
        }
    }
}

fn is_synced(batch: &Batch) -> bool {
    batch.changes.iter().any(|change| matches!(change, Change::Synced))
}
