//! The `Source` trait and the supervisor that runs one source.
//! A source that fails or panics is restarted with backoff; other sources are not affected.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use model::change::{Batch, Change, SourceId};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::backoff::Backoff;
use crate::health::SourceHealth;

/// A config store, a registry or a settings file.
pub trait Source: Send + 'static {
    /// Does not change while the process runs.
    fn id(&self) -> SourceId;

    /// Sends the complete state, then `Change::Synced`, then changes until `sender` is closed.
    /// After an error or a panic the supervisor calls it again. It must then also send deletions that happened
    /// meanwhile, so implementors keep what they have sent in `self`.
    fn run(&mut self, sender: ChangeSender) -> impl Future<Output = Result<(), SourceError>> + Send;
}

/// Why a source's run ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The receiver is gone, or the process ends.
    #[error("the change channel is closed")]
    Closed,
    /// The supervisor restarts the source.
    #[error("{0}")]
    Failed(String),
}

/// The channel through which a source sends its changes.
#[derive(Clone, Debug)]
pub struct ChangeSender {
    source: SourceId,
    batches: mpsc::Sender<Batch>,
    cancel: CancellationToken,
    health: SourceHealth,
}

impl ChangeSender {
    pub fn new(source: SourceId, batches: mpsc::Sender<Batch>, cancel: CancellationToken) -> ChangeSender {
        let health = SourceHealth::new(source.clone());
        ChangeSender { source, batches, cancel, health }
    }

    /// Sends changes as one batch. Waits while the channel is full; an empty batch is not sent.
    pub async fn send(&self, changes: Vec<Change>) -> Result<(), SourceError> {
        if changes.is_empty() {
            return Ok(());
        }
        let room = tokio::select! {
            biased;
            () = self.cancel.cancelled() => return Err(SourceError::Closed),
            room = self.batches.reserve() => room.map_err(|_| SourceError::Closed)?,
        };
        self.health.count_batch(&changes);
        room.send(Batch { source: self.source.clone(), changes });
        Ok(())
    }

    /// Completes when the source must stop.
    pub async fn closed(&self) {
        tokio::select! {
            () = self.cancel.cancelled() => {}
            () = self.batches.closed() => {}
        }
    }

    /// The channel and the cancellation token, for a source that this one starts.
    pub(crate) fn shared(&self) -> (mpsc::Sender<Batch>, CancellationToken) {
        (self.batches.clone(), self.cancel.clone())
    }

    pub fn health(&self) -> &SourceHealth {
        &self.health
    }
}

/// The running task of a source.
#[derive(Debug)]
pub struct SourceTask {
    pub health: SourceHealth,
    task: JoinHandle<()>,
}

impl SourceTask {
    /// Waits until the source has stopped: after cancellation, or when the receiver is gone.
    pub async fn stopped(self) {
        // Panics of the source are caught inside the task and it is never aborted, so this cannot fail.
        let _ = self.task.await;
    }
}

/// Runs a source until cancelled, restarting it after errors and panics.
pub fn spawn<S: Source>(source: S, batches: mpsc::Sender<Batch>, cancel: CancellationToken) -> SourceTask {
    let sender = ChangeSender::new(source.id(), batches, cancel);
    let health = sender.health.clone();
    let task = tokio::spawn(supervise(source, sender));
    SourceTask { health, task }
}

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// A run of at least this length resets the backoff.
const GOOD_RUN: Duration = Duration::from_secs(60);

async fn supervise<S: Source>(mut source: S, sender: ChangeSender) {
    let name = sender.source.0.clone();
    let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT).resetting_after(GOOD_RUN);
    info!(source = %name, "source started");
    loop {
        let failure = match run_once(&mut source, &sender).await {
            Err(SourceError::Failed(message)) => message,
            Ok(()) | Err(SourceError::Closed) => return,
        };
        let wait = backoff.next_wait();
        sender.health.mark_unreachable(failure.as_str());
        warn!(source = %name, error = %failure, retry_in = ?wait, "source failed; restarting");
        tokio::select! {
            () = sender.closed() => return,
            () = tokio::time::sleep(wait) => {}
        }
        sender.health.restarted();
    }
}

async fn run_once<S: Source>(source: &mut S, sender: &ChangeSender) -> Result<(), SourceError> {
    let run = AssertUnwindSafe(source.run(sender.clone())).catch_unwind();
    tokio::select! {
        biased;
        () = sender.closed() => Err(SourceError::Closed),
        ended = run => ended.unwrap_or_else(|panic| Err(SourceError::Failed(format!("panicked: {}", panic_text(&*panic))))),
    }
}

/// The message of a caught panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&str>().copied();
    literal.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
