//! pilotctl, the user's tool: one file or folder per command.

#![forbid(unsafe_code)]

mod analyze;
mod bootstrap;
mod bundle;
mod bundle_file;
mod bundle_query;
mod check;
mod cluster;
mod control_plane;
mod convert;
mod demo;
mod describe;
mod events;
mod explain;
mod help_code;
mod history;
mod kube_inject;
mod log;
mod objects;
mod output;
mod pc;
mod plan;
mod ps;
mod shell;
mod table;
mod translate;
mod version;
mod wait;
mod workload;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use control_plane::{UNREACHABLE, is_unreachable};
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
    /// Print a bootstrap file with which a stock Envoy or a gRPC application connects to pilot-discovery
    Bootstrap(bootstrap::BootstrapOptions),
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
    /// Show what applying files would change, or what changed between two moments; exit status 1 if anything
    Diff(objects::DiffOptions),
    /// Print objects
    Get(objects::GetOptions),
    /// Change an object in an editor
    Edit(objects::EditOptions),
    /// Write all objects of the configuration API or a cluster to a folder
    Export(objects::ExportOptions),
    /// Show what a change would do: proxies, resources, requests, and Envoy's verdict
    Plan(plan::PlanOptions),
    /// Wait until every proxy that objects concern has them
    Wait(wait::WaitOptions),
    /// Print what a proxy would get from configuration files, without a server
    Translate(translate::TranslateOptions),
    /// List the last changes: when, from which file, and which proxies have them
    History(history::HistoryOptions),
    /// Print objects as they were at a time
    At(history::AtOptions),
    /// Print when and from where the object of a route changed
    Blame(history::BlameOptions),
    /// Print changes, pushes, rejections and sources as they happen
    Events(events::EventsOptions),
    /// Print everything that the server knows about an object or a proxy
    Describe(describe::DescribeOptions),
    /// Write the state of the server to a file, without secrets
    Bundle(bundle::BundleOptions),
    /// Print or set log levels of a running server
    Log(log::LogOptions),
    /// Print versions of this program and of the server
    Version(version::VersionOptions),
    /// Print completions for a shell
    Completion(shell::CompletionOptions),
    /// Write man pages
    Man(shell::ManOptions),
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
        PilotctlCommand::Bootstrap(options) => bootstrap::run(&options),
        PilotctlCommand::Check(options) => check::run(&options).await,
        PilotctlCommand::Convert(options) => convert::run(&options).await,
        PilotctlCommand::Demo(options) => demo::run(options).await,
        PilotctlCommand::Explain(options) => explain::run(&options).await,
        PilotctlCommand::Pc(options) => pc::run(&options).await,
        PilotctlCommand::Ps(options) => ps::run(&options).await,
        PilotctlCommand::Apply(options) => write(WriteCommand::Apply, &options).await,
        PilotctlCommand::Create(options) => write(WriteCommand::Create, &options).await,
        PilotctlCommand::Replace(options) => write(WriteCommand::Replace, &options).await,
        PilotctlCommand::Delete(options) => write(WriteCommand::Delete, &options).await,
        PilotctlCommand::Diff(options) => objects::diff(options).await,
        PilotctlCommand::Plan(options) => plan::run(&options).await,
        PilotctlCommand::Wait(options) => wait::run(&options).await,
        PilotctlCommand::Translate(options) => translate::run(&options).await,
        PilotctlCommand::History(options) => history::history(&options).await,
        PilotctlCommand::At(options) => history::at(&options).await,
        PilotctlCommand::Blame(options) => history::blame(&options).await,
        PilotctlCommand::Events(options) => events::run(&options).await,
        PilotctlCommand::Describe(options) => describe::run(&options).await,
        PilotctlCommand::Bundle(options) => bundle::run(&options).await,
        PilotctlCommand::Log(options) => log::run(&options).await,
        PilotctlCommand::Version(options) => version::run(&options).await,
        PilotctlCommand::Completion(options) => shell::completion(&options, Args::command()),
        PilotctlCommand::Man(options) => shell::man(&options, Args::command()),
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
            ExitCode::from(if is_unreachable(&error) { UNREACHABLE } else { 1 })
        }
    }
}
