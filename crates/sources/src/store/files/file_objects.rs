//! The objects of all config files: the last valid version of each object, one winner among duplicates, and the changes
//! since the last call.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use model::change::Change;
use model::config::{Key, Object};
use model::problem::{Problem, ProblemCode};

use super::read_file::{ParsedFile, ProblemSubjects, whole_file};
use crate::disk::FileStamp;

/// The resolution of file times: a file read this soon after its last change may have changed again with the same time.
const COARSE_CLOCK: Duration = Duration::from_millis(100);
const KEEPING: &str = "; keeping the last good version";

/// All files, their objects, and the published state.
#[derive(Debug, Default)]
pub(crate) struct FileObjects {
    files: BTreeMap<Arc<Path>, FileEntry>,
    /// The files that define each object, the winner first. Nearly always there is one.
    claims: BTreeMap<Key, Vec<(FileClaim, Object)>>,
    duplicates: BTreeSet<Key>,
    touched: BTreeSet<Key>,
    published: BTreeMap<Key, Object>,
    published_problems: Vec<Problem>,
}

/// One file as last read.
#[derive(Debug, Default)]
struct FileEntry {
    /// `None` if the file could not be read.
    bytes: Option<FileVersion>,
    keys: Vec<Key>,
    problems: Vec<Problem>,
}

#[derive(Clone, Copy, Debug)]
struct FileVersion {
    stamp: FileStamp,
    hash: u128,
    read_at: SystemTime,
}

/// A definition of an object; the first in this order wins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FileClaim {
    /// The last valid version of a document that is now invalid. Any valid one wins.
    is_kept: bool,
    file: Arc<Path>,
    position: usize,
}

