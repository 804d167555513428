//! `cargo xtask stories [NAME...]`: end-to-end stories in a cluster, under continuous traffic. Every failed request counts:
//! a story that must not lose any fails with the first one.

mod clusters;
mod gateways;
mod moves;
mod pods;
mod rolling;
mod shop;
mod tour;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::cluster::{Cluster, ControlPlaneKind, Lifetime, MachineOptions};

/// A story: what happens while requests are sent. Its result is printed as a table.
struct Story {
    name: &'static str,
    run: StoryPlace,
}

/// Where a story is played.
enum StoryPlace {
    /// In a cluster with the shop, which stories share.
    Shop(fn(&Cluster) -> Result<Vec<StoryRow>>),
    /// In clusters that it starts under the given name.
    Own(fn(&Path, &str) -> Result<Vec<StoryRow>>),
}

const STORIES: &[Story] = &[
    shop("tour", tour::run),
    shop("application", rolling::application),
    shop("gateway", rolling::gateway),
    shop("control-plane", rolling::control_plane),
    shop("kill", rolling::kill),
    shop("drain", pods::drain),
    shop("flapping", pods::flapping),
    shop("crash-loop", pods::crash_loop),
    shop("job", pods::job),
    shop("dns", pods::dns),
    shop("quota", gateways::quota),
    shop("many-gateways", gateways::many),
    own("two-clusters", clusters::run),
    own("canary", moves::canary),
    own("migration", moves::migration),
];

const fn shop(name: &'static str, run: fn(&Cluster) -> Result<Vec<StoryRow>>) -> Story {
    Story { name, run: StoryPlace::Shop(run) }
}

const fn own(name: &'static str, run: fn(&Path, &str) -> Result<Vec<StoryRow>>) -> Story {
    Story { name, run: StoryPlace::Own(run) }
}

/// The story of a quota, as a part of the short test.
pub(crate) fn quota(cluster: &Cluster) -> Result<()> {
    gateways::quota(cluster).map(drop)
}

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

/// What to play, and where.
#[derive(Default)]
struct StoryOptions<'a> {
    /// Name of a running cluster to use.
    cluster: Option<&'a str>,
    /// What to install into a new one.
    server: ControlPlaneKind,
    /// Names of stories; all if empty.
    names: Vec<&'a str>,
}

impl<'a> StoryOptions<'a> {
    fn parse(args: &[&'a str]) -> Result<StoryOptions<'a>> {
        let mut options = StoryOptions::default();
        let mut rest = args.iter();
        while let Some(argument) = rest.next() {
            let mut value = || rest.next().copied().with_context(|| format!("{argument} needs a value"));
            match *argument {
                "--cluster" => options.cluster = Some(value()?),
                "--server" => options.server = ControlPlaneKind::parse(value()?)?,
                name if STORIES.iter().any(|story| story.name == name) => options.names.push(name),
                unknown => {
                    let known: Vec<&str> = STORIES.iter().map(|story| story.name).collect();
                    bail!("no story is called {unknown:?}; there are {}", known.join(", "));
                }
            }
        }
        Ok(options)
    }

    fn stories(&self) -> impl Iterator<Item = &'static Story> {
        STORIES.iter().filter(|story| self.names.is_empty() || self.names.contains(&story.name))
    }

    /// The cluster that stories share, with the shop.
    fn shop(&self, root: &Path) -> Result<Cluster> {
        let cluster = match self.cluster {
            Some(name) => Cluster::running(&MachineOptions::named(name).folder())?
                .with_context(|| format!("cluster {name} is not running"))?,
            None => {
                let name = format!("stories-{}", std::process::id());
                let started = Cluster::start(root, &MachineOptions::named(&name), Lifetime::Ours)?;
                self.server.install(&started)?;
                started
            }
        };
        shop::install(&cluster)?;
        Ok(cluster)
    }
}

/// Runs the named stories, or all, one after the other.
pub(crate) fn run(root: &Path, args: &[&str]) -> Result<()> {
    let options = StoryOptions::parse(args)?;
    let begin = Instant::now();
    let mut shop = None;
    let mut failed = Vec::new();
    println!("| story | step | requests | failures | longest gap | seen |\n|---|---|---|---|---|---|");
    for story in options.stories() {
        let start = Instant::now();
        let played = match story.run {
            StoryPlace::Own(run) => run(root, &format!("{}-{}", story.name, std::process::id())),
            StoryPlace::Shop(run) => {
                if shop.is_none() {
                    shop = Some(options.shop(root)?);
                }
                shop.as_ref().context("no cluster").and_then(|cluster| measured(cluster, run))
            }
        };
        match played {
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
    println!("{:.0} s in all", begin.elapsed().as_secs_f64());
    if !failed.is_empty() {
        bail!("stories that failed: {}", failed.join(", "));
    }
    Ok(())
}

/// Plays a story and adds what the control plane used for it. Of a replica that has ended meanwhile nothing is known.
fn measured(cluster: &Cluster, run: fn(&Cluster) -> Result<Vec<StoryRow>>) -> Result<Vec<StoryRow>> {
    let before = cluster.usage("pilot-discovery")?;
    let mut rows = run(cluster)?;
    let after = cluster.usage("pilot-discovery")?;
    rows.push(StoryRow {
        step: "control plane".to_owned(),
        requests: 0,
        failures: 0,
        gap_ms: 0,
        note: format!(
            "{:.2} s of CPU; memory {:.0} MiB, at most {:.0} MiB",
            after.cpu_seconds - before.cpu_seconds,
            after.resident_mib,
            after.peak_mib
        ),
    });
    Ok(rows)
}
