//! Time of `pilotctl ps` and `pilotctl pc` against a server with many proxies, CPU of a server that nothing asks, and the
//! memory of its journal. Fails if one of them exceeds what is promised.
//! `cargo bench -p pilotctl --bench inspect [-- PROXIES]`; the server is the binary that `PILOTAGE_DISCOVERY` names, else a
//! release build, which this makes.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::fleet::{Fleet, FleetOptions};
use testkit::{client, programs, wait};

const PROXIES: usize = 2000;
const SERVICES: usize = 100;
const ROUNDS: usize = 10;
/// Promises.
const MOST_TIME: Duration = Duration::from_millis(200);
const MOST_MEMORY_KIB: u64 = 1024;
/// What the allocator may keep on top, in either direction.
const NOISE_KIB: u64 = 512;
/// CPU that an idle server without proxies may use in 20 s: timers, the figures of the last hour.
const MOST_IDLE: Duration = Duration::from_millis(100);
const IDLE: Duration = Duration::from_secs(20);
/// Changes that fill the journal: about 4 KB each.
const CHANGES: usize = 400;
const WARM_UP: usize = 20;

#[tokio::main]
async fn main() {
    let proxies = std::env::args().filter_map(|text| text.parse().ok()).next().unwrap_or(PROXIES);
    let binary = std::env::var_os("PILOTAGE_DISCOVERY").map(PathBuf::from);
    let binary = binary.unwrap_or_else(|| programs::release_binary("discovery", "pilot-discovery"));
    let binary = binary.to_string_lossy().into_owned();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load of the machine before: {}", load.trim());
    let mut failed = commands(&binary, proxies).await;
    failed.extend(idle(&binary).await);
    failed.extend(journal(&binary).await);
    assert!(failed.is_empty(), "not as promised: {}", failed.join("; "));
}

async fn start(binary: &str) -> DiscoveryProcess {
    let text: String = (0..SERVICES).map(service).collect();
    let files = vec![("services.yaml".to_owned(), text)];
    DiscoveryProcess::start(binary, DiscoveryOptions { files, ..DiscoveryOptions::default() }).await
}

/// Commands that take too long with many proxies.
async fn commands(binary: &str, proxies: usize) -> Vec<String> {
    let mut server = start(binary).await;
    let options = FleetOptions { workloads: proxies, ..FleetOptions::default() };
    let _fleet = Fleet::connect(server.grpc(), options).await;
    let address = server.monitoring().to_string();
    wait::until_within(Duration::from_secs(120), "synced proxies", async || {
        let listed =
            client::get(server.monitoring(), "localhost", "/api/v1/proxies?state=synced&limit=1").await?.json();
        if listed["total"] == proxies { Ok(()) } else { Err(listed["total"].to_string()) }
    })
    .await;
    let mut failed = Vec::new();
    for arguments in [&["ps"][..], &["pc", "all", "p7.ns7"], &["pc", "cluster", "p7.ns7"], &["version"]] {
        let mut times: Vec<Duration> = (0..ROUNDS).map(|_| timed(arguments, &address)).collect();
        times.sort();
        let line =
            format!("pilotctl {}: median {:?}, most {:?}", arguments.join(" "), times[ROUNDS / 2], times[ROUNDS - 1]);
        println!("{proxies} proxies: {line}");
        if times[ROUNDS / 2] > MOST_TIME {
            failed.push(line);
        }
    }
    let used = cpu_of(&mut server).await;
    println!("{proxies} proxies, nothing asks: {used:?} of CPU time in {IDLE:?}");
    failed
}

async fn cpu_of(server: &mut DiscoveryProcess) -> Duration {
    let before = server.process().cpu().unwrap_or_default();
    tokio::time::sleep(IDLE).await;
    server.process().cpu().unwrap_or_default().saturating_sub(before)
}

/// CPU of a server that nothing asks and nothing changes.
async fn idle(binary: &str) -> Option<String> {
    let mut server = start(binary).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let used = cpu_of(&mut server).await;
    println!("no proxies, nothing asks: {used:?} of CPU time in {IDLE:?}");
    (used > MOST_IDLE).then(|| format!("an idle server uses {used:?} in {IDLE:?}"))
}

/// Memory of a full journal. The baseline is the same server after a few changes, when its allocator has warmed up.
async fn journal(binary: &str) -> Option<String> {
    let mut server = start(binary).await;
    let mut memory = [0, 0];
    let mut change = 0;
    for (slot, changes) in memory.iter_mut().zip([WARM_UP, CHANGES]) {
        while change < changes {
            change += 1;
            server.write("route.yaml", &virtual_service(change));
            wait_for(&server, change).await;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        *slot = server.process().owned_kib().unwrap_or_default();
    }
    let [baseline, full] = memory;
    println!("RssAnon: {baseline} KiB after {WARM_UP} changes, {full} KiB after {CHANGES}");
    let more = full.saturating_sub(baseline);
    (more > MOST_MEMORY_KIB + NOISE_KIB).then(|| format!("a full journal takes {more} KiB"))
}

/// Waits until the server has applied a change.
async fn wait_for(server: &DiscoveryProcess, change: usize) {
    let wanted = format!("{change}'");
    wait::until("the change", async || {
        let page = client::get(server.monitoring(), "localhost", "/api/v1/objects?spec&name=v").await?.body;
        let has_it = page.contains(&wanted.replace('\'', "\""));
        if has_it { Ok(()) } else { Err(page.len().to_string()) }
    })
    .await;
}

fn service(number: usize) -> String {
    format!(
        "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: s{number}, namespace: ns{}}}\nspec: {{hosts: \
         [s{number}.example.com], addresses: [10.96.0.{number}], ports: [{{number: 80, name: http, protocol: HTTP}}], resolution: \
         STATIC, endpoints: [{{address: 10.0.0.{number}}}]}}\n",
        number % 20
    )
}

/// A route of about 4 KB.
fn virtual_service(version: usize) -> String {
    let value = "x".repeat(4000);
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: v, namespace: ns0}}\nspec: {{hosts: \
         [s0.example.com], http: [{{headers: {{request: {{set: {{x-a: '{value}{version}'}}}}}}, route: [{{destination: {{host: \
         s0.example.com}}}}]}}]}}\n"
    )
}

fn timed(arguments: &[&str], address: &str) -> Duration {
    let begun = Instant::now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pilotctl"));
    let status = command.args(arguments).args(["--server", address]).stdout(Stdio::null()).status();
    assert!(status.is_ok_and(|status| status.code() == Some(0)), "pilotctl {arguments:?} failed");
    begun.elapsed()
}
