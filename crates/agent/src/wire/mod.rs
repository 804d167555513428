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

use crate::args::Proxy;
use crate::bootstrap;
use crate::certificates::Store;
use crate::certificates::files::{self, Pace, fingerprint};
use crate::environment::Environment;
use crate::file_secrets::FileSecretNames;
use crate::plan::{Plan, plan};
use crate::process::back_off::BackOff;
use crate::process::exit::Cause;
use crate::process::keeper::{Configured, Keeper};
use crate::process::orders::{Order, Orders};
use crate::socket::make_folder;

use services::Services;

/// Signals this close to each other are one.
const SAME_WISH: Duration = Duration::from_secs(1);

/// Decides what to run, and tells it.
pub fn planned(args: &Proxy, environment: &Environment) -> Result<Plan> {
    info!("pilot-agent {}", version::line());
    args.set_aside.tell();
    let plan = plan(args, environment)?;
    info!(node = plan.ingredients.node.id, cluster = plan.ingredients.node.cluster, "this proxy");
    Ok(plan)
}

/// Runs an Envoy until there is a reason to end.
pub async fn run(plan: &Plan) -> Result<Cause> {
    make_folder(Path::new(&plan.ingredients.config.config_path), &plan.peers.xds)?;
    let orders = Orders::default();
    let signals = Signals::new().context("could not wait for signals")?;

    let mut services = Services::default();
    services.spawn(signals.obey(orders.clone()));
    let store = certificates(plan, &mut services);
    let names = FileSecretNames::default();
    services::open(plan, &store, &names, &orders, &mut services).await?;

    let cause = match plan.without_envoy {
        true => until_stopped(&orders).await,
        false => keep(plan, &names, &orders, &mut services).await,
    };
    services.stop().await;
    info!(code = cause.code(), "{cause}");
    Ok(cause)
}

/// What asks the agent to end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// The first one asks to drain and end, a later one to end at once. Some supervisors signal the process and its
    /// group, so that one wish arrives twice.
    async fn obey(mut self, orders: Orders) {
        self.next().await;
        orders.give(Order::Stop);
        sleep(SAME_WISH).await;
        while timeout(Duration::ZERO, self.next()).await.is_ok() {}
        self.next().await;
        orders.give(Order::Quit);
    }
}

/// Certificates from disk: read before Envoy asks for them, then watched.
fn certificates(plan: &Plan, services: &mut Services) -> Store {
    let store = Store::new();
    if let Some(files) = &plan.certificates {
        match files.read() {
            Ok(material) => {
                store.publish(material);
            }
            Err(error) => warn!("{error:#}; Envoy waits for certificates until it can be read"),
        }
        services.spawn(files.clone().publish(store.clone(), plan.pace));
    }
    store
}

/// Runs Envoy. Its bootstrap is made anew for each epoch.
async fn keep(plan: &Plan, names: &FileSecretNames, orders: &Orders, services: &mut Services) -> Cause {
    // What Envoy merges into its bootstrap is an argument.
    plan.launch.fixed.iter().for_each(|argument| names.learn_from_text(argument));
    let configure = |epoch| {
        let written = bootstrap::write(&plan.way, &plan.ingredients, epoch)?;
        // Envoy says it better where it cannot be read.
        names.learn_from_text(&fs::read_to_string(&written.path).unwrap_or_default());
        Ok(Configured { path: written.path, remove: written.is_ours })
    };
    let wanted = watch::Sender::new(fingerprint(&plan.restart_on));
    let changes = wanted.subscribe();
    if !plan.restart_on.is_empty() {
        services.spawn(follow(plan.restart_on.clone(), plan.pace, wanted.clone()));
    }
    let keeper = Keeper::new(plan.launch.clone(), plan.drain.clone(), BackOff::upstream(), configure);
    keeper.run(orders.subscribe(), changes).await
}

/// Turns changed certificates into the wish for a new Envoy.
async fn follow(paths: Vec<PathBuf>, pace: Pace, wanted: watch::Sender<u128>) {
    let watched = paths.clone();
    let look = move || {
        let now = fingerprint(&paths);
        wanted.send_if_modified(|before| std::mem::replace(before, now) != now);
    };
    files::watch(watched, pace, look).await;
}

async fn until_stopped(orders: &Orders) -> Cause {
    let mut orders = orders.subscribe();
    let _ = orders.wait_for(|order| *order >= Order::Stop).await;
    Cause::Signalled
}
