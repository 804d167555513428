//! `pilotctl check`: the problems of a running server: mistakes in files, likely mistakes between objects, rejected
//! resources, sources that fail. Exit status 0 without problems, 1 with, 3 if the server cannot be reached. `--pre` is in
//! `pre`: whether a cluster or machine is ready for an installation.

mod pre;
mod pre_cluster;
mod pre_finding;
mod pre_machine;

use anyhow::Result;
use clap::Args;
use model::problem::ProblemCode;
use serde::Deserialize;

use crate::cluster::ClusterAccess;
use crate::control_plane::{ControlPlaneOptions, UNREACHABLE};
use crate::output::{ListFormat, OutputOptions};

const FOUND: u8 = 1;

#[derive(Args)]
pub(crate) struct CheckOptions {
    #[command(flatten)]
    server: ControlPlaneOptions,

    /// Also print what is only worth knowing
    #[arg(long)]
    all: bool,

    /// The same as `-o json`
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    output: OutputOptions,

    /// Check whether a cluster is ready for an installation, instead of a running server: version, permissions,
    /// definitions, webhooks and control planes that are there already
    #[arg(long)]
    pre: bool,

    /// With --pre: check this machine instead of a cluster, for a mesh without Kubernetes: ports, Envoy, limits
    #[arg(long, requires = "pre")]
    machine: bool,

    /// With --pre: namespace of the control plane
    #[arg(long, requires = "pre", default_value = "istio-system")]
    control_plane_namespace: String,

    #[command(flatten)]
    cluster: ClusterAccess,
}

impl CheckOptions {
    fn output(&self) -> OutputOptions {
        if self.json { OutputOptions { output: ListFormat::Json } } else { self.output }
    }
}

/// A problem as `/debug/problems` has it.
#[derive(Deserialize)]
struct ServerProblem {
    code: String,
    severity: String,
    text: String,
}

/// A source as `/debug/sources` has it.
#[derive(Deserialize)]
struct ServerSource {
    source: String,
    state: String,
    reason: Option<String>,
}

/// Prints the problems; returns the exit status.
pub(crate) async fn run(options: &CheckOptions) -> Result<u8> {
    if options.pre {
        return pre::run(options).await;
    }
    let pages = async {
        anyhow::Ok((options.server.page("/debug/problems").await?, options.server.page("/debug/sources").await?))
    };
    let (problems, sources) = match pages.await {
        Ok(pages) => pages,
        Err(error) => {
            eprintln!(
                "pilotctl: {error:#}; is pilot-discovery running, and is --server the address of its --monitoringAddr?"
            );
            return Ok(UNREACHABLE);
        }
    };
    let is_printed = options.output().printed(&serde_json::json!({"problems": problems, "sources": sources}))?;
    let mut problems: Vec<ServerProblem> = serde_json::from_value(problems)?;
    let sources: Vec<ServerSource> = serde_json::from_value(sources)?;
    problems.retain(|problem| options.all || problem.severity != "info");
    problems.sort_by(|a, b| (rank(a), &a.text).cmp(&(rank(b), &b.text)));
    let failing: Vec<&ServerSource> = sources.iter().filter(|source| source.state != "live").collect();
    if !is_printed {
        print(&problems, &failing, sources.len(), &options.server.server);
    }
    let is_good = failing.is_empty() && problems.iter().all(|problem| problem.severity == "info");
    Ok(if is_good { 0 } else { FOUND })
}

/// Most severe first.
fn rank(problem: &ServerProblem) -> u8 {
    match problem.severity.as_str() {
        "error" => 0,
        "warning" => 1,
        _ => 2,
    }
}

fn print(problems: &[ServerProblem], failing: &[&ServerSource], sources: usize, server: &str) {
    for problem in problems {
        println!("{} [{}] {}", problem.severity, problem.code, problem.text);
    }
    for source in failing {
        let reason = source.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
        println!("error [{}] source {} is {}{reason}", ProblemCode::Source, source.source, source.state);
    }
    match (problems.first(), failing.is_empty()) {
        (None, true) => println!("✔ no problems at {server}: {sources} sources are live"),
        (Some(first), _) => eprintln!("\n`pilotctl help {}` explains a code", first.code),
        (None, false) => {}
    }
}
