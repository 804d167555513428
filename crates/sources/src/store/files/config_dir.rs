//! The config folder over time: decides which files to read, when a missing file counts as deleted, and when the folder
//! itself cannot be trusted. Blocking; `mod` runs it on a blocking thread.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use model::change::Change;
use model::problem::{Problem, ProblemCode, Subject};
use tracing::warn;

use super::file_objects::FileObjects;
use super::large::LargeFileParser;
use super::read_file::{self, ParsedFile, ReadOutcome};
use super::saved_files::SavedFiles;
use super::walk::{self, DirTree, FileStatus};
use crate::disk::{self, FileId, FileStamp, YOUNG};
use crate::file_watch::{FileEvents, FileWatch, Interest};

/// Missing files count as deleted when no file was created or deleted for this long: `rm -r` deletes the files first and
/// the folder last, and editors move a file away before they write the new one.
const GONE_QUIET: Duration = Duration::from_millis(200);
/// Missing files count as deleted after this long, even if others keep being created and deleted.
const GONE_LIMIT: Duration = Duration::from_secs(2);
/// A recently written file that lacks objects may be incomplete. It is read again, but used after this long.
const RECHECK_LIMIT: Duration = Duration::from_millis(200);
/// How often a folder or file that cannot be read is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// How often the folder is listed while new folders appear; the next scan finds the rest.
const MAX_LISTINGS: usize = 5;
/// Fewer files are read on one thread.
const WORTH_THREADS: usize = 64;

/// The folder and its state at the last scan.
pub(crate) struct ConfigDir {
    root: PathBuf,
    watch: FileWatch,
    objects: FileObjects,
    /// The root when it was last trusted.
    identity: Option<DirIdentity>,
    /// Canonical paths of listed folders, to their paths below the root.
    folders: BTreeMap<PathBuf, PathBuf>,
    /// Targets of symlinked files, to the links.
    targets: BTreeMap<PathBuf, BTreeSet<PathBuf>>,
    unreadable: BTreeMap<PathBuf, String>,
    trouble: Option<String>,
    watch_failure: Option<String>,
    missing: MissingFiles,
    rechecks: BTreeMap<PathBuf, PendingRecheck>,
    /// Files that cannot be read. They are tried again: there may be no event when they become readable.
    unread: BTreeSet<PathBuf>,
    large: LargeFileParser,
    /// Files that are no config files.
    left_out: BTreeSet<PathBuf>,
    saved: Option<SavedFiles>,
}

/// Why the folder is not used.
#[derive(Debug, thiserror::Error)]
enum DirError {
    #[error("could not read the folder {}: {error}", .root.display())]
    Unreadable { root: PathBuf, error: io::Error },
    #[error("the folder {} was replaced by an empty one", .0.display())]
    ReplacedByEmpty(PathBuf),
}

/// Inode and creation time of a folder. The time distinguishes folders that reuse an inode.
type DirIdentity = (FileId, Option<SystemTime>);

/// A file that is read again before it is used.
#[derive(Clone, Copy)]
struct PendingRecheck {
    since: Instant,
    due: Instant,
}

/// Known files that are missing now and may come back.
#[derive(Default)]
struct MissingFiles {
    paths: BTreeSet<PathBuf>,
    first: Option<Instant>,
    last: Option<Instant>,
}

/// The result of one scan.
pub(crate) struct Scan {
    pub(crate) changes: Vec<Change>,
    /// When to scan again even without events.
    pub(crate) again: Option<Instant>,
    /// Why the folder cannot be read.
    pub(crate) trouble: Option<String>,
    /// Which files cannot be read; their last objects are kept.
    pub(crate) unread: Option<String>,
    /// Whether the kernel reports changes; otherwise the folder is polled.
    pub(crate) is_watched: bool,
    /// Whether large files are still being parsed.
    pub(crate) is_partial: bool,
}

impl ConfigDir {
    pub(crate) fn new(root: PathBuf) -> ConfigDir {
        let watch = FileWatch::new();
        ConfigDir {
            root,
            large: LargeFileParser::new(watch.waker()),
            watch,
            objects: FileObjects::default(),
            identity: None,
            folders: BTreeMap::new(),
            targets: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            trouble: None,
            watch_failure: None,
            missing: MissingFiles::default(),
            rechecks: BTreeMap::new(),
            unread: BTreeSet::new(),
            left_out: BTreeSet::new(),
            saved: None,
        }
    }

    /// Saves good content below this folder, and uses it for files that are broken when they are first read.
    pub(crate) fn save_in(&mut self, state: &Path) {
        self.saved = Some(SavedFiles::new(state, &self.root));
    }

