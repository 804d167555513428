//! `pilotctl demo`: runs the shop of `samples/shop` with real Envoys and toy backends until a signal.

mod backend;
mod changes;
mod detach;
mod envoy;
mod identity;
mod janitor;
mod ports;
mod process;
mod programs;
mod registry;
mod run_folder;
mod shop;
mod startup;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use tokio::signal::unix::{Signal, SignalKind, signal};

pub(crate) use programs::find_envoy;
use registry::DemoRegistry;
use run_folder::RunFolder;
use startup::Demo;

#[derive(Args)]
pub(crate) struct DemoOptions {
    #[command(subcommand)]
    command: Option<DemoCommand>,
    /// The Envoy binary; default: $PILOTAGE_ENVOY, the cache folder, the PATH
    #[arg(long)]
    envoy: Option<PathBuf>,
    /// The pilot-discovery binary; default: next to this program
    #[arg(long)]
    discovery: Option<PathBuf>,
    /// The pilot-agent binary; default: next to this program
    #[arg(long)]
    agent: Option<PathBuf>,
    /// The folder with the shop's files
    #[arg(long, default_value = "samples/shop")]
    shop: PathBuf,
    /// Where services are registered: in the shop's files, or in a real Consul or Eureka server
    #[arg(long, value_enum, default_value_t = DemoRegistry::Files)]
    registry: DemoRegistry,
    /// Return after the first response and let the demo run; `pilotctl demo stop` ends it
    #[arg(long, conflicts_with = "once")]
    detach: bool,
    /// Exit after the first response instead of waiting for a signal
    #[arg(long)]
    once: bool,
    /// This process is the one that `--detach` started
    #[arg(long, hide = true)]
    detached: bool,
}

#[derive(Subcommand)]
enum DemoCommand {
    /// End the demo that is running
    Stop,
    /// Remove the folder of a demo that is killed; started by the demo
    #[command(hide = true)]
    Janitor { folder: PathBuf },
}

/// Runs the demo, or ends the one that is running; returns the exit status.
pub(crate) async fn run(options: DemoOptions) -> Result<u8> {
    match &options.command {
        Some(DemoCommand::Stop) => detach::stop().await,
        Some(DemoCommand::Janitor { folder }) => janitor::run(folder).map(|()| 0),
        None if options.detach => detach::start().await,
        None => run_here(&options).await.map(|()| 0),
    }
}

/// Starts everything, follows changes until a signal, and stops everything.
async fn run_here(options: &DemoOptions) -> Result<()> {
    let begun = Instant::now();
    if options.detached {
        detach::leave_session()?;
    }
    let mut signals = EndSignals::new().context("could not wait for signals")?;
    process::adopt_orphans()?;
    let mut folder = None;
    // Dropped before the folder is removed.
    let done = tokio::select! {
        name = signals.next() => {
            eprintln!("{name}: stopping");
            Ok(())
        }
        done = demonstrate(options, &mut folder, begun) => done,
    };
    // It is a child too.
    if let Some(folder) = &mut folder {
        folder.dismiss_janitor();
    }
    process::wait_for_all();
    match (done, folder) {
        (Err(error), Some(folder)) => Err(error.context(format!("the demo failed; logs: {}", folder.path().display()))),
        (done, folder) => {
            if let Some(folder) = folder {
                folder.remove();
            }
            done
        }
    }
}

/// Fills in the folder once the demo may have written something that explains a failure.
async fn demonstrate(options: &DemoOptions, kept: &mut Option<RunFolder>, begun: Instant) -> Result<()> {
    let programs = programs::Programs::find(options)?;
    let workloads = shop::read(&options.shop.join("config"))?;
    let folder = RunFolder::take()?;
    let checked = startup::check(&programs, &workloads).await;
    let path = folder.path().to_owned();
    if checked.is_err() {
        folder.remove();
        return checked;
    }
    *kept = Some(folder);
    let mut demo = Demo::start(options, &programs, &workloads, &path).await?;
    demo.print_summary(options, begun.elapsed());
    if options.once {
        return Ok(());
    }
    if options.detached {
        detach::leave_terminal(&path)?;
    }
    changes::follow(&mut demo).await
}

/// SIGINT, SIGTERM and SIGHUP.
struct EndSignals([(&'static str, Signal); 3]);

impl EndSignals {
    fn new() -> std::io::Result<EndSignals> {
        Ok(EndSignals([
            ("interrupted", signal(SignalKind::interrupt())?),
            ("terminated", signal(SignalKind::terminate())?),
            ("the terminal is gone", signal(SignalKind::hangup())?),
        ]))
    }

    async fn next(&mut self) -> &'static str {
        let [(interrupted, one), (terminated, two), (hung_up, three)] = &mut self.0;
        tokio::select! {
            _ = one.recv() => interrupted,
            _ = two.recv() => terminated,
            _ = three.recv() => hung_up,
        }
    }
}
