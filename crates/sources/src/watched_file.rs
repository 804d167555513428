//! One file that is read whenever it may have changed: by the kernel's word, and now and then without it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::disk::{self, YOUNG};
use crate::file_watch::{FileWatch, Interest, Waiter};
use crate::health::Health;
use crate::source::SourceError;

/// How often the file is read in case an event was lost.
const SAFETY_NET: Duration = Duration::from_secs(10);
/// The same where the kernel tells nothing.
const POLL: Duration = Duration::from_millis(500);
const COALESCE: Duration = Duration::from_millis(5);
/// A look at the file that takes longer is reported by health: reading is given up in time, but a dead mount may hang
/// elsewhere.
const LONG_LOOK: Duration = Duration::from_secs(30);

/// The file and the watch on it.
pub(crate) struct WatchedFile {
    path: PathBuf,
    watch: Arc<Mutex<FileWatch>>,
    waiter: Waiter,
    /// The kernel tells of changes.
    is_watched: bool,
}

/// What is in the file now.
pub(crate) enum FileState {
    Absent,
    Unreadable(String),
    Bytes {
        bytes: Vec<u8>,
        is_young: bool,
    },
    /// It changed while it was read: it should be looked at again soon.
    Unsettled,
}

impl WatchedFile {
    pub(crate) fn new(path: &Path) -> WatchedFile {
        // Fails only for an empty path or without a working folder; reading then says why.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let watch = FileWatch::new();
        let waiter = watch.waiter();
        WatchedFile { path, watch: Arc::new(Mutex::new(watch)), waiter, is_watched: false }
    }

    /// The path as messages tell it.
    pub(crate) fn name(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    /// Reads the file, off the async threads. Health tells whether it could be.
    pub(crate) async fn look(&mut self, health: &Health) -> Result<FileState, SourceError> {
        let (path, watch) = (self.path.clone(), self.watch.clone());
        let look = tokio::task::spawn_blocking(move || {
            let mut watch = watch.lock().unwrap_or_else(PoisonError::into_inner);
            let interest = interest(&path);
            let can_watch = !interest.paths.is_empty();
            let (_, failure) = watch.follow(interest);
            (state(&path), can_watch && failure.is_none())
        });
        let failed = |e| SourceError::Failed(format!("could not look at {}: {e}", self.path.display()));
        let (state, is_watched) = health.while_waiting(LONG_LOOK, &self.name(), look).await.map_err(failed)?;
        match &state {
            FileState::Unreadable(reason) => health.lost(format!("could not read {}: {reason}", self.path.display())),
            FileState::Absent | FileState::Bytes { .. } | FileState::Unsettled => health.regained(),
        }
        self.is_watched = is_watched;
        Ok(state)
    }

    /// Completes when it is worth another look: soon where the last one was not taken in.
    pub(crate) async fn changed(&self, was_taken_in: bool) {
        let pause = match (was_taken_in, self.is_watched) {
            (false, _) => YOUNG,
            (true, true) => SAFETY_NET,
            (true, false) => POLL,
        };
        tokio::time::sleep(COALESCE).await;
        self.waiter.seen(Instant::now() + pause).await;
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

/// The file, where it leads if it is a symlink, and the link that Kubernetes swaps beside it.
/// Empty while its folder is not there.
fn interest(path: &Path) -> Interest {
    let mut interest = Interest::default();
    let folder = path.parent().and_then(disk::canonical);
    if let (Some(folder), Some(name)) = (folder, path.file_name()) {
        interest.paths.extend([folder.join(name), folder.join("..data")]);
        interest.paths.extend(disk::canonical(path));
    }
    interest
}