    pub(crate) fn watch(&self) -> &FileWatch {
        &self.watch
    }

    /// Makes the next scan return everything.
    pub(crate) fn publish_again(&mut self) {
        self.objects.publish_again();
    }

    /// Reads the files that may have changed.
    pub(crate) fn scan(&mut self, events: &FileEvents) -> Scan {
        for (path, content) in self.large.parsed() {
            self.put_content(path, content);
        }
        let files = if events.everything { None } else { self.files_of(&events.paths) };
        match files {
            None => self.scan_everything(),
            Some(files) => self.scan_files(self.due_again().chain(files).collect()),
        }
        self.drop_missing(Instant::now());
        let changes = self.objects.changes(self.problems());
        let is_watched = self.watch_failure.is_none();
        Scan {
            changes,
            again: self.again(),
            trouble: self.trouble.clone(),
            unread: self.unread(),
            is_watched,
            is_partial: self.large.is_busy(),
        }
    }

    fn unread(&self) -> Option<String> {
        let first = self.unread.first()?;
        let more = match self.unread.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(format!("could not read {}{more}; keeping the last good state", first.display()))
    }

    /// The config files that events concern; `None` if a full scan is needed.
    fn files_of(&self, paths: &BTreeSet<PathBuf>) -> Option<BTreeSet<PathBuf>> {
        let mut files = BTreeSet::new();
        for path in paths {
            if let Some(links) = self.targets.get(path) {
                files.extend(links.iter().cloned());
            }
            let folder = path.parent().and_then(|parent| self.folders.get(parent));
            let (Some(folder), Some(name)) = (folder, path.file_name()) else {
                // The root or the target of a symlink was created or deleted.
                if self.targets.contains_key(path) { continue } else { return None }
            };
            if self.folders.contains_key(path) || walk::is_dir(path) {
                return None;
            }
            let file = folder.join(name);
            if walk::is_config(&file) {
                files.insert(file);
            } else if self.folders.values().any(|known| *known == file) {
                // It was a symlink to a folder.
                return None;
            }
        }
        Some(files)
    }

    fn due_again(&self) -> impl Iterator<Item = PathBuf> + use<> {
        let now = Instant::now();
        let rechecks = self.rechecks.iter().filter(|(_, recheck)| recheck.due <= now).map(|(path, _)| path);
        rechecks.chain(&self.unread).cloned().collect::<Vec<_>>().into_iter()
    }

    fn scan_files(&mut self, files: BTreeSet<PathBuf>) {
        for path in files {
            match walk::entry(&path) {
                None => self.note_missing(path),
                Some(FileStatus::Unreadable(reason)) => self.unreadable(&path, &reason),
                Some(FileStatus::File { target, .. }) => {
                    self.note_target(&path, target);
                    let outcome = read_file::read(&path, self.objects.hash(&path));
                    self.apply_read(path, outcome);
                }
            }
        }
    }

    fn scan_everything(&mut self) {
        let listing = match self.list() {
            Ok(listing) => listing,
            Err(error) => return self.distrust(&error),
        };
        self.trouble = None;
        self.unreadable = listing.unreadable;
        self.left_out = listing.left_out;
        if let Some(saved) = &mut self.saved {
            saved.forget_others(listing.files.keys());
        }
        for path in self.vanished(&listing.files) {
            self.note_missing(path);
        }
        let being_written = self.watch.being_written();
        let busy = self.files_of(&being_written).unwrap_or_default();
        let mut due = Vec::new();
        for (path, entry) in listing.files {
            match entry {
                FileStatus::Unreadable(reason) => self.unreadable(&path, &reason),
                FileStatus::File { stamp, .. } if self.objects.is_current(&path, &stamp) => self.note_readable(&path),
                FileStatus::File { .. } if busy.contains(&path) => {}
                FileStatus::File { stamp, .. } => self.read_or_recheck(path, &stamp, &mut due),
            }
        }
        for (path, outcome) in read_all(&self.objects, due) {
            self.apply_read(path, outcome);
        }
    }

    /// A file that changed without an event may be incomplete.
    fn read_or_recheck(&mut self, path: PathBuf, stamp: &FileStamp, due: &mut Vec<PathBuf>) {
        let is_first_scan = self.objects.published_count() == 0 && !self.objects.holds(&path);
        if is_first_scan || !self.needs_recheck(&path, stamp) {
            due.push(path);
        }
    }

