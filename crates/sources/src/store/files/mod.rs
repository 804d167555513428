//! `--configDir`: config objects in the YAML files of a folder, which is watched.
//! The first event is handled at once; events that follow within a few milliseconds are handled together.

mod config_dir;
mod file_objects;
mod large;
mod read_file;
mod saved_files;
mod walk;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::change::{Change, SourceId};
use parking_lot::Mutex;

use self::config_dir::{ConfigDir, Scan};
use crate::file_watch::{FileEvents, Waiter};
use crate::source::{ChangeSender, Source, SourceError};

/// How long events are collected after a scan.
const COALESCE: Duration = Duration::from_millis(5);
/// How often everything is scanned in case an event was lost.
const SAFETY_NET: Duration = Duration::from_secs(10);
/// The same where the folder cannot be watched.
const POLL: Duration = Duration::from_millis(250);

/// A scan that takes longer is reported in the source's health. Reads have a deadline, but other calls on a dead mount
/// may hang.
const SLOW_SCAN: Duration = Duration::from_secs(30);

/// A folder of config files.
pub struct FileStore {
    id: SourceId,
    folder: Arc<Mutex<ConfigDir>>,
    waiter: Waiter,
    /// The last scan did not complete, and its changes may be lost.
    interrupted: bool,
}

impl FileStore {
    /// The folder may be created later; until then, the source is not in sync.
    pub fn new(root: &Path) -> FileStore {
        // Fails only for an empty path or without a working directory; reading then reports the cause.
        let root = std::path::absolute(root).unwrap_or_else(|_| PathBuf::from(root));
        let folder = ConfigDir::new(root);
        let waiter = folder.watch().waiter();
        let id = SourceId("files".into());
        FileStore { id, folder: Arc::new(Mutex::new(folder)), waiter, interrupted: false }
    }

    /// Saves the last good content of each file in a state folder, for a start while a file is broken.
    #[must_use]
    pub fn saving_in(self, state: &Path) -> FileStore {
        self.folder.lock().save_in(state);
        self
    }

    /// Sets the id, which several folders need.
    #[must_use]
    pub fn named(self, id: SourceId) -> FileStore {
        FileStore { id, ..self }
    }

    async fn scan(&mut self, events: FileEvents) -> Result<Scan, SourceError> {
        let folder = self.folder.clone();
        let publish_again = std::mem::replace(&mut self.interrupted, true);
        let scan = tokio::task::spawn_blocking(move || {
            // After a panic everything is sent again, which completes a half-applied change.
            let mut folder = folder.lock();
            if publish_again {
                folder.publish_again();
            }
            folder.scan(&events)
        });
        let scan = scan.await.map_err(|e| SourceError::Failed(format!("could not scan the folder: {e}")))?;
        self.interrupted = false;
        Ok(scan)
    }
}

impl Source for FileStore {
    fn id(&self) -> SourceId {
        self.id.clone()
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        let mut events = FileEvents { everything: true, ..FileEvents::default() };
        let mut is_synced = false;
        let mut safety_net = Instant::now();
        loop {
            let began = Instant::now();
            let is_full = events.everything;
            let scan = self.scan(events);
            let scan = sender.health().while_waiting(SLOW_SCAN, "reading the folder", scan).await?;
            let Scan { mut changes, again, trouble, unread, is_watched, is_partial } = scan;
            match trouble.as_ref().or(unread.as_ref()) {
                Some(reason) => sender.health().mark_unreachable(reason.as_str()),
                None => sender.health().mark_reachable(),
            }
            if !is_synced && trouble.is_none() && !is_partial {
                is_synced = true;
                changes.push(Change::Synced);
            }
            sender.send(changes).await?;
            if is_full {
                // A large folder is scanned less often, so that scans use at most a hundredth of a core.
                let pause = if is_watched { SAFETY_NET } else { POLL };
                safety_net = Instant::now() + pause.max(began.elapsed() * 100);
            }
            tokio::time::sleep(COALESCE).await;
            events = self.waiter.events(again.map_or(safety_net, |again| again.min(safety_net))).await;
            events.everything |= Instant::now() >= safety_net || trouble.is_some();
        }
    }
}
