//! Supervises Envoy: starts epochs, restarts after failures, drains and stops. Pilot 0.8's rules: a new epoch is the
//! highest running one plus one; a failure terminates all epochs, because their shared state is unknown; restart delays
//! double until the budget is used up.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::back_off::BackOff;
use super::command::Launch;
use super::drain::{AfterDrain, Drain};
use super::epoch;
pub use super::epoch::EpochBootstrap;
use super::exit::{EnvoyExit, ExitCause};
use super::lifecycle::LifecycleRequest;

/// Runs one Envoy. `configure` writes the bootstrap of an epoch.
pub struct Supervisor<F> {
    launch: Launch,
    configure: F,
    drain: Drain,
    back_off: BackOff,
    running: JoinSet<(u32, EnvoyExit)>,
    epochs: BTreeMap<u32, RunningEpoch>,
    /// When to restart after a failure.
    restart: Option<Instant>,
    is_drained: bool,
}

struct RunningEpoch {
    abort: CancellationToken,
    started: Instant,
    /// Removes the file on drop.
    _bootstrap: Option<EpochBootstrap>,
}

impl<F: FnMut(u32) -> Result<EpochBootstrap>> Supervisor<F> {
    pub fn new(launch: Launch, drain: Drain, back_off: BackOff, configure: F) -> Supervisor<F> {
        let (running, epochs) = (JoinSet::new(), BTreeMap::new());
        Supervisor { launch, configure, drain, back_off, running, epochs, restart: None, is_drained: false }
    }

    /// Runs Envoy until there is a reason to exit. Each change of `config_changes` starts a new epoch.
    pub async fn run(
        mut self,
        requests: watch::Receiver<LifecycleRequest>,
        config_changes: watch::Receiver<u128>,
    ) -> ExitCause {
        let cause = self.supervise(requests, config_changes).await;
        self.launch.remove_shared_state();
        cause
    }

    async fn supervise(
        &mut self,
        mut requests: watch::Receiver<LifecycleRequest>,
        mut config_changes: watch::Receiver<u128>,
    ) -> ExitCause {
        self.start();
        loop {
            let restart = self.restart;
            tokio::select! {
                Some(Ok((epoch, exit))) = self.running.join_next() => {
                    if let Some(cause) = self.on_exit(epoch, &exit) {
                        return cause;
                    }
                }
                () = sleep_until(restart.unwrap_or_else(Instant::now)), if restart.is_some() => self.start(),
                Ok(()) = config_changes.changed() => self.replace(),
                request = next_request(&mut requests) => match request {
                    LifecycleRequest::Run => {}
                    LifecycleRequest::Drain => {
                        self.is_drained = true;
                        self.drain.begin(AfterDrain::KeepRunning).await;
                    }
                    LifecycleRequest::Stop => return self.stop(requests).await,
                    LifecycleRequest::Quit => return self.quit(ExitCause::Quit).await,
                },
            }
        }
    }

    /// Starts a new epoch that takes over from the running one.
    fn replace(&mut self) {
        self.back_off.reset();
        self.start();
    }

    fn start(&mut self) {
        self.restart = None;
        let number = self.epochs.last_key_value().map_or(0, |(latest, _)| latest + 1);
        if number == 0 {
            self.launch.remove_shared_state();
        }
        let abort = CancellationToken::new();
        let bootstrap = match self.launch_epoch(number, &abort) {
            Ok(bootstrap) => Some(bootstrap),
            Err(failure) => {
                let exit = EnvoyExit::NotStarted(format!("{failure:#}"));
                self.running.spawn(async move { (number, exit) });
                None
            }
        };
        self.epochs.insert(number, RunningEpoch { abort, started: Instant::now(), _bootstrap: bootstrap });
    }

    fn launch_epoch(&mut self, number: u32, abort: &CancellationToken) -> Result<EpochBootstrap> {
        let bootstrap = (self.configure)(number)?;
        let line = self.launch.line(number, &bootstrap.path)?;
        let child = epoch::start(&self.launch.agent, &line)?;
        info!(epoch = number, pid = child.id(), "started Envoy with {:?}", &line[4..]);
        let abort = abort.clone();
        self.running.spawn(async move { (number, epoch::wait(child, abort).await) });
        Ok(bootstrap)
    }

    /// Handles the exit of an epoch. Returns a cause if the agent must exit too.
    fn on_exit(&mut self, number: u32, exit: &EnvoyExit) -> Option<ExitCause> {
        let lived = self.epochs.remove(&number).map_or(Duration::ZERO, |epoch| epoch.started.elapsed());
        if !exit.is_failure() {
            info!(epoch = number, "Envoy {exit}");
            let is_last = self.epochs.is_empty() && self.restart.is_none();
            return is_last.then_some(ExitCause::EnvoyDone);
        }
        error!(epoch = number, "Envoy {exit}");
        self.abort_all();
        // Epochs that fail together count as one failure.
        if self.restart.is_some() {
            return None;
        }
        let Some(delay) = self.back_off.next(lived) else { return Some(ExitCause::GaveUp) };
        warn!(?delay, restarts_left = self.back_off.left(), "restarting Envoy after a failure");
        self.restart = Some(Instant::now() + delay);
        None
    }

    fn abort_all(&self) {
        self.epochs.values().for_each(|epoch| epoch.abort.cancel());
    }

    /// Drains, then terminates every epoch. A second request terminates them at once.
    async fn stop(&mut self, mut requests: watch::Receiver<LifecycleRequest>) -> ExitCause {
        if self.is_drained || self.epochs.is_empty() {
            return self.quit(ExitCause::Signalled).await;
        }
        info!(time = ?self.drain.time, "draining Envoy");
        let drain = self.drain.clone();
        let drained = async {
            drain.begin(AfterDrain::Exit).await;
            drain.wait().await;
        };
        tokio::select! {
            () = drained => {}
            () = all_exited(&mut self.running) => info!("Envoy exited before the drain time was over"),
            _ = next_request(&mut requests) => return self.quit(ExitCause::Quit).await,
        }
        self.quit(ExitCause::Signalled).await
    }

    async fn quit(&mut self, cause: ExitCause) -> ExitCause {
        self.abort_all();
        all_exited(&mut self.running).await;
        cause
    }
}

/// The next request. Never returns once all senders are gone.
async fn next_request(requests: &mut watch::Receiver<LifecycleRequest>) -> LifecycleRequest {
    match requests.changed().await {
        Ok(()) => *requests.borrow_and_update(),
        Err(_) => std::future::pending().await,
    }
}

async fn all_exited(running: &mut JoinSet<(u32, EnvoyExit)>) {
    while running.join_next().await.is_some() {}
}
