//! `--configDir`: config objects in YAML files of a folder, followed as they change.
//! Reacts to the first event at once; a burst is taken together a few milliseconds later.

mod config_dir;
mod file_objects;
mod large;
mod read_file;
mod walk;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use model::change::{Change, SourceId};

use self::config_dir::{ConfigDir, Scan};
use crate::file_watch::{FileEvents, Waiter};
use crate::source::{ChangeSender, Source, SourceError};

/// Events that come this soon after a look wait for each other.
const COALESCE: Duration = Duration::from_millis(5);
/// How often everything is looked at in case an event was lost.
const SAFETY_NET: Duration = Duration::from_secs(10);
/// The same where the kernel tells nothing.
const POLL: Duration = Duration::from_millis(250);

/// A look at the folder that takes longer is reported by the source's health: each file is read in time or given up, but a
/// dead mount may hang elsewhere.
const LONG_LOOK: Duration = Duration::from_secs(30);

/// A folder of config files.
pub struct FileStore {
    id: SourceId,
    folder: Arc<Mutex<ConfigDir>>,
    waiter: Waiter,
    /// The last look did not come to its end, and what it found may be lost.
    interrupted: bool,
}

impl FileStore {
    /// The folder may appear later; until it does, the source is not in sync.
    pub fn new(root: &Path) -> FileStore {
        // Fails only for an empty path or without a working folder; reading then says why.
        let root = std::path::absolute(root).unwrap_or_else(|_| PathBuf::from(root));
        let folder = ConfigDir::new(root);
        let waiter = folder.watch().waiter();
        let id = SourceId("files".into());
        FileStore { id, folder: Arc::new(Mutex::new(folder)), waiter, interrupted: false }
    }

    /// One of several folders, told apart by this name.
    #[must_use]
    pub fn named(self, id: SourceId) -> FileStore {
        FileStore { id, ..self }
    }

    async fn look(&mut self, seen: FileEvents) -> Result<Scan, SourceError> {
        let folder = self.folder.clone();
        let tell_again = std::mem::replace(&mut self.interrupted, true);
        let look = tokio::task::spawn_blocking(move || {
            // After a panic everything is told again, so half a change does no harm.
            let mut folder = folder.lock().unwrap_or_else(PoisonError::into_inner);
            if tell_again {
                folder.tell_again();
            }
            folder.look(&seen)
        });
        let look = look.await.map_err(|e| SourceError::Failed(format!("could not look at the folder: {e}")))?;
        self.interrupted = false;
        Ok(look)
    }
}

impl Source for FileStore {
    fn id(&self) -> SourceId {
        self.id.clone()
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        let mut seen = FileEvents { everything: true, ..FileEvents::default() };
        let mut is_synced = false;
        let mut safety_net = Instant::now();
        loop {
            let began = Instant::now();
            let is_full = seen.everything;
            let look = self.look(seen);
            let look = sender.health().while_waiting(LONG_LOOK, "reading the folder", look).await?;
            let Scan { mut changes, again, trouble, unread, is_watched, is_partial } = look;
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
                // A huge folder is looked at less often: it must not cost more than a hundredth of a core.
                let pause = if is_watched { SAFETY_NET } else { POLL };
                safety_net = Instant::now() + pause.max(began.elapsed() * 100);
            }
            tokio::time::sleep(COALESCE).await;
            seen = self.waiter.events(again.map_or(safety_net, |again| again.min(safety_net))).await;
            seen.everything |= Instant::now() >= safety_net || trouble.is_some();
        }
    }
}