    /// Lists the folder; its folders are watched before their files are read.
    fn list(&mut self) -> Result<DirTree, DirError> {
        let mut listed = walk::walk(&self.root);
        for _ in 0..MAX_LISTINGS {
            let (new, failure) = self.watch.follow(self.interest(listed.as_ref().ok()));
            self.watch_failure = failure;
            if new.is_empty() {
                break;
            }
            // A file created before its folder was watched made no event.
            listed = walk::walk(&self.root);
        }
        let listing = listed.map_err(|error| DirError::Unreadable { root: self.root.clone(), error })?;
        self.trusted(listing)
    }

    /// Refuses an empty folder that replaced a full one: this is what an unmounted disk looks like.
    fn trusted(&mut self, listing: DirTree) -> Result<DirTree, DirError> {
        let identity = self.root_identity();
        let is_other = self.trouble.is_some() || identity != self.identity;
        if is_other && listing.files.is_empty() && !self.objects.is_empty() {
            return Err(DirError::ReplacedByEmpty(self.root.clone()));
        }
        self.identity = identity;
        self.folders = listing.folders.clone();
        self.targets.clear();
        for (path, entry) in &listing.files {
            if let FileStatus::File { target, .. } = entry {
                self.note_target(path, target.clone());
            }
        }
        Ok(listing)
    }

    fn distrust(&mut self, error: &DirError) {
        self.trouble = Some(error.to_string());
        self.missing = MissingFiles::default();
        self.rechecks.clear();
    }

    fn interest(&self, listing: Option<&DirTree>) -> Interest {
        let mut interest = Interest::default();
        // The root by its own name, and by its canonical path.
        let parent = self.root.parent().and_then(disk::canonical);
        if let (Some(parent), Some(name)) = (parent, self.root.file_name()) {
            interest.paths.insert(parent.join(name));
        }
        interest.paths.extend(disk::canonical(&self.root));
        let Some(listing) = listing else { return interest };
        interest.folders.extend(listing.folders.keys().cloned());
        interest.paths.extend(listing.files.values().filter_map(|entry| match entry {
            FileStatus::File { target, .. } => target.clone(),
            FileStatus::Unreadable(_) => None,
        }));
        interest
    }

    fn note_target(&mut self, path: &Path, target: Option<PathBuf>) {
        if let Some(target) = target {
            self.targets.entry(target).or_default().insert(path.to_path_buf());
        }
    }

    /// Known files that were not listed, except those in folders that cannot be listed.
    fn vanished(&self, listed: &BTreeMap<PathBuf, FileStatus>) -> Vec<PathBuf> {
        let is_hidden = |path: &Path| self.unreadable.keys().any(|folder| path.starts_with(folder));
        let absent = self.objects.paths().filter(|path| !listed.contains_key(*path) && !is_hidden(path));
        absent.map(Path::to_path_buf).collect()
    }

    fn apply_read(&mut self, path: PathBuf, outcome: ReadOutcome) {
        match outcome {
            ReadOutcome::Gone => self.note_missing(path),
            ReadOutcome::Unreadable(reason) => self.unreadable(&path, &reason),
            ReadOutcome::Unsettled => _ = self.recheck_soon(&path),
            ReadOutcome::Same(stamp) => {
                self.note_readable(&path);
                self.objects.restamp(&path, stamp);
            }
            ReadOutcome::Large(bytes) => {
                self.note_readable(&path);
                self.large.put(path, bytes);
            }
            ReadOutcome::Parsed(content) => self.put_content(path, content),
        }
    }

    fn put_content(&mut self, path: PathBuf, content: ParsedFile) {
        if content.is_broken() {
            self.restore(&path);
        }
        if self.objects.is_loss(&path, &content) && self.needs_recheck(&path, &content.stamp) {
            return;
        }
        self.note_readable(&path);
        if let Some(saved) = self.saved.as_mut().filter(|_| !content.is_broken()) {
            saved.save(&path, content.hash);
        }
        self.objects.put(&path, content);
    }

    /// Before a broken file is read for the first time: its last good content, if a copy was saved.
    fn restore(&mut self, path: &Path) {
        if self.objects.holds(path) {
            return;
        }
        if let Some(content) = self.saved.as_ref().and_then(|saved| saved.load(path)) {
            let (file, objects) = (path.display(), content.objects.len());
            warn!(%file, objects, "file is broken; serving its last good content from the state folder");
            self.objects.put(path, content);
        }
    }

    /// Whether a file was written so recently that it may be incomplete; it is then read again soon.
    fn needs_recheck(&mut self, path: &Path, stamp: &FileStamp) -> bool {
        stamp.is_young() && self.recheck_soon(path) < RECHECK_LIMIT
    }

