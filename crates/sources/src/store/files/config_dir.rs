//! The config folder over time: decides which files to look at, when a missing file is really gone,
//! and when the folder itself is not to be trusted. Blocking; `mod` runs it off the async threads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use model::change::Change;
use model::problem::{Problem, Subject};

use super::file_objects::FileObjects;
use super::large::LargeFileParser;
use super::read_file::{self, ParsedFile, ReadOutcome};
use super::walk::{self, DirTree, FileStatus};
use crate::disk::{self, FileId, FileStamp, YOUNG};
use crate::file_watch::{FileEvents, FileWatch, Interest};

/// Files go for good when no other has come or gone for this long: `rm -r` takes the files first
/// and the folder last, editors move a file away before they write the new one.
const GONE_QUIET: Duration = Duration::from_millis(200);
/// Under constant coming and going, files go for good after this long.
const GONE_LIMIT: Duration = Duration::from_secs(2);
/// A file that loses objects is doubted while it is young, but not longer than this.
const DOUBT_LIMIT: Duration = Duration::from_millis(200);
/// How often a folder that cannot be read is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// Folders that come faster than they can be watched are left to the next look.
const MAX_LISTINGS: usize = 5;
/// Below this, starting threads costs more than they save.
const WORTH_THREADS: usize = 64;

/// The folder, as far as it was seen.
pub(crate) struct ConfigDir {
    root: PathBuf,
    watch: FileWatch,
    shelf: FileObjects,
    /// The root when it was last good.
    identity: Option<DirIdentity>,
    /// Canonical paths of listed folders, to the paths people know.
    folders: BTreeMap<PathBuf, PathBuf>,
    /// Where symlinked files lead, to the paths people know.
    targets: BTreeMap<PathBuf, BTreeSet<PathBuf>>,
    unreadable: BTreeMap<PathBuf, String>,
    trouble: Option<String>,
    watch_failure: Option<String>,
    missing: MissingFiles,
    doubtful: BTreeMap<PathBuf, PendingRecheck>,
    /// Files that are there but cannot be read: what they wait for may make no event.
    unread: BTreeSet<PathBuf>,
    large: LargeFileParser,
}

/// Which folder it is; the time tells two apart that got the same inode one after the other.
type DirIdentity = (FileId, Option<SystemTime>);

/// A file that is looked at again before it is believed.
#[derive(Clone, Copy)]
struct PendingRecheck {
    since: Instant,
    due: Instant,
}

/// Files that were there and are not, but may come back.
#[derive(Default)]
struct MissingFiles {
    paths: BTreeSet<PathBuf>,
    first: Option<Instant>,
    last: Option<Instant>,
}

/// What one look at the folder gave.
pub(crate) struct Scan {
    pub(crate) changes: Vec<Change>,
    /// When to look again even if nothing happens.
    pub(crate) again: Option<Instant>,
    /// Why the folder cannot be read, where it cannot.
    pub(crate) trouble: Option<String>,
    /// Which file cannot be read, where one cannot: it is served as it was.
    pub(crate) unread: Option<String>,
    /// Whether changes are told by the kernel; otherwise one has to look often.
    pub(crate) is_watched: bool,
    /// Large files are still being parsed.
    pub(crate) is_partial: bool,
}

impl ConfigDir {
    pub(crate) fn new(root: PathBuf) -> ConfigDir {
        let watch = FileWatch::new();
        ConfigDir {
            root,
            large: LargeFileParser::new(watch.waker()),
            watch,
            shelf: FileObjects::default(),
            identity: None,
            folders: BTreeMap::new(),
            targets: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            trouble: None,
            watch_failure: None,
            missing: MissingFiles::default(),
            doubtful: BTreeMap::new(),
            unread: BTreeSet::new(),
        }
    }

    pub(crate) fn watch(&self) -> &FileWatch {
        &self.watch
    }

    /// Makes the next look tell everything.
    pub(crate) fn tell_again(&mut self) {
        self.shelf.tell_again();
    }

