//! The keeper of Envoy: which epochs run, when a new one starts, what an end means.
//! Pilot 0.8's rules: a new epoch is the highest living one plus one; a failure ends all epochs, since after it
//! nothing is known about what they share; retries double their delay until the budget is used up.

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

/// Keeps one Envoy. `configure` writes the bootstrap of an epoch.
pub struct Supervisor<F> {
    launch: Launch,
    configure: F,
    drain: Drain,
    back_off: BackOff,
    running: JoinSet<(u32, EnvoyExit)>,
    epochs: BTreeMap<u32, RunningEpoch>,
    /// When to start again after a failure.
    restart: Option<Instant>,
    is_drained: bool,
}

struct RunningEpoch {
    abort: CancellationToken,
    started: Instant,
    /// Kept for what its drop does.
    _bootstrap: Option<EpochBootstrap>,
}

impl<F: FnMut(u32) -> Result<EpochBootstrap>> Supervisor<F> {
    pub fn new(launch: Launch, drain: Drain, back_off: BackOff, configure: F) -> Supervisor<F> {
        let (running, epochs) = (JoinSet::new(), BTreeMap::new());
        Supervisor { launch, configure, drain, back_off, running, epochs, restart: None, is_drained: false }
    }

    /// Runs Envoy until the agent has a reason to end. Each change of `wanted` starts a new epoch.
    pub async fn run(mut self, orders: watch::Receiver<LifecycleRequest>, wanted: watch::Receiver<u128>) -> ExitCause {
        let cause = self.supervise(orders, wanted).await;
        self.launch.forget();
        cause
    }

    async fn supervise(
        &mut self,
        mut orders: watch::Receiver<LifecycleRequest>,
        mut wanted: watch::Receiver<u128>,
    ) -> ExitCause {
        self.start();
        loop {
            let restart = self.restart;
            tokio::select! {
                Some(Ok((epoch, ended))) = self.running.join_next() => {
                    if let Some(cause) = self.ended(epoch, &ended) {
                        return cause;
                    }
                }
                () = sleep_until(restart.unwrap_or_else(Instant::now)), if restart.is_some() => self.start(),
                Ok(()) = wanted.changed() => self.replace(),
                order = next(&mut orders) => match order {
                    LifecycleRequest::Run => {}
                    LifecycleRequest::Drain => {
                        self.is_drained = true;
                        self.drain.begin(AfterDrain::KeepRunning).await;
                    }
                    LifecycleRequest::Stop => return self.stop(orders).await,
                    LifecycleRequest::Quit => return self.quit(ExitCause::Quit).await,
                },
            }
        }
    }

    /// Something else is asked of Envoy: a new epoch takes over from the one that runs.
    fn replace(&mut self) {
        self.back_off.reset();
        self.start();
    }

    fn start(&mut self) {
        self.restart = None;
        let number = self.epochs.last_key_value().map_or(0, |(latest, _)| latest + 1);
        if number == 0 {
            self.launch.forget();
        }
        let abort = CancellationToken::new();
        let bootstrap = match self.launched(number, &abort) {
            Ok(bootstrap) => Some(bootstrap),
            Err(failure) => {
                let ended = EnvoyExit::NotStarted(format!("{failure:#}"));
                self.running.spawn(async move { (number, ended) });
                None
            }
        };
        self.epochs.insert(number, RunningEpoch { abort, started: Instant::now(), _bootstrap: bootstrap });
    }

    fn launched(&mut self, number: u32, abort: &CancellationToken) -> Result<EpochBootstrap> {
        let bootstrap = (self.configure)(number)?;
        let line = self.launch.line(number, &bootstrap.path)?;
        let child = epoch::start(&self.launch.agent, &line)?;
        info!(epoch = number, pid = child.id(), "Envoy starts with {:?}", &line[4..]);
        let abort = abort.clone();
        self.running.spawn(async move { (number, epoch::wait(child, abort).await) });
        Ok(bootstrap)
    }

    /// What the end of an epoch means; a cause when the agent must end too.
    fn ended(&mut self, number: u32, ended: &EnvoyExit) -> Option<ExitCause> {
        let lived = self.epochs.remove(&number).map_or(Duration::ZERO, |epoch| epoch.started.elapsed());
        if !ended.is_failure() {
            info!(epoch = number, "Envoy {ended}");
            let is_last = self.epochs.is_empty() && self.restart.is_none();
            return is_last.then_some(ExitCause::EnvoyDone);
        }
        error!(epoch = number, "Envoy {ended}");
        self.abort_all();
        // Epochs that fail together are one failure.
        if self.restart.is_some() {
            return None;
        }
        let Some(delay) = self.back_off.next(lived) else { return Some(ExitCause::GaveUp) };
        warn!(?delay, left = self.back_off.left(), "Envoy is started again");
        self.restart = Some(Instant::now() + delay);
        None
    }

    fn abort_all(&self) {
        self.epochs.values().for_each(|epoch| epoch.abort.cancel());
    }

    /// Drains, gives clients their time, and ends every epoch. A second order to end cuts it short.
    async fn stop(&mut self, mut orders: watch::Receiver<LifecycleRequest>) -> ExitCause {
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
            () = all_ended(&mut self.running) => info!("Envoy ended before its time was up"),
            _ = next(&mut orders) => return self.quit(ExitCause::Quit).await,
        }
        self.quit(ExitCause::Signalled).await
    }

    async fn quit(&mut self, cause: ExitCause) -> ExitCause {
        self.abort_all();
        all_ended(&mut self.running).await;
        cause
    }
}

/// The next order; never returns once nobody can give one.
async fn next(orders: &mut watch::Receiver<LifecycleRequest>) -> LifecycleRequest {
    match orders.changed().await {
        Ok(()) => *orders.borrow_and_update(),
        Err(_) => std::future::pending().await,
    }
}

async fn all_ended(running: &mut JoinSet<(u32, EnvoyExit)>) {
    while running.join_next().await.is_some() {}
}
