//! What every source is, and the supervisor that keeps one running.
//! A source that fails or panics is started again, later each time; no other source notices.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use model::change::{Batch, Change, SourceId};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::health::Health;

/// Something that watches the outside.
pub trait Source: Send + 'static {
    /// Who speaks; the same for the whole life of the process.
    fn id(&self) -> SourceId;

    /// Tells all that is there, ends that with `Change::Synced`, then tells changes, until
    /// `outlet` is closed. A return with an error, or a panic, makes the supervisor call it
    /// again; it must then tell what went away meanwhile too, so what was told is kept in `self`.
    fn run(&mut self, sender: ChangeSender) -> impl Future<Output = Result<(), SourceError>> + Send;
}

/// Why a source's run ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// Nobody listens any more, or the process ends.
    #[error("the outlet is closed")]
    Closed,
    /// Worth another try.
    #[error("{0}")]
    Failed(String),
}

/// Where a source puts what it saw.
#[derive(Clone, Debug)]
pub struct ChangeSender {
    source: SourceId,
    batches: mpsc::Sender<Batch>,
    cancel: CancellationToken,
    health: Health,
}

impl ChangeSender {
    pub fn new(source: SourceId, batches: mpsc::Sender<Batch>, cancel: CancellationToken) -> ChangeSender {
        let health = Health::new(source.clone());
        ChangeSender { source, batches, cancel, health }
    }

    /// Sends changes that belong together. Waits while the reader is behind; sends nothing for no changes.
    pub async fn send(&self, changes: Vec<Change>) -> Result<(), SourceError> {
        if changes.is_empty() {
            return Ok(());
        }
        let room = tokio::select! {
            biased;
            () = self.cancel.cancelled() => return Err(SourceError::Closed),
            room = self.batches.reserve() => room.map_err(|_| SourceError::Closed)?,
        };
        self.health.told(&changes);
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

    /// Where a source that this one starts puts what it saw, and when it must stop.
    pub(crate) fn shared(&self) -> (mpsc::Sender<Batch>, CancellationToken) {
        (self.batches.clone(), self.cancel.clone())
    }

    pub fn health(&self) -> &Health {
        &self.health
    }
}

/// A source at work.
#[derive(Debug)]
pub struct SourceTask {
    pub health: Health,
    task: JoinHandle<()>,
}

impl SourceTask {
    /// Waits until the source has stopped, which it does only when cancelled or not listened to.
    pub async fn stopped(self) {
        // The task catches panics of the source, and nobody aborts it: the result says nothing.
        let _ = self.task.await;
    }
}

/// Runs a source until cancelled, whatever it does.
pub fn spawn<S: Source>(source: S, batches: mpsc::Sender<Batch>, cancel: CancellationToken) -> SourceTask {
    let sender = ChangeSender::new(source.id(), batches, cancel);
    let health = sender.health.clone();
    let task = tokio::spawn(supervise(source, sender));
    SourceTask { health, task }
}

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// A run of this length was a good one: the next failure is a new one.
const GOOD_RUN: Duration = Duration::from_secs(60);

async fn supervise<S: Source>(mut source: S, sender: ChangeSender) {
    let name = sender.source.0.clone();
    let mut wait = FIRST_WAIT;
    info!(source = %name, "watching");
    loop {
        let started = Instant::now();
        let failure = match run_once(&mut source, &sender).await {
            Err(SourceError::Failed(message)) => message,
            Ok(()) | Err(SourceError::Closed) => return,
        };
        if started.elapsed() >= GOOD_RUN {
            wait = FIRST_WAIT;
        }
        sender.health.lost(failure.as_str());
        warn!(source = %name, error = %failure, retry_in = ?wait, "source failed");
        tokio::select! {
            () = sender.closed() => return,
            () = tokio::time::sleep(wait) => {}
        }
        sender.health.restarted();
        wait = (wait * 2).min(LONGEST_WAIT);
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
