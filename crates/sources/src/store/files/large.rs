//! Parses large files one at a time on a separate thread, the smallest first: small files do not wait for a file that
//! takes seconds, and two large files are never parsed in memory together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;

use super::read_file::{ParsedFile, RawFile};
use crate::file_watch::Waker;

/// Large files that are being parsed.
pub(super) struct LargeFileParser {
    shared: Arc<Mutex<ParserQueue>>,
    /// Wakes the scan when a file was parsed.
    waker: Waker,
}

#[derive(Default)]
struct ParserQueue {
    /// The newest content of files that wait. Content that is replaced before its turn is never parsed.
    waiting: BTreeMap<PathBuf, RawFile>,
    /// Hashes of the newest content of files that wait or are being parsed.
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
        !self.shared.lock().pending.is_empty()
    }

    /// Queues a file; replaces its older content in the queue.
    pub(super) fn put(&self, path: PathBuf, bytes: RawFile) {
        let mut shared = self.shared.lock();
        if shared.pending.get(&path) == Some(&bytes.hash) {
            return;
        }
        shared.pending.insert(path.clone(), bytes.hash);
        shared.waiting.insert(path, bytes);
        if !std::mem::replace(&mut shared.is_running, true) {
            let (own, waker) = (self.shared.clone(), self.waker.clone());
            let started = thread::Builder::new().name("parse".to_owned()).spawn(move || work(&own, &waker));
            // The next scan finds the file unread and queues it again.
            if started.is_err() {
                *shared = ParserQueue::default();
            }
        }
    }

    /// Removes a deleted file from the queue.
    pub(super) fn forget(&self, path: &Path) {
        let mut shared = self.shared.lock();
        shared.waiting.remove(path);
        shared.pending.remove(path);
    }

    /// Files parsed since the last call whose content is still the newest.
    pub(super) fn parsed(&self) -> Vec<(PathBuf, ParsedFile)> {
        let mut shared = self.shared.lock();
        let mut parsed = std::mem::take(&mut shared.parsed);
        parsed.retain(|(path, content)| shared.pending.get(path) == Some(&content.hash));
        for (path, _) in &parsed {
            shared.pending.remove(path);
        }
        parsed
    }
}

fn work(shared: &Mutex<ParserQueue>, waker: &Waker) {
    while let Some((path, bytes)) = next(shared) {
        // Parsing catches its own panics.
        let content = bytes.parsed(&path);
        shared.lock().parsed.push((path.clone(), content));
        waker.wake(path);
    }
}

/// The smallest waiting file; without one the thread ends.
fn next(shared: &Mutex<ParserQueue>) -> Option<(PathBuf, RawFile)> {
    let mut shared = shared.lock();
    let smallest = shared.waiting.iter().min_by_key(|(_, bytes)| bytes.bytes.len()).map(|(path, _)| path.clone());
    let next = smallest.and_then(|path| shared.waiting.remove_entry(&path));
    shared.is_running = next.is_some();
    next
}
