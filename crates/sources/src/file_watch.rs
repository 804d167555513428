//! The kernel's file events, reduced to "these paths may read differently now".
//! A file that is being written is held back until its writer closes it, so nobody reads half of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, CreateKind, ModifyKind};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;

/// A writer that neither closes nor goes on is not waited for any longer.
const IDLE_WRITER: Duration =
    if cfg!(target_os = "linux") { Duration::from_secs(2) } else { Duration::from_millis(20) };
/// A writer that never closes is read after this long, whatever it does.
const BUSY_WRITER: Duration = Duration::from_secs(5);
/// With more paths than this, looking at everything is cheaper.
const MANY_PATHS: usize = 1024;

/// What may have changed since the last question.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FileEvents {
    /// Events were lost or never told: look at everything.
    pub(crate) everything: bool,
    pub(crate) paths: BTreeSet<PathBuf>,
}

/// Which events matter. Paths must be canonical: one folder has one watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interest {
    /// Folders of which every entry matters.
    pub(crate) folders: BTreeSet<PathBuf>,
    /// Single paths in other folders.
    pub(crate) paths: BTreeSet<PathBuf>,
}

impl Interest {
    fn covers(&self, path: &Path) -> bool {
        self.folders.contains(path)
            || self.paths.contains(path)
            || path.parent().is_some_and(|parent| self.folders.contains(parent))
    }

    fn watched_folders(&self) -> BTreeSet<PathBuf> {
        let parents = self.paths.iter().filter_map(|path| path.parent()).map(Path::to_path_buf);
        self.folders.iter().cloned().chain(parents).collect()
    }
}

/// A set of watched folders and what happened in them.
pub(crate) struct FileWatch {
    watcher: Result<RecommendedWatcher, String>,
    watched: BTreeSet<PathBuf>,
    shared: Arc<WatchShared>,
}

#[derive(Default)]
struct WatchShared {
    pending: Mutex<PendingEvents>,
    wake: Notify,
}

#[derive(Default)]
struct PendingEvents {
    seen: FileEvents,
    writing: BTreeMap<PathBuf, OpenWriter>,
    interest: Interest,
}

#[derive(Clone, Copy)]
struct OpenWriter {
    first: Instant,
    last: Instant,
}

impl OpenWriter {
    fn due(self) -> Instant {
        (self.last + IDLE_WRITER).min(self.first + BUSY_WRITER)
    }
}

impl FileWatch {
    pub(crate) fn new() -> FileWatch {
        let shared = Arc::new(WatchShared::default());
        let events = shared.clone();
        let watcher = notify::recommended_watcher(move |event| events.take_in(event)).map_err(|e| e.to_string());
        FileWatch { watcher, watched: BTreeSet::new(), shared }
    }

    /// Watches exactly these. Also renews watches of folders that were replaced under the same name.
    /// Gives the folders watched for the first time, and why some could not be.
    pub(crate) fn follow(&mut self, interest: Interest) -> (BTreeSet<PathBuf>, Option<String>) {
        let wanted = interest.watched_folders();
        self.shared.lock().interest = interest;
        let watcher = match &mut self.watcher {
            Ok(watcher) => watcher,
            Err(reason) => return (BTreeSet::new(), Some(reason.clone())),
        };
        for gone in self.watched.difference(&wanted) {
            // Fails where the kernel dropped the watch with the folder, which is what we want.
            let _ = watcher.unwatch(gone);
        }
        let mut failure = None;
        let mut watched = BTreeSet::new();
        for folder in wanted {
            match watcher.watch(&folder, RecursiveMode::NonRecursive) {
                Ok(()) => _ = watched.insert(folder),
                Err(error) => failure = Some(format!("could not watch {}: {error}", folder.display())),
            }
        }
        let new = watched.difference(&self.watched).cloned().collect();
        self.watched = watched;
        (new, failure)
    }

    /// A handle to wait on while this is in use elsewhere.
    pub(crate) fn waiter(&self) -> Waiter {
        Waiter(self.shared.clone())
    }

    /// A handle to tell of a path as if the kernel had.
    pub(crate) fn waker(&self) -> Waker {
        Waker(self.shared.clone())
    }

    /// Files that somebody is writing now.
    pub(crate) fn being_written(&self) -> BTreeSet<PathBuf> {
        self.shared.lock().writing.keys().cloned().collect()
    }
}

/// Makes a waiter look at a path.
#[derive(Clone)]
pub(crate) struct Waker(Arc<WatchShared>);

impl Waker {
    pub(crate) fn wake(&self, path: PathBuf) {
        self.0.lock().seen.paths.insert(path);
        self.0.wake.notify_one();
    }
}

/// Waits for events.
#[derive(Clone)]
pub(crate) struct Waiter(Arc<WatchShared>);

impl Waiter {
    /// What happened, at once if something did. Gives nothing seen when `until` passes first.
    pub(crate) async fn seen(&self, until: Instant) -> FileEvents {
        loop {
            let woken = self.0.wake.notified();
            let (seen, due) = self.0.lock().take(Instant::now());
            if seen != FileEvents::default() || Instant::now() >= until {
                return seen;
            }
            let next = due.map_or(until, |due| due.min(until));
            tokio::select! {
                () = woken => {}
                () = tokio::time::sleep_until(next.into()) => {}
            }
        }
    }
}

impl WatchShared {
    fn lock(&self) -> MutexGuard<'_, PendingEvents> {
        // Every write leaves the sets whole.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_in(&self, event: notify::Result<Event>) {
        if self.lock().take_in(event) {
            self.wake.notify_one();
        }
    }
}

