//! Kernel file events, reduced to the paths whose content may have changed.
//! A file that is being written is reported when its writer closes it, so it is not read half-written.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, CreateKind, ModifyKind};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

/// A writer that has written nothing for this long is no longer waited for.
const IDLE_WRITER: Duration =
    if cfg!(target_os = "linux") { Duration::from_secs(2) } else { Duration::from_millis(20) };
/// A file whose writer keeps writing is reported after this long.
const BUSY_WRITER: Duration = Duration::from_secs(5);
/// With more changed paths than this, a full scan is cheaper.
const MANY_PATHS: usize = 1024;

/// Paths that may have changed since the last call.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FileEvents {
    /// Events were lost: a full scan is needed.
    pub(crate) everything: bool,
    pub(crate) paths: BTreeSet<PathBuf>,
}

/// Paths to report events for. They must be canonical: each directory has one kernel watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interest {
    /// Directories of which every entry is reported.
    pub(crate) folders: BTreeSet<PathBuf>,
    /// Single paths in other directories.
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

/// A set of watched directories and the events that are not yet delivered.
pub(crate) struct FileWatch {
    watcher: notify::Result<RecommendedWatcher>,
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
    events: FileEvents,
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
        let watcher = notify::recommended_watcher(move |event| events.record(event));
        FileWatch { watcher, watched: BTreeSet::new(), shared }
    }

    /// Watches exactly these paths, and renews the watch of a directory that was replaced under the same name.
    /// Returns the directories that were not watched before, and an error if one could not be watched.
    pub(crate) fn follow(&mut self, interest: Interest) -> (BTreeSet<PathBuf>, Option<String>) {
        let wanted = interest.watched_folders();
        self.shared.lock().interest = interest;
        let watcher = match &mut self.watcher {
            Ok(watcher) => watcher,
            Err(error) => return (BTreeSet::new(), Some(error.to_string())),
        };
        for gone in self.watched.difference(&wanted) {
            // Fails if the directory is gone: the kernel has already dropped its watch.
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

    /// A handle to wait for events while the watch itself is locked by another thread.
    pub(crate) fn waiter(&self) -> Waiter {
        Waiter(self.shared.clone())
    }

    /// A handle to report a path as if the kernel had.
    pub(crate) fn waker(&self) -> Waker {
        Waker(self.shared.clone())
    }

    /// Files that are open for writing.
    pub(crate) fn being_written(&self) -> BTreeSet<PathBuf> {
        self.shared.lock().writing.keys().cloned().collect()
    }
}

/// Reports a path to the waiter.
#[derive(Clone)]
pub(crate) struct Waker(Arc<WatchShared>);

impl Waker {
    pub(crate) fn wake(&self, path: PathBuf) {
        self.0.lock().events.paths.insert(path);
        self.0.wake.notify_one();
    }
}

/// Waits for events.
#[derive(Clone)]
pub(crate) struct Waiter(Arc<WatchShared>);

impl Waiter {
    /// Waits for events. Returns at once if there are some, and with none at `until`.
    pub(crate) async fn events(&self, until: Instant) -> FileEvents {
        loop {
            let woken = self.0.wake.notified();
            let (events, due) = self.0.lock().take(Instant::now());
            if events != FileEvents::default() || Instant::now() >= until {
                return events;
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
        self.pending.lock()
    }

    fn record(&self, event: notify::Result<Event>) {
        if self.lock().record(event) {
            self.wake.notify_one();
        }
    }
}

impl PendingEvents {
    /// Records an event. Returns whether the waiter must wake.
    fn record(&mut self, event: notify::Result<Event>) -> bool {
        let Ok(event) = event else {
            self.events.everything = true;
            return true;
        };
        if event.need_rescan() {
            self.events.everything = true;
            return true;
        }
        let mut wakes = false;
        for path in event.paths {
            if self.interest.covers(&path) {
                wakes |= self.touch(path, event.kind);
            }
        }
        wakes
    }

    fn touch(&mut self, path: PathBuf, kind: EventKind) -> bool {
        match kind {
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => self.writing_ended(path),
            EventKind::Access(_) => false,
            // Wakes the waiter too, which then sleeps until the writer's deadline.
            EventKind::Modify(ModifyKind::Data(_)) => self.writing_started(path),
            EventKind::Create(CreateKind::File) if awaits_content(&path) => self.writing_started(path),
            EventKind::Modify(ModifyKind::Metadata(_)) if self.writing.contains_key(&path) => false,
            _ => self.writing_ended(path),
        }
    }

    fn writing_started(&mut self, path: PathBuf) -> bool {
        let now = Instant::now();
        self.events.paths.remove(&path);
        let is_new = !self.writing.contains_key(&path);
        self.writing.entry(path).or_insert(OpenWriter { first: now, last: now }).last = now;
        is_new
    }

    fn writing_ended(&mut self, path: PathBuf) -> bool {
        self.writing.remove(&path);
        if self.events.paths.len() >= MANY_PATHS {
            self.events.everything = true;
        } else {
            self.events.paths.insert(path);
        }
        true
    }

    fn take(&mut self, now: Instant) -> (FileEvents, Option<Instant>) {
        let overdue = self.writing.extract_if(.., |_, writing| writing.due() <= now).map(|(path, _)| path);
        self.events.paths.extend(overdue);
        let due = self.writing.values().map(|writing| writing.due()).min();
        (std::mem::take(&mut self.events), due)
    }
}

/// Whether a file that was just created will still be written and closed. Symlinks and hard links are complete.
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
            pending.record(Ok(Event::new(*kind).add_path(PathBuf::from(path))));
        }
        pending
    }

    fn reported(events: &[(EventKind, &str)]) -> Vec<PathBuf> {
        after(events).take(Instant::now()).0.paths.into_iter().collect()
    }

    #[test]
    fn a_file_is_reported_when_its_writer_closes_it() {
        assert_eq!(reported(&[(WRITE, "/c/a")]), Vec::<PathBuf>::new());
        assert_eq!(reported(&[(WRITE, "/c/a"), (CLOSE, "/c/a")]), [Path::new("/c/a")]);
        assert_eq!(reported(&[(WRITE, "/c/a"), (CHMOD, "/c/a")]), Vec::<PathBuf>::new());
        assert_eq!(reported(&[(CLOSE, "/c/a"), (WRITE, "/c/a")]), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_renamed_file_is_reported_at_once() {
        assert_eq!(reported(&[(RENAMED_TO, "/c/a")]), [Path::new("/c/a")]);
    }

    #[test]
    fn events_outside_of_the_watched_paths_are_not_reported() {
        assert_eq!(reported(&[(CLOSE, "/p/other"), (RENAMED_TO, "/p/c"), (CLOSE, "/else/x")]), [Path::new("/p/c")]);
    }

    #[test]
    fn a_writer_that_never_closes_is_waited_for_until_its_deadline() {
        let mut pending = after(&[(WRITE, "/c/a")]);
        let (_, due) = pending.take(Instant::now());
        assert!(due.is_some_and(|due| due <= Instant::now() + IDLE_WRITER.min(BUSY_WRITER)));
        let (events, due) = pending.take(Instant::now() + BUSY_WRITER);
        assert_eq!((events.paths.len(), due), (1, None));
    }

    #[test]
    fn many_paths_become_a_full_scan() {
        let mut pending = after(&[]);
        for i in 0..5000 {
            pending.record(Ok(Event::new(CLOSE).add_path(format!("/c/{i}").into())));
        }
        let (events, _) = pending.take(Instant::now());
        assert!(events.everything && events.paths.len() <= super::MANY_PATHS);
    }
}
