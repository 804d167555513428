//! Memory does not grow with edits or with clients that disconnected.

use std::time::Duration;

use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};
use testkit::wait;

use crate::honest::{CART, Honest};
use crate::load::{Answers, Proxy, edit, service};

/// Number of edits, and size of the edited object. Parsed, each version needs about 1.5 MB.
const EDITS: usize = 40;
const LARGE: usize = 60_000;
/// Allowed growth: caches and previous objects up to their limits, and fragmentation of a debug build.
const LEFT_BEHIND_KIB: u64 = 24 * 1024;

async fn start(files: impl Iterator<Item = (String, String)>) -> DiscoveryProcess {
    let files = files.chain([("cart.yaml".to_owned(), CART.to_owned())]).collect();
    let setup = DiscoveryOptions { files, ..DiscoveryOptions::default() };
    DiscoveryProcess::start(env!("CARGO_BIN_EXE_pilot-discovery"), setup).await
}

fn memory_kib(server: &mut DiscoveryProcess) -> u64 {
    server.process().check_alive();
    server.process().memory_kib().expect("a running process")
}

/// Waits until memory is below a limit.
async fn settled_kib(server: &mut DiscoveryProcess, limit: u64) -> u64 {
    wait::until("memory to come back", async || {
        let now = memory_kib(server);
        if now <= limit { Ok(now) } else { Err(format!("{now} KiB, at most {limit} expected")) }
    })
    .await
}

/// Edits one object repeatedly: memory must return to its size after the first edits.
async fn check_edits(client: Option<Answers>) {
    let file = |revision| ("s1.yaml".to_owned(), service(1, LARGE, revision));
    let mut server = start([file(0)].into_iter()).await;
    let honest = Honest::start(&server).await;
    let proxy = match client {
        Some(answers) => Some(Proxy::start(&server, 1, answers).await),
        None => None,
    };
    let (mut before, mut peak) = (0, 0);
    for revision in 1..=EDITS {
        let (name, text) = file(revision);
        edit(&server, &name, &text).await;
        peak = peak.max(memory_kib(&mut server));
        if revision == 5 {
            before = memory_kib(&mut server);
        }
    }
    honest.assert_served(&format!("edits of one object, {client:?}")).await;
    let after = settled_kib(&mut server, before + LEFT_BEHIND_KIB).await;
    let pushes = proxy.as_ref().map_or(0, Proxy::routes);
    eprintln!("{EDITS} edits of {LARGE} bytes, {pushes} pushes: {before} KiB, at most {peak}, in the end {after}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_03_edits_do_not_grow_memory() {
    check_edits(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_03_edits_do_not_grow_memory_while_a_client_follows() {
    check_edits(Some(Answers::Always)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_03_edits_do_not_grow_memory_while_a_client_never_answers() {
    check_edits(Some(Answers::Never)).await;
}

const SERVICES: usize = 20;
const PROXIES: usize = 8;
const CHURN: usize = 40;
const SMALL: usize = 20_000;
/// CPU time of a debug build for all edits, each of which is sent to all proxies; 20 s were measured.
const CHURN_CPU: Duration = Duration::from_secs(100);
/// Allowed growth in a debug build, beyond a fifth of a fresh server's memory.
const FRAGMENTS_KIB: u64 = 4 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_16_memory_of_disconnected_clients_is_freed() {
    let file = |number: usize, revision| (format!("s{number}.yaml"), service(number, SMALL, revision));
    let mut fresh = start((0..SERVICES).map(|number| file(number, 1))).await;
    let mut server = start((0..SERVICES).map(|number| file(number, 0))).await;
    let (mut proxies, honest) = (Vec::new(), Honest::start(&server).await);
    for number in 0..PROXIES {
        proxies.push(Proxy::start(&server, number, Answers::Always).await);
    }
    for revision in 1..=CHURN {
        let (name, text) = file(revision % SERVICES, revision);
        edit(&server, &name, &text).await;
    }
    let busy = memory_kib(&mut server);
    honest.assert_served_within("edits and many proxies", CHURN_CPU).await;
    drop(proxies);
    let fresh = memory_kib(&mut fresh);
    let after = settled_kib(&mut server, fresh + fresh / 5 + FRAGMENTS_KIB).await;
    eprintln!("{PROXIES} proxies, {CHURN} edits: {busy} KiB; {after} after they left, {fresh} in a fresh server");
}
