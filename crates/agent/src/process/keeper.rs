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
use super::drain::{Drain, Stay};
use super::epoch;
pub use super::epoch::Configured;
use super::exit::{Cause, Ended};
use super::orders::Order;

/// Keeps one Envoy. `configure` writes the bootstrap of an epoch.
pub struct Keeper<F> {
    launch: Launch,
    configure: F,
    drain: Drain,
    back_off: BackOff,
    running: JoinSet<(u32, Ended)>,
    epochs: BTreeMap<u32, Epoch>,
    /// When to start again after a failure.
    restart: Option<Instant>,
    is_drained: bool,
}

struct Epoch {
    abort: CancellationToken,
    started: Instant,
    /// Kept for what its drop does.
    _bootstrap: Option<Configured>,
}

impl<F: FnMut(u32) -> Result<Configured>> Keeper<F> {
    pub fn new(launch: Launch, drain: Drain, back_off: BackOff, configure: F) -> Keeper<F> {
        let (running, epochs) = (JoinSet::new(), BTreeMap::new());
        Keeper { launch, configure, drain, back_off, running, epochs, restart: None, is_drained: false }
    }

    /// Runs Envoy until the agent has a reason to end. Each change of `wanted` starts a new epoch.
    pub async fn run(mut self, orders: watch::Receiver<Order>, wanted: watch::Receiver<u128>) -> Cause {
        let cause = self.keep(orders, wanted).await;
        self.launch.forget();
        cause
    }

    async fn keep(&mut self, mut orders: watch::Receiver<Order>, mut wanted: watch::Receiver<u128>) -> Cause {
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
                    Order::Run => {}
                    Order::Drain => {
                        self.is_drained = true;
                        self.drain.begin(Stay::Forever).await;
                    }
                    Order::Stop => return self.stop(orders).await,
                    Order::Quit => return self.quit(Cause::Quit).await,
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
                let ended = Ended::NotStarted(format!("{failure:#}"));
                self.running.spawn(async move { (number, ended) });
                None
            }
        };
        self.epochs.insert(number, Epoch { abort, started: Instant::now(), _bootstrap: bootstrap });
    }

    fn launched(&mut self, number: u32, abort: &CancellationToken) -> Result<Configured> {
        let bootstrap = (self.configure)(number)?;
        let line = self.launch.line(number, &bootstrap.path)?;
        let child = epoch::start(&self.launch.agent, &line)?;
        info!(epoch = number, pid = child.id(), "Envoy starts with {:?}", &line[4..]);
        let abort = abort.clone();
        self.running.spawn(async move { (number, epoch::wait(child, abort).await) });
        Ok(bootstrap)
    }

    /// What the end of an epoch means; a cause when the agent must end too.
    fn ended(&mut self, number: u32, ended: &Ended) -> Option<Cause> {
        let lived = self.epochs.remove(&number).map_or(Duration::ZERO, |epoch| epoch.started.elapsed());
        if !ended.is_failure() {
            info!(epoch = number, "Envoy {ended}");
            let is_last = self.epochs.is_empty() && self.restart.is_none();
            return is_last.then_some(Cause::EnvoyDone);
        }
        error!(epoch = number, "Envoy {ended}");
        self.abort_all();
        // Epochs that fail together are one failure.
        if self.restart.is_some() {
            return None;
        }
        let Some(delay) = self.back_off.next(lived) else { return Some(Cause::GaveUp) };
        warn!(?delay, left = self.back_off.left(), "Envoy is started again");
        self.restart = Some(Instant::now() + delay);
        None
    }

    fn abort_all(&self) {
        self.epochs.values().for_each(|epoch| epoch.abort.cancel());
    }

    /// Drains, gives clients their time, and ends every epoch. A second order to end cuts it short.
    async fn stop(&mut self, mut orders: watch::Receiver<Order>) -> Cause {
        if self.is_drained || self.epochs.is_empty() {
            return self.quit(Cause::Signalled).await;
        }
        info!(time = ?self.drain.time, "draining Envoy");
        let drain = self.drain.clone();
        let drained = async {
            drain.begin(Stay::UntilDrained).await;
            drain.wait().await;
        };
        tokio::select! {
            () = drained => {}
            () = all_ended(&mut self.running) => info!("Envoy ended before its time was up"),
            _ = next(&mut orders) => return self.quit(Cause::Quit).await,
        }
        self.quit(Cause::Signalled).await
    }

    async fn quit(&mut self, cause: Cause) -> Cause {
        self.abort_all();
        all_ended(&mut self.running).await;
        cause
    }
}

/// The next order; never returns once nobody can give one.
async fn next(orders: &mut watch::Receiver<Order>) -> Order {
    match orders.changed().await {
        Ok(()) => *orders.borrow_and_update(),
        Err(_) => std::future::pending().await,
    }
}

async fn all_ended(running: &mut JoinSet<(u32, Ended)>) {
    while running.join_next().await.is_some() {}
}
