//! Start-up, read top to bottom: who we are, what is asked of Envoy, what is served to it, and Envoy itself;
//! then the wait for a reason to end.

mod services;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use cli::version;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::args::ProxyArgs;
use crate::bootstrap;
use crate::certificates::CertificateStore;
use crate::certificates::files::{self, FilePolling, fingerprint};
use crate::environment::Environment;
use crate::file_secrets::FileSecretNames;
use crate::plan::{Plan, plan};
use crate::process::back_off::BackOff;
use crate::process::exit::ExitCause;
use crate::process::lifecycle::{LifecycleRequest, LifecycleSender};
use crate::process::supervisor::{EpochBootstrap, Supervisor};
use crate::socket::make_folder;

use services::ServiceTasks;

/// Signals this close to each other are one.
const DUPLICATE_SIGNAL: Duration = Duration::from_secs(1);

/// Decides what to run, and tells it.
pub fn planned(args: &ProxyArgs, environment: &Environment) -> Result<Plan> {
    info!("pilot-agent {}", version::line());
    args.ignored_flags.log();
    let plan = plan(args, environment)?;
    info!(node = plan.bootstrap_input.node.id, cluster = plan.bootstrap_input.node.cluster, "this proxy");
    Ok(plan)
}

/// Runs an Envoy until there is a reason to end.
pub async fn run(plan: &Plan) -> Result<ExitCause> {
    make_folder(Path::new(&plan.bootstrap_input.config.config_path), &plan.peers.xds)?;
    let orders = LifecycleSender::default();
    let signals = TerminationSignals::new().context("could not wait for signals")?;

    let mut services = ServiceTasks::default();
    services.spawn(signals.obey(orders.clone()));
    let store = certificates(plan, &mut services);
    let names = FileSecretNames::default();
    services::open(plan, &store, &names, &orders, &mut services).await?;

    let cause = match plan.without_envoy {
        true => until_stopped(&orders).await,
        false => run_envoy(plan, &names, &orders, &mut services).await,
    };
    services.stop().await;
    info!(code = cause.code(), "{cause}");
    Ok(cause)
}

/// What asks the agent to end.
struct TerminationSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl TerminationSignals {
    fn new() -> std::io::Result<TerminationSignals> {
        Ok(TerminationSignals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// The first one asks to drain and end, a later one to end at once. Some supervisors signal the process and its
    /// group, so that one wish arrives twice.
    async fn obey(mut self, orders: LifecycleSender) {
        self.next().await;
        orders.give(LifecycleRequest::Stop);
        sleep(DUPLICATE_SIGNAL).await;
        while timeout(Duration::ZERO, self.next()).await.is_ok() {}
        self.next().await;
        orders.give(LifecycleRequest::Quit);
    }
}

/// Certificates from disk: read before Envoy asks for them, then watched.
fn certificates(plan: &Plan, services: &mut ServiceTasks) -> CertificateStore {
    let store = CertificateStore::new();
    if let Some(files) = &plan.certificates {
        match files.read() {
            Ok(material) => {
                store.publish(material);
            }
            Err(error) => warn!("{error:#}; Envoy waits for certificates until it can be read"),
        }
        services.spawn(files.clone().publish(store.clone(), plan.polling));
    }
    store
}

/// Runs Envoy. Its bootstrap is made anew for each epoch.
async fn run_envoy(
    plan: &Plan,
    names: &FileSecretNames,
    orders: &LifecycleSender,
    services: &mut ServiceTasks,
) -> ExitCause {
    // What Envoy merges into its bootstrap is an argument.
    plan.launch.fixed.iter().for_each(|argument| names.learn_from_text(argument));
    let configure = |epoch| {
        let written = bootstrap::write(&plan.bootstrap_source, &plan.bootstrap_input, epoch)?;
        // Envoy says it better where it cannot be read.
        names.learn_from_text(&fs::read_to_string(&written.path).unwrap_or_default());
        Ok(EpochBootstrap { path: written.path, remove: written.is_ours })
    };
    let wanted = watch::Sender::new(fingerprint(&plan.restart_on));
    let changes = wanted.subscribe();
    if !plan.restart_on.is_empty() {
        services.spawn(follow(plan.restart_on.clone(), plan.polling, wanted.clone()));
    }
    let supervisor = Supervisor::new(plan.launch.clone(), plan.drain.clone(), BackOff::upstream(), configure);
    supervisor.run(orders.subscribe(), changes).await
}

/// Turns changed certificates into the wish for a new Envoy.
async fn follow(paths: Vec<PathBuf>, polling: FilePolling, wanted: watch::Sender<u128>) {
    let watched = paths.clone();
    let look = move || {
        let now = fingerprint(&paths);
        wanted.send_if_modified(|before| std::mem::replace(before, now) != now);
    };
    files::watch(watched, polling, look).await;
}

async fn until_stopped(orders: &LifecycleSender) -> ExitCause {
    let mut orders = orders.subscribe();
    let _ = orders.wait_for(|order| *order >= LifecycleRequest::Stop).await;
    ExitCause::Signalled
}
