//! `--configDir`: config objects in YAML files of a folder, followed as they change.
//! Reacts to the first event at once; a burst is taken together a few milliseconds later.

mod folder;
mod large;
mod reading;
mod shelf;
mod walk;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use model::change::{Change, SourceId};

use self::folder::{Folder, Look};
use crate::source::{Outlet, Source, Stopped};
use crate::watch::{Seen, Waiter};

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
pub struct Files {
    id: SourceId,
    folder: Arc<Mutex<Folder>>,
    waiter: Waiter,
    /// The last look did not come to its end, and what it found may be lost.
    interrupted: bool,
}

impl Files {
    /// The folder may appear later; until it does, the source is not in sync.
    pub fn new(root: &Path) -> Files {
        // Fails only for an empty path or without a working folder; reading then says why.
        let root = std::path::absolute(root).unwrap_or_else(|_| PathBuf::from(root));
        let folder = Folder::new(root);
        let waiter = folder.watch().waiter();
        let id = SourceId("files".into());
        Files { id, folder: Arc::new(Mutex::new(folder)), waiter, interrupted: false }
    }

    /// One of several folders, told apart by this name.
    #[must_use]
    pub fn named(self, id: SourceId) -> Files {
        Files { id, ..self }
    }

    async fn look(&mut self, seen: Seen) -> Result<Look, Stopped> {
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
        let look = look.await.map_err(|e| Stopped::Failed(format!("could not look at the folder: {e}")))?;
        self.interrupted = false;
        Ok(look)
    }
}

impl Source for Files {
    fn id(&self) -> SourceId {
        self.id.clone()
    }

    async fn run(&mut self, outlet: Outlet) -> Result<(), Stopped> {
        let mut seen = Seen { everything: true, ..Seen::default() };
        let mut is_synced = false;
        let mut safety_net = Instant::now();
        loop {
            let began = Instant::now();
            let is_full = seen.everything;
            let look = self.look(seen);
            let look = outlet.health().while_waiting(LONG_LOOK, "reading the folder", look).await?;
            let Look { mut changes, again, trouble, unread, is_watched, is_partial } = look;
            match trouble.as_ref().or(unread.as_ref()) {
                Some(reason) => outlet.health().lost(reason.as_str()),
                None => outlet.health().regained(),
            }
            if !is_synced && trouble.is_none() && !is_partial {
                is_synced = true;
                changes.push(Change::Synced);
            }
            outlet.send(changes).await?;
            if is_full {
                // A huge folder is looked at less often: it must not cost more than a hundredth of a core.
                let pause = if is_watched { SAFETY_NET } else { POLL };
                safety_net = Instant::now() + pause.max(began.elapsed() * 100);
            }
            tokio::time::sleep(COALESCE).await;
            seen = self.waiter.seen(again.map_or(safety_net, |again| again.min(safety_net))).await;
            seen.everything |= Instant::now() >= safety_net || trouble.is_some();
        }
    }
}
