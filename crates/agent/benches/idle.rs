//! Memory of an idle agent, and the time until Envoy is ready.
//! `cargo bench -p agent --bench idle`

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::process::Process;
use testkit::{client, ports, programs, servers, wait};

const STARTS: usize = 5;
/// Long enough for memory used at start to be released.
const REST: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() {
    if servers::without("envoy") {
        return;
    }
    let binary = programs::binary("discovery", "pilot-discovery");
    let discovery = DiscoveryProcess::start(&binary.to_string_lossy(), DiscoveryOptions::default()).await;
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let (mut agent, took) = started(discovery.grpc()).await;
        times.push(took);
        if times.len() == STARTS {
            tokio::time::sleep(REST).await;
            println!("idle agent: {}", memory(&agent));
        }
        agent.terminate().await;
    }
    times.sort();
    println!("ready after {} ms (minimum), {} ms (median)", times[0].as_millis(), times[STARTS / 2].as_millis());
}

/// Starts an agent with Pilot 0.8 flags and measures the time until Envoy is ready.
async fn started(discovery: SocketAddr) -> (Process, Duration) {
    let folder = tempfile::tempdir().expect("a folder").keep();
    let status = ports::free();
    let line = format!(
        "proxy sidecar --ip 127.0.0.1 --id a-1.shop --domain shop.svc.cluster.local --serviceCluster a \
         --discoveryAddress {discovery} --configPath {} --binaryPath {} --proxyAdminPort {} --statusPort {status} \
         --concurrency 1 --controlPlaneAuthPolicy NONE",
        folder.display(),
        servers::binary("envoy").display(),
        ports::free(),
    );
    let args: Vec<&str> = line.split_whitespace().collect();
    let env = [
        ("ENVOY_STATUS_PORT", "0"),
        ("ENVOY_PROMETHEUS_PORT", "0"),
        ("ISTIO_META_INTERCEPTION_MODE", "NONE"),
        ("PROXY_CONFIG", "terminationDrainDuration: 0s"),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let began = Instant::now();
    let mut process = Process::start("pilot-agent", Path::new(env!("CARGO_BIN_EXE_pilot-agent")), &args, &env);
    wait::until("a ready envoy", async || {
        process.check_alive();
        let reply = client::get((Ipv4Addr::LOCALHOST, status).into(), "agent", "/healthz/ready").await?;
        if reply.status.is_success() { Ok(()) } else { Err(reply.body) }
    })
    .await;
    (process, began.elapsed())
}

/// Resident memory of the process: total, anonymous and file-backed.
fn memory(process: &Process) -> String {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap_or_default();
    let names = ["VmRSS", "RssAnon", "RssFile", "Threads"];
    let lines = status.lines().filter(|line| names.iter().any(|name| line.starts_with(name)));
    lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join(", ")
}
