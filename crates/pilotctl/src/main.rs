//! pilotctl, the user's tool: one file or folder per command.

#![forbid(unsafe_code)]

mod analyze;
mod check;
mod cluster;
mod control_plane;
mod convert;
mod demo;
mod explain;
mod help_code;
mod kube_inject;
mod objects;
mod pc;
mod ps;
mod table;
mod workload;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use objects::{WriteCommand, write};

#[derive(Parser)]
#[command(name = "pilotctl", version, about = "Inspect, change and try out a mesh run by Pilotage")]
struct Args {
    #[command(subcommand)]
    command: PilotctlCommand,
}

#[derive(Subcommand)]
enum PilotctlCommand {
    /// Report likely mistakes in configuration files or of a running server
    Analyze(analyze::AnalyzeOptions),
    /// Print the problems of a running server; exit status 1 if there are any. `pilotctl help CODE` explains one
    Check(check::CheckOptions),
    /// Print objects of old Istio releases (RouteRule, Policy, ServiceRole and others) as objects of today's kinds
    Convert(convert::ConvertOptions),
    /// Run a small shop on this machine: pilot-discovery and five workloads, each with a real Envoy
    Demo(demo::DemoOptions),
    /// Say where a request of a proxy goes, and why
    Explain(explain::ExplainOptions),
    /// Print the configuration that a proxy is served
    #[command(alias = "proxy-config")]
    Pc(pc::PcOptions),
    /// List connected proxies and whether they have the newest configuration
    #[command(alias = "proxy-status")]
    Ps(ps::PsOptions),
    /// Apply objects of files to the configuration API or a cluster, by server-side apply
    Apply(objects::FileOptions),
    /// Create the objects of files
    Create(objects::FileOptions),
    /// Replace the objects of files
    Replace(objects::FileOptions),
    /// Delete the objects of files
    Delete(objects::FileOptions),
    /// Show what applying files would change; exit status 1 if anything
    Diff(objects::FileOptions),
    /// Print objects
    Get(objects::GetOptions),
    /// Change an object in an editor
    Edit(objects::EditOptions),
    /// Write all objects of the configuration API or a cluster to a folder
    Export(objects::ExportOptions),
    /// Add the proxy to workloads in a file
    KubeInject(kube_inject::KubeInjectOptions),
    /// Prepare workloads outside Kubernetes
    #[command(subcommand)]
    Workload(workload::WorkloadCommand),
}

#[tokio::main]
async fn main() -> ExitCode {
    if let Some(page) = help_code::page(&std::env::args().collect::<Vec<_>>()) {
        print!("{page}");
        return ExitCode::SUCCESS;
    }
    let done = match Args::parse().command {
        PilotctlCommand::Analyze(options) => analyze::run(&options).await,
        PilotctlCommand::Check(options) => check::run(&options).await,
        PilotctlCommand::Convert(options) => convert::run(&options).await,
        PilotctlCommand::Demo(options) => demo::run(options).await.map(|()| 0),
        PilotctlCommand::Explain(options) => explain::run(&options).await,
        PilotctlCommand::Pc(options) => pc::run(&options).await,
        PilotctlCommand::Ps(options) => ps::run(&options).await,
        PilotctlCommand::Apply(options) => write(WriteCommand::Apply, &options).await,
        PilotctlCommand::Create(options) => write(WriteCommand::Create, &options).await,
        PilotctlCommand::Replace(options) => write(WriteCommand::Replace, &options).await,
        PilotctlCommand::Delete(options) => write(WriteCommand::Delete, &options).await,
        PilotctlCommand::Diff(options) => write(WriteCommand::Diff, &options).await,
        PilotctlCommand::Get(options) => objects::get(&options).await,
        PilotctlCommand::Edit(options) => objects::edit(&options).await,
        PilotctlCommand::Export(options) => objects::export(&options).await,
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
