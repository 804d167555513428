//! One file that is read again after each kernel event, and at intervals in case an event was lost.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::disk::{self, YOUNG};
use crate::file_watch::{FileWatch, Interest, Waiter};
use crate::health::SourceHealth;
use crate::source::SourceError;

/// How often the file is read in case an event was lost.
const SAFETY_NET: Duration = Duration::from_secs(10);
/// The same where the file cannot be watched.
const POLL: Duration = Duration::from_millis(500);
const COALESCE: Duration = Duration::from_millis(5);
/// A read that takes longer is reported in the source's health. Reads have a deadline, but other calls on a dead mount
/// may hang.
const SLOW_READ: Duration = Duration::from_secs(30);

/// A file and the watch on it.
pub(crate) struct WatchedFile {
    path: PathBuf,
    watch: Arc<Mutex<FileWatch>>,
    waiter: Waiter,
    /// Whether the kernel reports changes.
    is_watched: bool,
}

/// The result of one read.
pub(crate) enum FileState {
    Absent,
    Unreadable(String),
    Bytes {
        bytes: Vec<u8>,
        is_young: bool,
    },
    /// The file changed while it was read; it should be read again soon.
    Unsettled,
}

impl WatchedFile {
    pub(crate) fn new(path: &Path) -> WatchedFile {
        // Fails only for an empty path or without a working directory; reading then reports the cause.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let watch = FileWatch::new();
        let waiter = watch.waiter();
        WatchedFile { path, watch: Arc::new(Mutex::new(watch)), waiter, is_watched: false }
    }

    /// The path, for messages.
    pub(crate) fn name(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    /// Reads the file on a blocking thread and records in `health` whether it could be read.
    pub(crate) async fn read(&mut self, health: &SourceHealth) -> Result<FileState, SourceError> {
        let (path, watch) = (self.path.clone(), self.watch.clone());
        let read = tokio::task::spawn_blocking(move || {
            let mut watch = watch.lock();
            let interest = interest(&path);
            let can_watch = !interest.paths.is_empty();
            let (_, failure) = watch.follow(interest);
            (state(&path), can_watch && failure.is_none())
        });
        let failed = |e| SourceError::Failed(format!("could not read {}: {e}", self.path.display()));
        let (state, is_watched) = health.while_waiting(SLOW_READ, &self.name(), read).await.map_err(failed)?;
        match &state {
            FileState::Unreadable(reason) => {
                health.mark_unreachable(format!("could not read {}: {reason}", self.path.display()))
            }
            FileState::Absent | FileState::Bytes { .. } | FileState::Unsettled => health.mark_reachable(),
        }
        self.is_watched = is_watched;
        Ok(state)
    }

    /// Completes when the file should be read again: soon if the last read could not be used.
    pub(crate) async fn changed(&self, was_used: bool) {
        let pause = match (was_used, self.is_watched) {
            (false, _) => YOUNG,
            (true, true) => SAFETY_NET,
            (true, false) => POLL,
        };
        tokio::time::sleep(COALESCE).await;
        self.waiter.events(Instant::now() + pause).await;
    }
}

fn state(path: &Path) -> FileState {
    match disk::bytes(path) {
        Ok(Some((stamp, bytes))) => FileState::Bytes { bytes, is_young: stamp.is_young() },
        Ok(None) => FileState::Unsettled,
        Err(e) if disk::is_absence(&e) => FileState::Absent,
        Err(e) => FileState::Unreadable(e.to_string()),
    }
}

/// The file, the target if it is a symlink, and the `..data` link that Kubernetes swaps in the same folder.
/// Empty while the folder does not exist.
fn interest(path: &Path) -> Interest {
    let mut interest = Interest::default();
    let folder = path.parent().and_then(disk::canonical);
    if let (Some(folder), Some(name)) = (folder, path.file_name()) {
        interest.paths.extend([folder.join(name), folder.join("..data")]);
        interest.paths.extend(disk::canonical(path));
    }
    interest
}
