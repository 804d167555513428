//! Supervises Envoy: starts epochs, restarts after failures, drains and stops. Pilot 0.8's rules: a new epoch is the
//! highest running one plus one; restart delays double until the budget is used up. Unlike in 0.8, a failure ends only
//! epochs that cannot serve without the failed one, and all of them are dead before the next one starts.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tracing::{error, info, warn};

use super::back_off::BackOff;
use super::command::Launch;
use super::drain::{AfterDrain, Drain};
pub use super::epoch::EpochBootstrap;
use super::epoch::{EpochControl, EpochTask};
use super::exit::{EnvoyExit, ExitCause};
use super::hot_restart::{self, ParentSocket};
use super::lifecycle::LifecycleRequest;

/// How often a change waits for an epoch that is still starting: Envoy cannot hand over before it is live.
const STARTING: Duration = Duration::from_millis(100);

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
    control: EpochControl,
    started: Instant,
    /// A newer epoch took over its listeners.
    is_drained: bool,
    is_killed: bool,
    /// Takes the messages for a parent that was killed.
    parent: Option<ParentSocket>,
    /// Removes the file on drop.
    _bootstrap: Option<EpochBootstrap>,
}

/// What happens to the other epochs when one fails.
enum AfterFailure {
    /// A newer epoch has taken over already and runs on.
    NewerServes,
    /// An older epoch runs on; the failed one is started again.
    StartAgain,
    /// An older epoch runs on, but the failed one had taken its listeners over: nothing accepts connections until the
    /// next one does, so it is started at once, if this is the first failure.
    OpenAgain,
    /// No epoch can serve: all end, and epoch 0 starts.
    StartOver,
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
                () = sleep_until(restart.unwrap_or_else(Instant::now)), if restart.is_some() && !self.is_ending() => {
                    self.start_or_wait();
                }
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
        self.restart = Some(Instant::now());
    }

    /// Epochs were killed that have not exited yet. A new Envoy would take one for its parent.
    fn is_ending(&self) -> bool {
        self.epochs.values().any(|epoch| epoch.is_killed)
    }

    fn start_or_wait(&mut self) {
        let newest = self.epochs.last_key_value();
        if newest.is_some_and(|(_, epoch)| !epoch.control.is_live()) {
            self.restart = Some(Instant::now() + STARTING);
        } else {
            self.start();
        }
    }

    fn start(&mut self) {
        self.restart = None;
        let number = self.epochs.last_key_value().map_or(0, |(latest, _)| latest + 1);
        if number == 0 {
            self.launch.remove_shared_state();
        } else if let Some(id) = self.launch.base_id() {
            hot_restart::clear_starting_mark(id);
        }
        let control = EpochControl::default();
        let bootstrap = match self.launch_epoch(number, &control) {
            Ok(bootstrap) => Some(bootstrap),
            Err(failure) => {
                let exit = EnvoyExit::NotStarted(format!("{failure:#}"));
                self.running.spawn(async move { (number, exit) });
                None
            }
        };
        let (is_drained, is_killed, parent, started) = (false, false, None, Instant::now());
        let epoch = RunningEpoch { control, started, is_drained, is_killed, parent, _bootstrap: bootstrap };
        self.epochs.insert(number, epoch);
    }

    fn launch_epoch(&mut self, number: u32, control: &EpochControl) -> Result<EpochBootstrap> {
        let bootstrap = (self.configure)(number)?;
        let task = EpochTask {
            number,
            agent: self.launch.agent.clone(),
            // The check costs as much time as a start, and protects a parent that serves.
            check: self.launch.check_line(number, &bootstrap.path).filter(|_| self.is_serving()),
            line: self.launch.line(number, &bootstrap.path, bootstrap.admin_file.as_deref())?,
            admin_file: bootstrap.admin_file.clone(),
            start_timeout: self.launch.start_timeout,
            control: control.clone(),
        };
        self.running.spawn(async move { (number, task.run().await) });
        Ok(bootstrap)
    }

    /// Handles the exit of an epoch. Returns a cause if the agent must exit too.
    fn on_exit(&mut self, number: u32, exit: &EnvoyExit) -> Option<ExitCause> {
        let ended = self.epochs.remove(&number);
        if !exit.is_failure() {
            info!(epoch = number, "Envoy {exit}");
            let is_last = self.epochs.is_empty() && self.restart.is_none();
            return is_last.then_some(ExitCause::EnvoyDone);
        }
        error!(epoch = number, "Envoy {exit}");
        match self.after_failure(number, ended.as_ref()) {
            AfterFailure::NewerServes => {
                self.take_place_of(number);
                return None;
            }
            AfterFailure::StartAgain => warn!("the previous epoch of Envoy keeps running"),
            AfterFailure::OpenAgain => {
                warn!("the previous epoch of Envoy keeps running without listeners; starting the next one");
                if self.restart.is_none() && self.back_off.is_unused() {
                    self.back_off.next(Duration::ZERO);
                    self.restart = Some(Instant::now());
                }
            }
            AfterFailure::StartOver => self.kill_all(),
        }
        // Epochs that fail together count as one failure.
        if self.restart.is_some() {
            return None;
        }
        let lived = ended.map_or(Duration::ZERO, |epoch| epoch.started.elapsed());
        self.schedule_restart(lived)
    }

    /// Whether an epoch has listeners.
    fn is_serving(&self) -> bool {
        self.epochs.values().any(|epoch| !epoch.is_drained && !epoch.is_killed)
    }

    fn schedule_restart(&mut self, lived: Duration) -> Option<ExitCause> {
        let delay = match self.back_off.next(lived) {
            Some(delay) => delay,
            // The agent does not give up an Envoy that serves.
            None if self.is_serving() => self.back_off.longest(),
            None => return Some(ExitCause::GaveUp),
        };
        warn!(?delay, restarts_left = self.back_off.left(), "restarting Envoy after a failure");
        self.restart = Some(Instant::now() + delay);
        None
    }

    /// Decides by what the failed epoch was to the others: parent of a newer one, or child of an older one.
    fn after_failure(&mut self, number: u32, failed: Option<&RunningEpoch>) -> AfterFailure {
        if let Some((_, child)) = self.epochs.range(number..).next() {
            // A child that is not live yet waits for its dead parent forever.
            return if child.control.is_live() { AfterFailure::NewerServes } else { AfterFailure::StartOver };
        }
        let Some((_, parent)) = self.epochs.range_mut(..number).next_back() else { return AfterFailure::StartOver };
        // A live child has closed its parent's listeners, and Envoy cannot open them again: the next child does. If that
        // fails too, start over.
        if failed.is_some_and(|epoch| epoch.control.is_live()) {
            parent.is_drained = true;
            return AfterFailure::OpenAgain;
        }
        if parent.is_drained { AfterFailure::StartOver } else { AfterFailure::StartAgain }
    }

    /// Receives what the child of a dead epoch sends to it.
    fn take_place_of(&mut self, number: u32) {
        let (Some(id), Some((_, child))) = (self.launch.base_id(), self.epochs.range_mut(number..).next()) else {
            return;
        };
        match ParentSocket::of_dead(number, id) {
            Ok(socket) => child.parent = Some(socket),
            Err(error) => warn!("could not open the socket of the dead Envoy: {error}; its successor may abort"),
        }
        info!("the newer epoch of Envoy keeps running");
    }

    fn terminate_all(&self) {
        self.epochs.values().for_each(|epoch| epoch.control.terminate.cancel());
    }

    fn kill_all(&mut self) {
        for epoch in self.epochs.values_mut() {
            epoch.is_killed = true;
            epoch.control.kill.cancel();
        }
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
        self.terminate_all();
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