impl FileObjects {
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.keys().map(|path| &**path)
    }

    pub(crate) fn holds(&self, path: &Path) -> bool {
        self.files.contains_key(path)
    }

    pub(crate) fn published_count(&self) -> usize {
        self.published.len()
    }

    /// The hash of the file's content, if it could be read.
    pub(crate) fn hash(&self, path: &Path) -> Option<u128> {
        Some(self.files.get(path)?.bytes?.hash)
    }

    /// Whether a file with this stamp is certainly unchanged.
    pub(crate) fn is_current(&self, path: &Path, stamp: &FileStamp) -> bool {
        let Some(bytes) = self.files.get(path).and_then(|file| file.bytes) else { return false };
        let age = bytes.read_at.duration_since(bytes.stamp.modified).unwrap_or_default();
        bytes.stamp == *stamp && age >= COARSE_CLOCK
    }

    /// Records a new stamp for unchanged content.
    pub(crate) fn restamp(&mut self, path: &Path, stamp: FileStamp) {
        if let Some(bytes) = self.files.get_mut(path).and_then(|file| file.bytes.as_mut()) {
            *bytes = FileVersion { stamp, read_at: SystemTime::now(), ..*bytes };
        }
    }

    /// Whether this content lacks a known object or has an invalid one in its place.
    pub(crate) fn is_loss(&self, path: &Path, content: &ParsedFile) -> bool {
        let Some(file) = self.files.get(path) else { return content.is_empty };
        let good: HashSet<Key> = content.objects.iter().map(Object::key).collect();
        !file.keys.iter().all(|key| good.contains(key))
    }

    /// Replaces the content of a file, keeping the last valid version of objects that are now invalid.
    pub(crate) fn put(&mut self, path: &Path, mut content: ParsedFile) {
        let (path, before) = self.take(path);
        let good: BTreeSet<Key> = content.objects.iter().map(Object::key).collect();
        if content.is_empty && !before.is_empty() {
            // Left by a full disk or a crashed writer. To remove the objects, delete the file.
            let problem = whole_file(&path.to_string_lossy(), 0, "the file is empty");
            content.problems.push(problem.coded(ProblemCode::EmptyFile));
        }
        let invalid = ProblemSubjects::of_problems(&content.problems);
        let kept: Vec<(Key, Object)> =
            before.into_iter().filter(|(key, _)| !good.contains(key) && invalid.has_object(key)).collect();
        let kept_ones = ProblemSubjects::of_objects(kept.iter().map(|(key, _)| key));
        for problem in content.problems.iter_mut().filter(|problem| kept_ones.has_problem(problem)) {
            problem.message = format!("{}{KEEPING}", problem.message).into();
        }
        let fresh = content.objects.into_iter().map(|object| (object.key(), object, false));
        let objects = fresh.chain(kept.into_iter().map(|(key, object)| (key, object, true)));
        let keys = self.claim(&path, objects);
        let bytes = FileVersion { stamp: content.stamp, hash: content.hash, read_at: content.read_at };
        self.files.insert(path, FileEntry { bytes: Some(bytes), keys, problems: content.problems });
    }

    /// Records that a file cannot be read; its objects are kept.
    pub(crate) fn put_unreadable(&mut self, path: &Path, reason: &str) {
        let (path, before) = self.take(path);
        let keeping = if before.is_empty() { "" } else { KEEPING };
        let message = format!("could not read the file: {reason}{keeping}");
        let problems = vec![whole_file(&path.to_string_lossy(), 0, &message)];
        let keys = self.claim(&path, before.into_iter().map(|(key, object)| (key, object, true)));
        self.files.insert(path, FileEntry { bytes: None, keys, problems });
    }

    /// Removes a file and its objects.
    pub(crate) fn remove(&mut self, path: &Path) {
        self.take(path);
    }

    /// The changes since the last call. `more` are problems with the folder.
    pub(crate) fn changes(&mut self, more: Vec<Problem>) -> Vec<Change> {
        let mut changes = Vec::new();
        for key in std::mem::take(&mut self.touched) {
            self.settle(key, &mut changes);
        }
        let problems = self.problems(more);
        if problems != self.published_problems {
            self.published_problems.clone_from(&problems);
            changes.push(Change::Problems(problems));
        }
        changes
    }

    /// Makes the next `changes` contain everything, including deletions.
    pub(crate) fn publish_again(&mut self) {
        self.touched.extend(self.published.keys().chain(self.claims.keys()).cloned());
        self.published.retain(|key, _| !self.claims.contains_key(key));
        self.published_problems.clear();
    }

    /// Removes a file. Returns its path and the objects that were in use.
    fn take(&mut self, path: &Path) -> (Arc<Path>, Vec<(Key, Object)>) {
        let Some((path, volume)) = self.files.remove_entry(path) else { return (path.into(), Vec::new()) };
        let mut objects = Vec::new();
        let keys: BTreeSet<Key> = volume.keys.into_iter().collect();
        for key in keys {
            let Some(claims) = self.claims.get_mut(&key) else { continue };
            // Of duplicates in one file the first was in use.
            let own: Vec<Object> = claims.extract_if(.., |(claim, _)| claim.file == path).map(|(_, o)| o).collect();
            if claims.is_empty() {
                self.claims.remove(&key);
            }
            objects.extend(own.into_iter().next().map(|object| (key.clone(), object)));
            self.touched.insert(key);
        }
        (path, objects)
    }

    fn claim(&mut self, file: &Arc<Path>, objects: impl Iterator<Item = (Key, Object, bool)>) -> Vec<Key> {
        let mut keys = Vec::new();
        for (position, (key, object, is_kept)) in objects.enumerate() {
            let claim = FileClaim { is_kept, file: file.clone(), position };
            let claims = self.claims.entry(key.clone()).or_default();
            let at = claims.partition_point(|(known, _)| *known < claim);
            claims.reserve_exact(1);
            claims.insert(at, (claim, object));
            self.touched.insert(key.clone());
            keys.push(key);
        }
        keys
    }

    /// Finds the winner of one key and publishes it if its meaning changed.
    fn settle(&mut self, key: Key, changes: &mut Vec<Change>) {
        let claims = self.claims.get(&key);
        let is_duplicate = claims.is_some_and(|c| c.iter().filter(|(claim, _)| !claim.is_kept).count() > 1);
        match is_duplicate {
            true => self.duplicates.insert(key.clone()),
            false => self.duplicates.remove(&key),
        };
        match claims.and_then(|claims| claims.first()) {
            None => {
                if self.published.remove(&key).is_some() {
                    changes.push(Change::Deleted(key));
                }
            }
            Some((_, winner)) => {
                let before = self.published.insert(key, winner.clone());
                if !before.is_some_and(|before| before.means_the_same_as(winner)) {
                    changes.push(Change::Applied(winner.clone()));
                }
            }
        }
    }

    fn problems(&self, folder: Vec<Problem>) -> Vec<Problem> {
        let of_files = self.files.values().flat_map(|file| file.problems.iter().cloned());
        let duplicates = self.duplicates.iter().flat_map(|key| self.duplicate_problems(key));
        folder.into_iter().chain(of_files).chain(duplicates).collect()
    }

    /// One problem for each definition that lost.
    fn duplicate_problems<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = Problem> + 'a {
        let good = self.claims.get(key).into_iter().flatten().filter(|(claim, _)| !claim.is_kept);
        let mut locations = good.map(|(_, object)| object.meta.location.clone());
        let winner = locations.next().flatten().map_or_else(String::new, |location| location.to_string());
        locations.map(move |location| {
            let message = format!("the object is also defined at {winner}, which is used instead");
            Problem::error(key.clone(), message).coded(ProblemCode::DuplicateObject).at(location)
        })
    }
}
