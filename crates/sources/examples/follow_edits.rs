//! Measures how fast changes of a watched folder are read: a cold start on many files, then edits at a fixed
//! rate, each timed from the end of the write to the batch that contains it.
//!
//! `cargo run --release -p sources --example follow_edits [files] [edits a second] [seconds]`

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use model::change::{Batch, Change};
use model::config::Spec;
use sources::source::spawn;
use sources::store::files::FileStore;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() {
    let argument = |n: usize, default: u64| std::env::args().nth(n).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (files, rate, seconds) = (argument(1, 1000), argument(2, 100).max(1), argument(3, 10));
    let folder = tempfile::tempdir().expect("a temporary folder");
    for i in 0..files {
        fs::write(folder.path().join(format!("{i}.yaml")), entry(i, 0)).expect("write a file");
    }
    let (sender, mut batches) = mpsc::channel(16);
    let cancel = CancellationToken::new();
    let began = Instant::now();
    let running = spawn(FileStore::new(folder.path()), sender, cancel.clone());
    while !batches.recv().await.expect("the source runs").changes.iter().any(|c| matches!(c, Change::Synced)) {}
    println!("in sync with {files} files after {:?}", began.elapsed());

    let edits = rate * seconds;
    let path = folder.path().join("0.yaml");
    let writer = tokio::task::spawn_blocking(move || edit(&path, edits, Duration::from_secs(1) / rate as u32));
    let mut arrived = vec![None; edits as usize + 1];
    while arrived[edits as usize].is_none() {
        let batch = batches.recv().await.expect("the source runs");
        if let Some(version) = version(&batch) {
            arrived[version] = Some(Instant::now());
        }
    }
    let written = writer.await.expect("the writer");
    report(&written, &arrived);
    cancel.cancel();
    running.stopped().await;
}

/// Rewrites the file in place. Returns when each version was complete; version 0 is the initial one.
fn edit(path: &Path, edits: u64, pause: Duration) -> Vec<Instant> {
    let began = Instant::now();
    let mut written = vec![began];
    for version in 1..=edits {
        fs::write(path, entry(0, version)).expect("write a file");
        written.push(Instant::now());
        std::thread::sleep((began + pause * version as u32).saturating_duration_since(Instant::now()));
    }
    written
}

/// A version counts as read when it, or a later one, was sent.
fn report(written: &[Instant], arrived: &[Option<Instant>]) {
    let mut next = None;
    let mut behind: Vec<Duration> = Vec::new();
    for (written, arrived) in written.iter().zip(arrived).skip(1).rev() {
        next = arrived.or(next);
        behind.extend(next.map(|next| next.saturating_duration_since(*written)));
    }
    behind.sort();
    let sent = arrived.iter().flatten().count();
    let at = |share: f64| behind[((behind.len() - 1) as f64 * share) as usize];
    println!(
        "{} edits, {sent} sent; delay: median {:?}, 99 % {:?}, most {:?}",
        behind.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

fn version(batch: &Batch) -> Option<usize> {
    batch.changes.iter().rev().find_map(|change| match change {
        Change::Applied(object) => match &object.spec {
            Spec::ServiceEntry(entry) => entry.open().hosts.first()?.split('.').next()?.strip_prefix('v')?.parse().ok(),
            _ => None,
        },
        _ => None,
    })
}

fn entry(number: u64, version: u64) -> String {
    let endpoints: String = (0..10).map(|i| format!("  - address: 10.0.{}.{i}\n", version % 200)).collect();
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: s{number}, namespace: shop}}\nspec:\n  \
         hosts: [v{version}.s{number}.example.com]\n  ports: [{{number: 80, name: http, protocol: HTTP}}]\n  \
         resolution: STATIC\n  endpoints:\n{endpoints}"
    )
}
