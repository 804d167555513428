//! The configuration API next to kube-apiserver with etcd: memory and latencies with many objects, measured by a client of
//! client-go, and the time from a start to the first answer. `cargo bench -p discovery --bench config_api -- 10000`
//! `PILOTAGE_DISCOVERY` names another binary.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::kubernetes::ApiServer;
use testkit::process::Process;
use testkit::{ports, servers};

const OBJECTS: usize = 10_000;
const RESTARTS: usize = 5;
/// Long enough for temporary memory to be freed.
const REST: Duration = Duration::from_secs(5);

/// Figures by name.
type Figures = BTreeMap<String, f64>;

#[tokio::main]
async fn main() {
    let count = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(OBJECTS);
    let own = own_figures(count).await;
    let other = upstream_figures(count).await;
    println!("\n| {count} objects of 1 kB | configuration API | kube-apiserver and etcd |\n|---|---|---|");
    for (name, figure) in &own {
        let upstream = other.get(name).map_or("–".to_owned(), ToString::to_string);
        println!("| {name} | {figure} | {upstream} |");
    }
}

async fn own_figures(count: usize) -> Figures {
    let given = std::env::var("PILOTAGE_DISCOVERY").ok();
    let binary = given.as_deref().unwrap_or(env!("CARGO_BIN_EXE_pilot-discovery"));
    let folder = tempfile::tempdir().expect("a folder");
    let address = format!("127.0.0.1:{}", ports::free());
    let storage = folder.path().join("config.redb");
    let args = vec![format!("--configAPI={address}"), format!("--configStorage={}", storage.display())];
    let options = DiscoveryOptions { args, ..DiscoveryOptions::default() };
    let mut server = DiscoveryProcess::start(binary, options).await;
    let kubeconfig = folder.path().join("kubeconfig");
    let mut command = Command::new(binary);
    command.args(["config-api", "kubeconfig"]).arg(format!("--server=https://{address}"));
    let printed = command.arg(format!("--configStorage={}", storage.display())).output().expect("a kubeconfig");
    std::fs::write(&kubeconfig, printed.stdout).expect("a kubeconfig");
    let mut figures = vec![("memory_empty_mb", memory(server.process()))];
    let measured = measured(&kubeconfig, count).await;
    tokio::time::sleep(REST).await;
    figures.push(("memory_mb", memory(server.process())));
    let mut slowest = Duration::ZERO;
    for _ in 0..RESTARTS {
        let started = Instant::now();
        server.restart().await;
        slowest = slowest.max(started.elapsed());
    }
    figures.push(("restart_to_ready_ms", milliseconds(slowest)));
    measured.into_iter().chain(figures.into_iter().map(|(name, figure)| (name.to_owned(), figure))).collect()
}

async fn upstream_figures(count: usize) -> Figures {
    let server = ApiServer::start().await;
    let sum = || (server.memory_kib().iter().sum::<u64>() / 1024) as f64;
    let empty = sum();
    let mut figures = measured(server.kubeconfig(), count).await;
    tokio::time::sleep(REST).await;
    figures.insert("memory_empty_mb".to_owned(), empty);
    figures.insert("memory_mb".to_owned(), sum());
    figures
}

/// What the client prints.
async fn measured(kubeconfig: &Path, count: usize) -> Figures {
    let mut command = Command::new(informer());
    command.arg(format!("-kubeconfig={}", kubeconfig.display())).arg(format!("-measure={count}"));
    let output = tokio::task::spawn_blocking(move || command.output()).await.expect("a thread").expect("a client");
    let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{error}");
    let figure = |line: &str| {
        let (name, figure) = line.split_once(' ')?;
        Some((name.to_owned(), figure.parse().ok()?))
    };
    text.lines().filter_map(figure).collect()
}

fn informer() -> PathBuf {
    servers::binary("informer")
}

/// Resident memory in MB.
fn memory(process: &Process) -> f64 {
    (process.memory_kib().unwrap_or_default() / 1024) as f64
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 10_000.0).round() / 10.0
}
