//! Large files are parsed one at a time on a thread of their own, the smallest first: files that are read in
//! milliseconds do not wait for one that takes seconds, and two large ones are never in memory as values together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::read_file::{ParsedFile, RawFile};
use crate::file_watch::Waker;

/// Files of more bytes are large: a smaller one is parsed in a fraction of a second.
pub(super) const LARGE: usize = 1 << 20;

/// Large files that are being parsed.
pub(super) struct LargeFileParser {
    shared: Arc<Mutex<ParserQueue>>,
    /// Tells that a file was parsed.
    waker: Waker,
}

#[derive(Default)]
struct ParserQueue {
    /// The newest bytes of files that wait. Bytes that are replaced before their turn are never parsed.
    waiting: BTreeMap<PathBuf, RawFile>,
    /// Hashes of the newest bytes of files that wait or are being parsed.
    pending: BTreeMap<PathBuf, u128>,
    parsed: Vec<(PathBuf, ParsedFile)>,
    is_running: bool,
}

impl LargeFileParser {
    pub(super) fn new(waker: Waker) -> LargeFileParser {
        LargeFileParser { shared: Arc::default(), waker }
    }

    /// Whether any file is not parsed yet.
    pub(super) fn is_busy(&self) -> bool {
        !self.lock().pending.is_empty()
    }

    /// Has a file parsed; what was to be parsed of it before is dropped.
    pub(super) fn put(&self, path: PathBuf, bytes: RawFile) {
        let mut shared = self.lock();
        if shared.pending.get(&path) == Some(&bytes.hash) {
            return;
        }
        shared.pending.insert(path.clone(), bytes.hash);
        shared.waiting.insert(path, bytes);
        if !std::mem::replace(&mut shared.is_running, true) {
            let (own, waker) = (self.shared.clone(), self.waker.clone());
            let started = thread::Builder::new().name("parse".to_owned()).spawn(move || work(&own, &waker));
            // Tried again with the next look at the folder, which finds the file unread.
            if started.is_err() {
                *shared = ParserQueue::default();
            }
        }
    }

    /// Forgets a file that is gone.
    pub(super) fn forget(&self, path: &Path) {
        let mut shared = self.lock();
        shared.waiting.remove(path);
        shared.pending.remove(path);
    }

    /// Files that were parsed since the last call and are still of interest.
    pub(super) fn parsed(&self) -> Vec<(PathBuf, ParsedFile)> {
        let mut shared = self.lock();
        let mut parsed = std::mem::take(&mut shared.parsed);
        parsed.retain(|(path, content)| shared.pending.get(path) == Some(&content.hash));
        for (path, _) in &parsed {
            shared.pending.remove(path);
        }
        parsed
    }

    fn lock(&self) -> MutexGuard<'_, ParserQueue> {
        lock(&self.shared)
    }
}

fn lock(shared: &Mutex<ParserQueue>) -> MutexGuard<'_, ParserQueue> {
    // Every write is one call on a collection, which leaves it whole.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn work(shared: &Mutex<ParserQueue>, waker: &Waker) {
    while let Some((path, bytes)) = next(shared) {
        // Parsing catches its own panics.
        let content = bytes.parsed(&path);
        lock(shared).parsed.push((path.clone(), content));
        waker.wake(path);
    }
}

/// The smallest file that waits; without one the thread ends.
fn next(shared: &Mutex<ParserQueue>) -> Option<(PathBuf, RawFile)> {
    let mut shared = lock(shared);
    let smallest = shared.waiting.iter().min_by_key(|(_, bytes)| bytes.bytes.len()).map(|(path, _)| path.clone());
    let next = smallest.and_then(|path| shared.waiting.remove_entry(&path));
    shared.is_running = next.is_some();
    next
}