    /// Schedules the next read of the file. Returns how long its use has been delayed.
    fn recheck_soon(&mut self, path: &Path) -> Duration {
        let now = Instant::now();
        let recheck = self.rechecks.entry(path.to_path_buf()).or_insert(PendingRecheck { since: now, due: now });
        recheck.due = now + YOUNG;
        now - recheck.since
    }

    fn unreadable(&mut self, path: &Path, reason: &str) {
        self.restore(path);
        self.note_readable(path);
        self.unread.insert(path.to_path_buf());
        self.objects.put_unreadable(path, reason);
    }

    fn note_missing(&mut self, path: PathBuf) {
        self.rechecks.remove(&path);
        self.large.forget(&path);
        if !self.objects.holds(&path) {
            return;
        }
        match walk::entry(&path) {
            None => self.missing.add(path),
            // For example a folder that replaced the file.
            Some(FileStatus::Unreadable(reason)) => self.unreadable(&path, &reason),
            // Created again after the listing; its event will follow.
            Some(FileStatus::File { .. }) => {}
        }
    }

    fn note_readable(&mut self, path: &Path) {
        self.rechecks.remove(path);
        self.unread.remove(path);
        self.missing.remove(path);
    }

    fn drop_missing(&mut self, now: Instant) {
        if self.missing.due().is_none_or(|due| due > now) {
            return;
        }
        // If the folder itself is gone, its event may not have arrived yet.
        if self.root_identity() != self.identity {
            return self.scan_everything();
        }
        for path in std::mem::take(&mut self.missing).paths {
            // A file that exists again is being written.
            if walk::entry(&path).is_none() {
                self.unread.remove(&path);
                self.objects.remove(&path);
                if let Some(saved) = &self.saved {
                    saved.remove(&path);
                }
            }
        }
    }

    fn root_identity(&self) -> Option<DirIdentity> {
        let (metadata, _) = disk::target(&self.root).ok()?;
        Some((FileId::of(&metadata), metadata.created().ok()))
    }

    fn problems(&self) -> Vec<Problem> {
        let about = |path: &Path| Subject::File(path.to_string_lossy().into());
        let keeping = if self.objects.is_empty() { "" } else { "; keeping the last good state" };
        let trouble = self.trouble.iter().map(|t| Problem::error(about(&self.root), format!("{t}{keeping}")));
        let unreadable = self.unreadable.iter().map(|(path, reason)| {
            Problem::error(about(path), format!("could not read the folder: {reason}; keeping the last good state"))
        });
        let unwatched = self.watch_failure.iter().map(|w| Problem::warning(about(&self.root), w.as_str()));
        let left_out = self.left_out.iter().map(|path| {
            let problem = Problem::info(about(path), "the file is left out: only .yaml and .yml files are read");
            problem.coded(ProblemCode::FileLeftOut)
        });
        let unsaved = self.saved.iter().filter_map(SavedFiles::problem);
        trouble.chain(unreadable).chain(unwatched).chain(left_out).chain(unsaved).collect()
    }

    fn again(&self) -> Option<Instant> {
        let now = Instant::now();
        let retry = self.trouble.is_some().then(|| now + RETRY);
        let retry = retry.or((!self.unread.is_empty()).then(|| now + RETRY));
        let recheck = self.rechecks.values().map(|recheck| recheck.due).min();
        [self.missing.due(), retry, recheck].into_iter().flatten().min()
    }
}

impl MissingFiles {
    fn add(&mut self, path: PathBuf) {
        if self.paths.insert(path) {
            let now = Instant::now();
            self.first.get_or_insert(now);
            self.last = Some(now);
        }
    }

    fn remove(&mut self, path: &Path) {
        if self.paths.remove(path) {
            self.last = Some(Instant::now());
        }
        if self.paths.is_empty() {
            *self = MissingFiles::default();
        }
    }

    fn due(&self) -> Option<Instant> {
        Some((self.last? + GONE_QUIET).min(self.first? + GONE_LIMIT))
    }
}

/// Reads files on all cores.
fn read_all(objects: &FileObjects, paths: Vec<PathBuf>) -> Vec<(PathBuf, ReadOutcome)> {
    let read = |path: &PathBuf| read_file::read(path, objects.hash(path));
    if paths.len() < WORTH_THREADS {
        return paths.into_iter().map(|path| (path.clone(), read(&path))).collect();
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let share = paths.len().div_ceil(cores);
    std::thread::scope(|scope| {
        let parts: Vec<_> = paths
            .chunks(share)
            .map(|part| scope.spawn(move || part.iter().map(|p| (p.clone(), read(p))).collect::<Vec<_>>()))
            .collect();
        parts.into_iter().flat_map(|part| part.join().unwrap_or_default()).collect()
    })
}