    /// Looks at what may have changed.
    pub(crate) fn look(&mut self, seen: &FileEvents) -> Scan {
        for (path, content) in self.large.parsed() {
            self.content(path, content);
        }
        let files = if seen.everything { None } else { self.files_of(&seen.paths) };
        match files {
            None => self.look_at_everything(),
            Some(files) => self.look_at(self.due_again().chain(files).collect()),
        }
        self.drop_missing(Instant::now());
        let changes = self.shelf.changes(self.problems());
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

    /// The config files that events are about; nothing where only a look at everything will do.
    fn files_of(&self, paths: &BTreeSet<PathBuf>) -> Option<BTreeSet<PathBuf>> {
        let mut files = BTreeSet::new();
        for path in paths {
            if let Some(links) = self.targets.get(path) {
                files.extend(links.iter().cloned());
            }
            let folder = path.parent().and_then(|parent| self.folders.get(parent));
            let (Some(folder), Some(name)) = (folder, path.file_name()) else {
                // The root itself came or went, or a symlink's target did.
                if self.targets.contains_key(path) { continue } else { return None }
            };
            if self.folders.contains_key(path) || walk::is_dir(path) {
                return None;
            }
            let file = folder.join(name);
            if walk::is_config(&file) {
                files.insert(file);
            } else if self.folders.values().any(|known| *known == file) {
                // A link to a folder was there.
                return None;
            }
        }
        Some(files)
    }

    fn due_again(&self) -> impl Iterator<Item = PathBuf> + use<> {
        let now = Instant::now();
        let doubtful = self.doubtful.iter().filter(|(_, doubt)| doubt.due <= now).map(|(path, _)| path);
        doubtful.chain(&self.unread).cloned().collect::<Vec<_>>().into_iter()
    }

    fn look_at(&mut self, files: BTreeSet<PathBuf>) {
        for path in files {
            match walk::entry(&path) {
                None => self.gone(path),
                Some(FileStatus::Unreadable(reason)) => self.unreadable(&path, &reason),
                Some(FileStatus::File { target, .. }) => {
                    self.note_target(&path, target);
                    let reading = read_file::read(&path, self.shelf.hash(&path));
                    self.take_in(path, reading);
                }
            }
        }
    }

    fn look_at_everything(&mut self) {
        let listing = match self.list() {
            Ok(listing) => listing,
            Err(reason) => return self.distrust(reason),
        };
        self.trouble = None;
        self.unreadable = listing.unreadable;
        for path in self.vanished(&listing.files) {
            self.gone(path);
        }
        let being_written = self.watch.being_written();
        let busy = self.files_of(&being_written).unwrap_or_default();
        let mut due = Vec::new();
        for (path, entry) in listing.files {
            match entry {
                FileStatus::Unreadable(reason) => self.unreadable(&path, &reason),
                FileStatus::File { stamp, .. } if self.shelf.is_current(&path, &stamp) => self.is_back(&path),
                FileStatus::File { .. } if busy.contains(&path) => {}
                FileStatus::File { stamp, .. } => self.look_or_doubt(path, &stamp, &mut due),
            }
        }
        for (path, reading) in read_all(&self.shelf, due) {
            self.take_in(path, reading);
        }
    }

    /// A file found changed without an event may be in the middle of being written.
    fn look_or_doubt(&mut self, path: PathBuf, stamp: &FileStamp, due: &mut Vec<PathBuf>) {
        let is_first_look = self.shelf.objects() == 0 && !self.shelf.holds(&path);
        if is_first_look || !self.doubt(&path, stamp) {
            due.push(path);
        }
    }

    /// Lists the folder with watches in place before its files are read.
    fn list(&mut self) -> Result<DirTree, String> {
        let mut listed = walk::walk(&self.root);
        for _ in 0..MAX_LISTINGS {
            let (new, failure) = self.watch.follow(self.interest(listed.as_ref().ok()));
            self.watch_failure = failure;
            if new.is_empty() {
                break;
            }
            // What came into a folder before it was watched made no event.
            listed = walk::walk(&self.root);
        }
        let listing = listed.map_err(|e| format!("could not read the folder {}: {e}", self.root.display()))?;
        self.trusted(listing)
    }

    /// Refuses an empty folder that took the place of a full one: an unmounted disk looks like that.
    fn trusted(&mut self, listing: DirTree) -> Result<DirTree, String> {
        let identity = self.root_identity();
        let is_other = self.trouble.is_some() || identity != self.identity;
        if is_other && listing.files.is_empty() && !self.shelf.is_empty() {
            return Err(format!("the folder {} was replaced by an empty one", self.root.display()));
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

    fn distrust(&mut self, reason: String) {
        self.trouble = Some(reason);
        self.missing = MissingFiles::default();
        self.doubtful.clear();
    }

    fn interest(&self, listing: Option<&DirTree>) -> Interest {
        let mut interest = Interest::default();
        // The root by its own name, and by the name it has where symlinks lead.
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

    /// Known files that were not listed and do not stand in a folder that could not be.
    fn vanished(&self, listed: &BTreeMap<PathBuf, FileStatus>) -> Vec<PathBuf> {
        let is_hidden = |path: &Path| self.unreadable.keys().any(|folder| path.starts_with(folder));
        let absent = self.shelf.paths().filter(|path| !listed.contains_key(*path) && !is_hidden(path));
        absent.map(Path::to_path_buf).collect()
    }

    fn take_in(&mut self, path: PathBuf, reading: ReadOutcome) {
        match reading {
            ReadOutcome::Gone => self.gone(path),
            ReadOutcome::Unreadable(reason) => self.unreadable(&path, &reason),
            ReadOutcome::Unsettled => _ = self.put_off(&path),
            ReadOutcome::Same(stamp) => {
                self.is_back(&path);
                self.shelf.restamp(&path, stamp);
            }
            ReadOutcome::Large(bytes) => {
                self.is_back(&path);
                self.large.put(path, bytes);
            }
            ReadOutcome::Parsed(content) => self.content(path, content),
        }
    }

    fn content(&mut self, path: PathBuf, content: ParsedFile) {
        if self.shelf.is_loss(&path, &content) && self.doubt(&path, &content.stamp) {
            return;
        }
        self.is_back(&path);
        self.shelf.put(&path, content);
    }

    /// Whether a file is so young that its writer may not have finished; it is looked at again soon.
    fn doubt(&mut self, path: &Path, stamp: &FileStamp) -> bool {
        stamp.is_young() && self.put_off(path) < DOUBT_LIMIT
    }

    /// Has the file looked at again soon; gives how long it has been put off.
    fn put_off(&mut self, path: &Path) -> Duration {
        let now = Instant::now();
        let doubt = self.doubtful.entry(path.to_path_buf()).or_insert(PendingRecheck { since: now, due: now });
        doubt.due = now + YOUNG;
        now - doubt.since
    }

    fn unreadable(&mut self, path: &Path, reason: &str) {
        self.is_back(path);
        self.unread.insert(path.to_path_buf());
        self.shelf.put_unreadable(path, reason);
    }

    fn gone(&mut self, path: PathBuf) {
        self.doubtful.remove(&path);
        self.large.forget(&path);
        if !self.shelf.holds(&path) {
            return;
        }
        match walk::entry(&path) {
            None => self.missing.add(path),
            // A folder in its place, for example, which is listed as a folder.
            Some(FileStatus::Unreadable(reason)) => self.unreadable(&path, &reason),
            // It came back after the listing; its event is on the way.
            Some(FileStatus::File { .. }) => {}
        }
    }

    fn is_back(&mut self, path: &Path) {
        self.doubtful.remove(path);
        self.unread.remove(path);
        self.missing.remove(path);
    }

    fn drop_missing(&mut self, now: Instant) {
        if self.missing.due().is_none_or(|due| due > now) {
            return;
        }
        // The folder's own end makes an event too, but that one may still be on the way.
        if self.root_identity() != self.identity {
            return self.look_at_everything();
        }
        for path in std::mem::take(&mut self.missing).paths {
            // One that is there again is still being written.
            if walk::entry(&path).is_none() {
                self.unread.remove(&path);
                self.shelf.remove(&path);
            }
        }
    }

    fn root_identity(&self) -> Option<DirIdentity> {
        let (metadata, _) = disk::target(&self.root).ok()?;
        Some((FileId::of(&metadata), metadata.created().ok()))
    }

    fn problems(&self) -> Vec<Problem> {
        let about = |path: &Path| Subject::File(path.to_string_lossy().into());
        let keeping = if self.shelf.is_empty() { "" } else { "; keeping the last good state" };
        let trouble = self.trouble.iter().map(|t| Problem::error(about(&self.root), format!("{t}{keeping}")));
        let unreadable = self.unreadable.iter().map(|(path, reason)| {
            Problem::error(about(path), format!("could not read the folder: {reason}; keeping the last good state"))
        });
        let unwatched = self.watch_failure.iter().map(|w| Problem::warning(about(&self.root), w.as_str()));
        trouble.chain(unreadable).chain(unwatched).collect()
    }

    fn again(&self) -> Option<Instant> {
        let now = Instant::now();
        let retry = self.trouble.is_some().then(|| now + RETRY);
        let retry = retry.or((!self.unread.is_empty()).then(|| now + RETRY));
        let doubt = self.doubtful.values().map(|doubt| doubt.due).min();
        [self.missing.due(), retry, doubt].into_iter().flatten().min()
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

/// Reads files on all cores: a cold start parses thousands.
fn read_all(shelf: &FileObjects, paths: Vec<PathBuf>) -> Vec<(PathBuf, ReadOutcome)> {
    let read = |path: &PathBuf| read_file::read(path, shelf.hash(path));
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
