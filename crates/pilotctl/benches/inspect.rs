//! Time of `pilotctl ps` and `pilotctl pc` against a server with many proxies, and CPU of the server while nothing asks.
//! `cargo bench -p pilotctl --bench inspect [-- PROXIES]`; the server is the binary that `PILOTAGE_DISCOVERY` names, else a
//! debug build.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::fleet::{Fleet, FleetOptions};
use testkit::programs;

const PROXIES: usize = 2000;
const SERVICES: usize = 100;
const ROUNDS: usize = 10;

#[tokio::main]
async fn main() {
    let proxies = std::env::args().filter_map(|text| text.parse().ok()).next().unwrap_or(PROXIES);
    let text: String = (0..SERVICES).map(service).collect();
    let options = DiscoveryOptions { files: vec![("services.yaml".to_owned(), text)], ..DiscoveryOptions::default() };
    let binary = std::env::var_os("PILOTAGE_DISCOVERY").map(PathBuf::from);
    let binary = binary.unwrap_or_else(|| programs::binary("discovery", "pilot-discovery"));
    let mut server = DiscoveryProcess::start(&binary.to_string_lossy(), options).await;
    let _fleet = Fleet::connect(server.grpc(), FleetOptions { workloads: proxies, ..FleetOptions::default() }).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let address = server.monitoring().to_string();
    for arguments in [&["ps"][..], &["pc", "all", "p7.ns7"], &["pc", "cluster", "p7.ns7"], &["version"]] {
        let mut times: Vec<Duration> = (0..ROUNDS).map(|_| timed(arguments, &address)).collect();
        times.sort();
        println!("pilotctl {}: median {:?}, most {:?}", arguments.join(" "), times[ROUNDS / 2], times[ROUNDS - 1]);
    }
    let before = server.process().cpu().unwrap_or_default();
    tokio::time::sleep(Duration::from_secs(20)).await;
    let used = server.process().cpu().unwrap_or_default() - before;
    println!("{proxies} proxies, nothing asks: {used:?} of CPU time in 20 s");
}

fn service(number: usize) -> String {
    format!(
        "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: s{number}, namespace: ns{}}}\nspec: {{hosts: \
         [s{number}.example.com], addresses: [10.96.0.{number}], ports: [{{number: 80, name: http, protocol: HTTP}}], resolution: \
         STATIC, endpoints: [{{address: 10.0.0.{number}}}]}}\n",
        number % 20
    )
}

fn timed(arguments: &[&str], address: &str) -> Duration {
    let begun = Instant::now();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pilotctl"));
    let status = command.args(arguments).args(["--server", address]).stdout(Stdio::null()).status();
    assert!(status.is_ok_and(|status| status.code() == Some(0)), "pilotctl {arguments:?} failed");
    begun.elapsed()
}
