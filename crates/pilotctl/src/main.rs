//! pilotctl, the user's tool: one file or folder per command.

#![forbid(unsafe_code)]

mod analyze;
mod cluster;
mod demo;
mod kube_inject;
mod workload;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "pilotctl", version, about = "Inspect and try out a mesh run by Pilotage")]
struct Args {
    #[command(subcommand)]
    command: PilotctlCommand,
}

#[derive(Subcommand)]
enum PilotctlCommand {
    /// Report likely mistakes in configuration files
    Analyze(analyze::AnalyzeOptions),
    /// Run a small shop on this machine: pilot-discovery and five workloads, each with a real Envoy
    Demo(demo::DemoOptions),
    /// Add the proxy to workloads in a file
    KubeInject(kube_inject::KubeInjectOptions),
    /// Prepare workloads outside Kubernetes
    #[command(subcommand)]
    Workload(workload::WorkloadCommand),
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Args::parse().command {
        PilotctlCommand::Analyze(options) => analyze::run(&options),
        PilotctlCommand::Demo(options) => demo::run(options).await.map(|()| 0),
        PilotctlCommand::KubeInject(options) => kube_inject::run(&options).await,
        PilotctlCommand::Workload(command) => workload::run(&command).await,
    };
    match done {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("pilotctl: {error:#}");
            ExitCode::FAILURE
        }
    }
}
