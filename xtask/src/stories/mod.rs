//! `cargo xtask stories [NAME...]`: end-to-end stories in a cluster, under continuous traffic. Every failed request counts:
//! a story that must not lose any fails with the first one.

mod clusters;
mod gateways;
mod rolling;
mod shop;
mod tour;

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::cluster::{self, ChartRelease, Cluster, Lifetime, MachineOptions};

/// A story: what happens while requests are sent. Its result is printed as a table.
struct Story {
    name: &'static str,
    run: fn(&Cluster) -> Result<Vec<StoryRow>>,
}

const STORIES: &[Story] = &[
    Story { name: "tour", run: tour::run },
    Story { name: "application", run: rolling::application },
    Story { name: "gateway", run: rolling::gateway },
    Story { name: "control-plane", run: rolling::control_plane },
    Story { name: "kill", run: rolling::kill },
    Story { name: "two-clusters", run: clusters::run },
    Story { name: "quota", run: gateways::quota },
    Story { name: "many-gateways", run: gateways::many },
];

/// One row of the table.
#[derive(Debug)]
struct StoryRow {
    step: String,
    requests: u64,
    failures: u64,
    gap_ms: u128,
    /// What was seen.
    note: String,
}

/// Runs the named stories, or all, one after the other in one cluster.
pub(crate) fn run(root: &Path, args: &[&str]) -> Result<()> {
    let (running, names) = match args {
        ["--cluster", name, names @ ..] => (Some(*name), names),
        names => (None, names),
    };
    if let Some(unknown) = names.iter().find(|name| STORIES.iter().all(|story| story.name != **name)) {
        let known: Vec<&str> = STORIES.iter().map(|story| story.name).collect();
        bail!("no story is called {unknown:?}; there are {}", known.join(", "));
    }
    let cluster = match running {
        Some(name) => match Cluster::running(&MachineOptions::named(name).folder())? {
            Some(cluster) => cluster,
            None => bail!("cluster {name} is not running"),
        },
        None => {
            let started = Cluster::start(root, &MachineOptions::named("stories"), Lifetime::Ours)?;
            cluster::gateway_api(&started)?;
            ChartRelease::default().install(&started)?;
            started
        }
    };
    shop::install(&cluster)?;
    let mut failed = Vec::new();
    println!("| story | step | requests | failures | longest gap | seen |\n|---|---|---|---|---|---|");
    for story in STORIES.iter().filter(|story| names.is_empty() || names.contains(&story.name)) {
        let start = Instant::now();
        match (story.run)(&cluster) {
            Ok(rows) => {
                for StoryRow { step, requests, failures, gap_ms, note } in rows {
                    println!("| {} | {step} | {requests} | {failures} | {gap_ms} ms | {note} |", story.name);
                }
                println!("| {} | took {:.0} s | | | | |", story.name, start.elapsed().as_secs_f64());
            }
            Err(error) => {
                println!("| {} | FAILED: {error:#} | | | | |", story.name);
                failed.push(story.name);
            }
        }
    }
    if !failed.is_empty() {
        bail!("stories that failed: {}", failed.join(", "));
    }
    Ok(())
}