impl PendingEvents {
    /// Whether somebody should look.
    fn take_in(&mut self, event: notify::Result<Event>) -> bool {
        let Ok(event) = event else {
            self.seen.everything = true;
            return true;
        };
        if event.need_rescan() {
            self.seen.everything = true;
            return true;
        }
        let mut worth_a_look = false;
        for path in event.paths {
            if self.interest.covers(&path) {
                worth_a_look |= self.touch(path, event.kind);
            }
        }
        worth_a_look
    }

    fn touch(&mut self, path: PathBuf, kind: EventKind) -> bool {
        match kind {
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => self.done(path),
            EventKind::Access(_) => false,
            // A waiter must learn of it too, to know how long to sleep.
            EventKind::Modify(ModifyKind::Data(_)) => self.begun(path),
            EventKind::Create(CreateKind::File) if awaits_content(&path) => self.begun(path),
            EventKind::Modify(ModifyKind::Metadata(_)) if self.writing.contains_key(&path) => false,
            _ => self.done(path),
        }
    }

    fn begun(&mut self, path: PathBuf) -> bool {
        let now = Instant::now();
        self.seen.paths.remove(&path);
        let is_new = !self.writing.contains_key(&path);
        self.writing.entry(path).or_insert(OpenWriter { first: now, last: now }).last = now;
        is_new
    }

    fn done(&mut self, path: PathBuf) -> bool {
        self.writing.remove(&path);
        if self.seen.paths.len() >= MANY_PATHS {
            self.seen.everything = true;
        } else {
            self.seen.paths.insert(path);
        }
        true
    }

    fn take(&mut self, now: Instant) -> (FileEvents, Option<Instant>) {
        let overdue = self.writing.extract_if(.., |_, writing| writing.due() <= now).map(|(path, _)| path);
        self.seen.paths.extend(overdue);
        let due = self.writing.values().map(|writing| writing.due()).min();
        (std::mem::take(&mut self.seen), due)
    }
}

/// Whether a file that was just created will be written and closed: links come with their content.
fn awaits_content(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|m| m.is_file() && !has_several_names(&m))
}

#[cfg(unix)]
fn has_several_names(metadata: &std::fs::Metadata) -> bool {
    std::os::unix::fs::MetadataExt::nlink(metadata) > 1
}

#[cfg(not(unix))]
fn has_several_names(_: &std::fs::Metadata) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::time::Instant;

    use notify::event::{AccessKind, AccessMode, DataChange, MetadataKind, ModifyKind, RenameMode};
    use notify::{Event, EventKind};

    use super::{BUSY_WRITER, IDLE_WRITER, Interest, PendingEvents};

    const WRITE: EventKind = EventKind::Modify(ModifyKind::Data(DataChange::Any));
    const CLOSE: EventKind = EventKind::Access(AccessKind::Close(AccessMode::Write));
    const RENAMED_TO: EventKind = EventKind::Modify(ModifyKind::Name(RenameMode::To));
    const CHMOD: EventKind = EventKind::Modify(ModifyKind::Metadata(MetadataKind::Any));

    fn after(events: &[(EventKind, &str)]) -> PendingEvents {
        let interest = Interest { folders: ["/c".into()].into(), paths: ["/p/c".into()].into() };
        let mut pending = PendingEvents { interest, ..PendingEvents::default() };
        for (kind, path) in events {
            pending.take_in(Ok(Event::new(*kind).add_path(PathBuf::from(path))));
        }
        pending
    }

    fn seen(events: &[(EventKind, &str)]) -> Vec<PathBuf> {
        after(events).take(Instant::now()).0.paths.into_iter().collect()
    }

    #[test]
    fn a_file_is_seen_when_its_writer_closes_it() {
        assert_eq!(seen(&[(WRITE, "/c/a")]), Vec::<PathBuf>::new());
        assert_eq!(seen(&[(WRITE, "/c/a"), (CLOSE, "/c/a")]), [Path::new("/c/a")]);
        assert_eq!(seen(&[(WRITE, "/c/a"), (CHMOD, "/c/a")]), Vec::<PathBuf>::new());
        assert_eq!(seen(&[(CLOSE, "/c/a"), (WRITE, "/c/a")]), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_renamed_file_is_seen_at_once() {
        assert_eq!(seen(&[(RENAMED_TO, "/c/a")]), [Path::new("/c/a")]);
    }

    #[test]
    fn noise_beside_the_folder_is_not_seen() {
        assert_eq!(seen(&[(CLOSE, "/p/other"), (RENAMED_TO, "/p/c"), (CLOSE, "/else/x")]), [Path::new("/p/c")]);
    }

    #[test]
    fn a_writer_that_never_closes_is_not_waited_for_for_ever() {
        let mut pending = after(&[(WRITE, "/c/a")]);
        let (_, due) = pending.take(Instant::now());
        assert!(due.is_some_and(|due| due <= Instant::now() + IDLE_WRITER.min(BUSY_WRITER)));
        let (seen, due) = pending.take(Instant::now() + BUSY_WRITER);
        assert_eq!((seen.paths.len(), due), (1, None));
    }

    #[test]
    fn many_paths_become_everything() {
        let mut pending = after(&[]);
        for i in 0..5000 {
            pending.take_in(Ok(Event::new(CLOSE).add_path(format!("/c/{i}").into())));
        }
        let (seen, _) = pending.take(Instant::now());
        assert!(seen.everything && seen.paths.len() <= super::MANY_PATHS);
    }
}
