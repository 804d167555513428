//! The pilot-discovery binary: parses the command line and runs one command.

#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use cli::args::print_usage_error;
use cli::log;
use cli::scopes::Scopes;
use discovery::args::{Cli, ConfigApiCommand, DiscoveryCommand, DiscoveryFlags};
use discovery::config_api;
use discovery::{effective_settings, environment, file_descriptors, request, startup};
use model::config::definition;
use serde_json::Value;
use tracing::error;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const SCOPES: Scopes = &[
    ("ads", "discovery::serve"),
    ("ads", "xds"),
    ("model", "model"),
    ("serviceentry", "sources::registry"),
    ("file", "sources"),
    ("monitoring", "discovery::http"),
    ("tls", "discovery::tls"),
    ("klog", "kube_client"),
    ("klog", "kube_runtime"),
];

fn main() -> ExitCode {
    let cli = match Cli::read(std::env::args()) {
        Ok(cli) => cli,
        Err(error) => return print_usage_error(&error),
    };
    let done = match cli.command {
        DiscoveryCommand::Discovery(args) => discovery(&args),
        DiscoveryCommand::Crds(flags) if flags.legacy => print(&yaml(definition::legacy_definitions())),
        DiscoveryCommand::Crds(_) => print(&yaml(definition::definitions())),
        DiscoveryCommand::ConfigApi(ConfigApiCommand::Kubeconfig(flags)) => {
            config_api::kubeconfig(&flags).and_then(|text| print(text.trim_end()))
        }
        DiscoveryCommand::Settings(flags) => print_settings(flags.flags),
        DiscoveryCommand::Request(request) => send_request(&request),
        DiscoveryCommand::Version(args) => print(&args.text()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::print_failure(format!("pilot-discovery: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn discovery(args: &DiscoveryFlags) -> Result<()> {
    let variable = |name: &str| std::env::var(name).ok();
    let log = log::start(&args.logging, SCOPES, variable("RUST_LOG").as_deref())?;
    environment::log_unknown_variables(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()));
    file_descriptors::raise_limit();
    let runtime = runtime()?;
    let run = runtime.block_on(startup::run(args, &variable, log.levels()));
    // All tasks that must finish have finished. A thread that hangs on a dead mount must not block the exit.
    runtime.shutdown_background();
    // Printed to standard error too, but operators read the log.
    run.inspect_err(|failure| error!("{failure:#}"))
}

/// The settings of a server with these flags and this environment.
fn print_settings(flags: Vec<String>) -> Result<()> {
    let line = ["pilot-discovery", "discovery"].map(str::to_owned).into_iter().chain(flags);
    let DiscoveryCommand::Discovery(args) = Cli::read(line)?.command else { return Ok(()) };
    print(&effective_settings::table(&effective_settings::settings(&args, &|name: &str| std::env::var(name).ok())))
}

fn send_request(args: &discovery::args::RequestFlags) -> Result<()> {
    let body = runtime()?.block_on(request::send(args))?;
    std::io::stdout().write_all(&body).context("could not write to standard output")
}

/// The CustomResourceDefinitions as YAML documents.
fn yaml(documents: impl Iterator<Item = Value>) -> String {
    let texts = documents.filter_map(|document| serde_saphyr::to_string(&document).ok());
    texts.map(|text| text.trim_end().to_owned()).collect::<Vec<_>>().join("\n---\n")
}

fn print(text: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{text}").context("could not write to standard output")
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("could not start the runtime")
}
