//! Compares istiod and pilot-discovery on one API server with the same objects: fetches the resources of the same proxies
//! from both and prints every difference. Exits with 1 if there is one.
//! `cargo xtask compare [--services N] [--seed N]` provides the servers and runs this.

// These functions belong to a test, but have no test attribute.
#![allow(clippy::unwrap_used)]

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../tests/kubernetes/cluster.rs"]
mod cluster;
mod mesh;
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../tests/kubernetes/serving.rs"]
mod serving;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::cases::{CaseProxy, Dump, RECORDED_ENV, over_stream};
use testkit::envoy::XdsTransport;
use testkit::istiod::Istiod;
use testkit::kubernetes::ApiServer;
use tokio::runtime::{Handle, Runtime};

use crate::mesh::Mesh;

/// Timeout for a server to process all objects.
const PATIENCE: Duration = Duration::from_secs(300);
/// Number of rounds: istiod's output is not deterministic.
const ROUNDS: usize = 3;
/// Neither server may write statuses, because both would write the same objects.
const SILENT: (&str, &str) = ("PILOT_ENABLE_GATEWAY_API_STATUS", "false");

fn main() -> ExitCode {
    let (services, seed) = wanted(std::env::args().skip(1));
    let mesh = mesh::generate(services, seed);
    println!("seed {seed}: {}", mesh.summary());
    let runtime = Runtime::new().expect("a runtime");
    let (api_server, peer, ours) = runtime.block_on(start(&mesh));
    let ours = ours.addresses.grpc.expect("the gRPC port is on");
    touch_slices(&runtime, &api_server, &mesh);
    println!("both serve; waiting until they have said all");
    let theirs = rounds("istiod", runtime.handle(), peer.grpc(), &mesh.proxies);
    let mut ours = rounds("pilot-discovery", runtime.handle(), ours, &mesh.proxies);
    let ours = match &ours[..] {
        [.., before, last] if before == last => ours.pop().unwrap_or_default(),
        [.., before, last] => panic!("pilot-discovery does not answer the same twice: {:?}", before.differing(last)),
        _ => panic!("pilot-discovery does not answer"),
    };
    let restless: BTreeSet<String> = theirs.windows(2).flat_map(|pair| pair[0].differing(&pair[1])).collect();
    for resource in &restless {
        println!("istiod answers this or that: {resource}");
    }
    let comparison = Dump::nearest(theirs, &ours).compare(&ours);
    comparison.print();
    let (equal, all) = comparison.figures();
    println!("{equal} of {all} resources are equal, for {} proxies", mesh.proxies.len());
    if equal == all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Number of services, and seed.
fn wanted(mut args: impl Iterator<Item = String>) -> (usize, u64) {
    let (mut services, mut seed) = (200, 1);
    while let Some(name) = args.next() {
        let value = args.next().and_then(|value| value.parse::<u64>().ok());
        match (name.as_str(), value) {
            ("--services", Some(value)) => services = usize::try_from(value).expect("a number of services that fits"),
            ("--seed", Some(value)) => seed = value,
            _ => panic!("usage: compare [--services N] [--seed N]"),
        }
    }
    (services, seed)
}

/// The API server with the mesh in it, and both servers on it.
async fn start(mesh: &Mesh) -> (ApiServer, Istiod, discovery::startup::Server) {
    let begun = Instant::now();
    let api_server = ApiServer::start().await;
    let settings = api_server.folder().join("mesh.yaml");
    let networks = api_server.folder().join("networks.yaml");
    std::fs::write(&settings, &mesh.settings).expect("the folder is ours");
    std::fs::write(&networks, &mesh.networks).expect("the folder is ours");
    api_server.define(&cluster::definitions()).await;
    cluster::create(&api_server, &mesh.objects).await;
    println!("{} objects made in {:.0?}", mesh.objects.len(), begun.elapsed());
    let (begun, mut env) = (Instant::now(), RECORDED_ENV.to_vec());
    env.push(SILENT);
    let env: Vec<(String, String)> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let peer = Istiod::start(&api_server, (&settings, &networks), &env).await;
    println!("istiod ready after {:.1?}", begun.elapsed());
    let begun = Instant::now();
    let ours = serving::serve(api_server.kubeconfig(), Some((&settings, &networks)), &env).await;
    println!("pilot-discovery ready after {:.1?}", begun.elapsed());
    (api_server, peer, ours)
}

/// Updates every slice: istiod evaluates an endpoint with the Service and Pod known when the slice arrives, and during the
/// first list it may know neither.
fn touch_slices(runtime: &Runtime, api_server: &ApiServer, mesh: &Mesh) {
    let mark = json!({"metadata": {"annotations": {"example.com/seen": "again"}}});
    let slices = mesh.objects.iter().filter(|object: &&Value| object["kind"] == "EndpointSlice");
    runtime.block_on(async {
        for slice in slices {
            api_server.patch(&cluster::path(slice).1, &mark).await.expect("a slice that was made before");
        }
        cluster::create(api_server, &mesh.last).await;
    });
}

/// Fetches everything several times, once the server has the last object.
fn rounds(name: &str, runtime: &Handle, address: SocketAddr, proxies: &[CaseProxy]) -> Vec<Dump> {
    let take = |proxies: &[CaseProxy]| Dump::take(&over_stream(runtime.clone(), address, XdsTransport::Sotw), proxies);
    let begun = Instant::now();
    let has_last = || take(&proxies[..1]).names(&proxies[0].name, "clusters").contains(&mesh::LAST_CLUSTER);
    while !has_last() {
        assert!(begun.elapsed() < PATIENCE, "{name} does not get to the last object");
    }
    // The last change may have reached only some types, so the first round does not count.
    let rounds: Vec<Dump> = (0..=ROUNDS).map(|_| take(proxies)).skip(1).collect();
    println!("{name} asked {ROUNDS} times in {:.1?}", begun.elapsed());
    rounds
}
