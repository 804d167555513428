//! Memory that a server owns (`RssAnon`) after edits and clients: 1,000 edits of a file of 0.9 MB (without a client, with
//! one, with one that never acknowledges), and ten minutes of edits in a mesh of 300 services and 50 proxies, which then disconnect.
//! `cargo bench -p discovery --bench churn`, with `-- SECONDS EDITS` for less.

use std::time::{Duration, Instant};

use testkit::discovery::{DiscoveryOptions, DiscoveryProcess};

use crate::load::{Answers, Proxy, edit, service};

#[allow(dead_code)]
#[path = "../tests/attacks/load.rs"]
mod load;

const FILE_BYTES: usize = 900_000;
const SERVICES: usize = 300;
const SMALL_BYTES: usize = 3000;
const PROXIES: usize = 50;
/// Time limit for freeing the memory of disconnected clients.
const REST: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() {
    let numbers: Vec<u64> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let (seconds, edits) = (numbers.first().copied().unwrap_or(600), numbers.get(1).copied().unwrap_or(1000));
    for (who, answers) in [
        ("no client", None),
        ("a client", Some(Answers::Always)),
        ("a client that never answers", Some(Answers::Never)),
    ] {
        after_edits(who, answers, edits).await;
    }
    after_churn(Duration::from_secs(seconds)).await;
}

async fn start(files: Vec<(String, String)>) -> DiscoveryProcess {
    DiscoveryProcess::start(
        env!("CARGO_BIN_EXE_pilot-discovery"),
        DiscoveryOptions { files, ..DiscoveryOptions::default() },
    )
    .await
}

async fn rest(server: &mut DiscoveryProcess, time: Duration) -> u64 {
    tokio::time::sleep(time).await;
    server.process().owned_kib().unwrap_or_default()
}

async fn after_edits(who: &str, answers: Option<Answers>, edits: u64) {
    let file = |revision| service(1, FILE_BYTES, revision);
    let mut server = start(vec![("s1.yaml".to_owned(), file(0))]).await;
    let proxy = match answers {
        Some(answers) => Some(Proxy::start(&server, 1, answers).await),
        None => None,
    };
    edit(&server, "s1.yaml", &file(1)).await;
    let before = rest(&mut server, REST / 10).await;
    let mut peak = before;
    for revision in 2..=edits {
        edit(&server, "s1.yaml", &file(revision as usize)).await;
        peak = peak.max(rest(&mut server, Duration::ZERO).await);
    }
    let after = rest(&mut server, REST / 10).await;
    println!("{edits} edits of {FILE_BYTES} bytes, {who}: {before} KiB before, at most {peak}, {after} after");
    drop(proxy);
}

async fn after_churn(time: Duration) {
    let file = |number, revision| (format!("s{number}.yaml"), service(number, SMALL_BYTES, revision));
    let mut files: Vec<(String, String)> = (0..SERVICES).map(|number| file(number, 0)).collect();
    let mut server = start(files.clone()).await;
    let alone = rest(&mut server, REST / 10).await;
    let mut proxies = Vec::new();
    for number in 0..PROXIES {
        proxies.push(Proxy::start(&server, number, Answers::Always).await);
    }
    let served = rest(&mut server, REST / 10).await;
    let (begun, mut revision, mut peak) = (Instant::now(), 0, served);
    while begun.elapsed() < time {
        revision += 1;
        let number = revision * 7 % SERVICES;
        files[number] = file(number, revision);
        edit(&server, &files[number].0, &files[number].1).await;
        peak = peak.max(rest(&mut server, Duration::ZERO).await);
        if revision % 10 == 0 {
            let at = revision / 10 % PROXIES;
            proxies[at] = Proxy::start(&server, at, Answers::Always).await;
        }
    }
    let busy = rest(&mut server, Duration::ZERO).await;
    drop(proxies);
    let left = rest(&mut server, REST).await;
    println!(
        "{SERVICES} services: {alone} KiB; {PROXIES} proxies: {served}; {revision} edits: {busy}, at most {peak}; \
         {REST:?} after the last client left: {left}"
    );
    let mut fresh = start(files).await;
    println!("a fresh server with the same folder: {} KiB", rest(&mut fresh, REST / 10).await);
}
