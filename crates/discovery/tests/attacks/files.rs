//! Hostile files: pipes and devices instead of files, files that need much memory when parsed, and tens of thousands of
//! problems. Other files are still watched, and the process exits on SIGTERM.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use api::TypeUrl;
use api::envoy::config::core::v3::Node;
use serde_json::Value;
use testkit::discovery::DiscoveryProcess;
use testkit::{client, wait};
use xds::client::SotwClient;

use crate::honest::{CART, Honest, ask, channel, server};

/// Timeout for a debug build on a busy machine.
const SOON: Duration = Duration::from_secs(10);

/// Waits until a new client gets the cluster of this host; returns the elapsed time.
async fn served(server: &DiscoveryProcess, host: &str) -> Duration {
    let begun = Instant::now();
    let name = format!("outbound|80||{host}.shop.svc.cluster.local");
    wait::until(&format!("the cluster {name}"), async || {
        let id = "sidecar~10.0.0.2~other.other~other.svc.cluster.local".to_owned();
        let node = Node { id, ..Node::default() };
        let stream = SotwClient::open(channel(server).await, node, &TypeUrl::CLUSTER, &[]).await;
        let response =
            stream.map_err(|s| s.to_string())?.next().await.map_err(|s| s.to_string())?.ok_or("no answer")?;
        let is_it = |value: &[u8]| value.windows(name.len()).any(|window| window == name.as_bytes());
        if response.resources.iter().any(|r| is_it(&r.value)) { Ok(()) } else { Err("not there".to_owned()) }
    })
    .await;
    begun.elapsed()
}

fn named(host: &str) -> String {
    CART.replace("cart", host)
}

/// State of the file source, and the reason.
async fn state(server: &DiscoveryProcess) -> Result<(String, String), String> {
    let page = client::get(server.http(), "discovery", "/debug/sources").await?.json();
    let of_files = page.as_array().and_then(|all| all.iter().find(|one| one["source"] == "files")).cloned();
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    of_files.map(|one| (word(&one["state"]), word(&one["reason"]))).ok_or("no such source".to_owned())
}

fn make_pipe(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status().expect("run mkfifo");
    assert!(made.success());
}

/// Swaps a file and a pipe so often that one is checked and the other one opened.
fn race(server: &DiscoveryProcess) {
    let (cart, aside) = (server.config().join("cart.yaml"), server.config().with_file_name("aside"));
    for _ in 0..300 {
        let _ = fs::remove_file(&aside);
        make_pipe(&aside);
        fs::rename(&aside, &cart).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        fs::write(&aside, CART).unwrap();
        fs::rename(&aside, &cart).unwrap();
    }
    make_pipe(&aside);
    fs::rename(&aside, &cart).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_08_a_pipe_instead_of_a_file_blocks_nothing() {
    let mut server = server(&["--shutdownDuration=1s"], &[]).await;
    ask(channel(&server).await).await.expect("the cart");
    let honest = Honest::start(&server).await;
    tokio::task::block_in_place(|| race(&server));
    symlink(server.config().join("cart.yaml"), server.config().join("link.yaml")).unwrap();
    symlink("/dev/zero", server.config().join("zero.yaml")).unwrap();
    fs::create_dir(server.config().join("folder.yaml")).unwrap();
    wait::until("a stale source that names the pipe", async || match state(&server).await? {
        (state, reason) if state == "stale" && reason.contains("cart.yaml") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    server.write("other.yaml", &named("other"));
    let wait = served(&server, "other").await;
    assert!(wait < SOON, "another file was served after {wait:?}");
    eprintln!("another file served after {wait:?}");
    honest.assert_served("pipes instead of files").await;
    server.write("cart.yaml", &named("cart"));
    server.remove("link.yaml");
    server.remove("zero.yaml");
    wait::until("a live source", async || match state(&server).await? {
        (state, _) if state == "live" => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    let begun = Instant::now();
    assert!(server.process().terminate().await.success());
    eprintln!("ended {:?} after SIGTERM", begun.elapsed());
}

fn peak_kib(server: &mut DiscoveryProcess) -> u64 {
    server.process().peak_memory_kib().expect("a running process")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_15_a_huge_file_delays_no_other_and_needs_little_memory() {
    let mut server = server(&[], &[]).await;
    ask(channel(&server).await).await.expect("the cart");
    let before = peak_kib(&mut server);
    let honest = Honest::start(&server).await;
    // Each mapping needs hundreds of bytes once parsed.
    server.write("huge.yaml", &"- {a: 1}\n".repeat(60_000_000 / 9));
    let mut longest = Duration::ZERO;
    for n in 0..5 {
        server.write("small.yaml", &named(&format!("small-{n}")));
        longest = longest.max(served(&server, &format!("small-{n}")).await);
    }
    wait::until_within(Duration::from_secs(120), "a problem about the huge file", async || {
        let page = client::get(server.http(), "discovery", "/debug/problems").await?;
        if page.body.contains("huge.yaml") { Ok(()) } else { Err("not there".to_owned()) }
    })
    .await;
    let peak = peak_kib(&mut server);
    eprintln!(
        "60 MB of small mappings: peak {} MiB, before {} MiB; other files served within {longest:?}",
        peak >> 10,
        before >> 10,
    );
    assert!(longest < SOON, "{longest:?}");
    assert!(peak < before + (600 << 10), "{before} KiB before, {peak} KiB at most");
    honest.assert_served("a file of small mappings").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hole_15_a_change_among_forty_thousand_problems_is_cheap() {
    let mut server = server(&[], &[]).await;
    let honest = Honest::start(&server).await;
    for file in 0..40 {
        let document = |n: usize| format!("---\n{{apiVersion: v1, kind: Foo, metadata: {{name: a{n}}}}}\n");
        let text: String = (0..1000).map(|n| document(file * 1000 + n)).collect();
        server.write(&format!("foreign-{file}.yaml"), &text);
    }
    wait::until_within(Duration::from_secs(60), "forty thousand problems", async || {
        let page = client::get(server.http(), "discovery", "/debug/problems").await?.json();
        let count = page.as_array().map_or(0, Vec::len);
        if count >= 40_000 { Ok(()) } else { Err(count.to_string()) }
    })
    .await;
    let before = server.process().cpu().expect("a running process");
    for n in 0..3 {
        server.write("small.yaml", &format!("{}---\nkind: Foo{n}\n", named(&format!("small-{n}"))));
        served(&server, &format!("small-{n}")).await;
    }
    let cost = (server.process().cpu().expect("a running process") - before) / 3;
    eprintln!("a change among 40,000 problems: {cost:?} of CPU");
    assert!(cost < Duration::from_secs(4), "{cost:?}");
    honest.assert_served("forty thousand problems").await;
}
