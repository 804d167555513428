//! The files of one stream's secrets, read again while Envoy wants them. Reading is done on threads that may be lost:
//! a file on a dead mount stops nothing but itself. A file that vanished or holds no PEM leaves the last good content
//! in use.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::content::{belong_together, is_pem};
use super::names::SecretSource;
use crate::file_secrets::access::{FileAccess, FileStamp};

/// How often files are looked at. Certificates are replaced long before the old ones end.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// How long a file may take before the others are served without it.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Files that are read at once, of all streams. Those that never end count until the agent does.
const MAX_READS: usize = 16;

/// What is kept of files, of all streams. Files are small, and each is kept again for every name that it has.
const MAX_BYTES: usize = 32 << 20;

/// Good contents by path.
pub(super) type FileContents = BTreeMap<PathBuf, Bytes>;

type ReadOutcome = Result<Option<(Bytes, FileStamp)>, String>;

/// Reads files for all streams.
#[derive(Debug)]
pub(super) struct SecretReader {
    access: FileAccess,
    reads: Arc<Semaphore>,
    kept: AtomicUsize,
}

impl SecretReader {
    pub(super) fn new(access: FileAccess) -> SecretReader {
        SecretReader { access, reads: Arc::new(Semaphore::new(MAX_READS)), kept: AtomicUsize::new(0) }
    }

    /// Begins to read on a thread of its own. Fails where too many reads have not ended.
    async fn begin(&self, path: PathBuf, last: Option<FileStamp>) -> Result<JoinHandle<ReadOutcome>, String> {
        let permit = timeout(READ_TIMEOUT, Arc::clone(&self.reads).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else { return Err(format!("{MAX_READS} other files are still being read")) };
        let access = self.access.clone();
        Ok(tokio::task::spawn_blocking(move || {
            let outcome = access.look(&path, last);
            drop(permit);
            outcome
        }))
    }

    /// Accounts for a content that takes the place of another.
    fn replace(&self, old: usize, new: usize) -> Result<(), String> {
        let fits = |kept: usize| Some(kept - old + new).filter(|total| *total <= MAX_BYTES);
        let replaced = self.kept.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        replaced.map(|_| ()).map_err(|_| format!("all files together would be larger than {MAX_BYTES} bytes"))
    }
}

/// Publishes the contents of the files of `wanted`, and their changes, until that ends.
pub(super) async fn follow(
    mut wanted: watch::Receiver<Vec<SecretSource>>,
    contents: watch::Sender<FileContents>,
    reader: Arc<SecretReader>,
) {
    let mut files =
        SecretFiles { reader, good: BTreeMap::new(), reading: BTreeMap::new(), complaints: BTreeMap::new() };
    loop {
        let secrets = wanted.borrow_and_update().clone();
        files.forget_others(&secrets);
        if files.read(&secrets).await {
            contents.send_replace(files.good.iter().map(|(path, (text, _))| (path.clone(), text.clone())).collect());
        }
        let has_files = secrets.iter().any(|secret| !secret.files().is_empty());
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() {
                return;
            },
            () = sleep(POLL_INTERVAL), if has_files => {}
        }
    }
}

struct SecretFiles {
    reader: Arc<SecretReader>,
    good: BTreeMap<PathBuf, (Bytes, FileStamp)>,
    /// Reads that took too long and may still end.
    reading: BTreeMap<PathBuf, JoinHandle<ReadOutcome>>,
    /// What was logged of each file, so that it is done once.
    complaints: BTreeMap<PathBuf, String>,
}

impl SecretFiles {
    /// Reads the files of these secrets; true when the content of one is new. A pair changes as a whole: while
    /// its key does not match its certificate, which is seen between two writes, the old pair stays.
    async fn read(&mut self, secrets: &[SecretSource]) -> bool {
        let mut changed = false;
        for secret in secrets {
            let mut read = Vec::new();
            for file in secret.files() {
                match self.look(file).await {
                    Some(found) => read.push((file.clone(), found)),
                    None => break,
                }
            }
            if read.len() < secret.files().len() {
                continue;
            }
            let is_new = |(file, found): &(PathBuf, (Bytes, FileStamp))| {
                self.good.get(file).map(|good| &good.0) != Some(&found.0)
            };
            let texts: Vec<&Bytes> = read.iter().map(|(_, (text, _))| text).collect();
            if !read.iter().any(is_new) {
                self.good.extend(read);
            } else if belong_together(&texts) {
                changed |= self.store(read);
            }
        }
        changed
    }

    /// The PEM text of a file; None when there is none.
    async fn look(&mut self, file: &PathBuf) -> Option<(Bytes, FileStamp)> {
        let outcome = match self.outcome(file).await {
            Ok(Some((text, _))) if !is_pem(&text) => Err("it holds no PEM".to_owned()),
            Ok(None) => Ok(self.good.get(file).cloned()),
            other => other,
        };
        match outcome {
            Ok(found) => {
                self.complaints.remove(file);
                found
            }
            Err(reason) => {
                self.complain(file, reason);
                None
            }
        }
    }

    async fn outcome(&mut self, file: &PathBuf) -> ReadOutcome {
        let begun = match self.reading.remove(file) {
            // It took too long before, so it is not waited for.
            Some(reading) if !reading.is_finished() => {
                self.reading.insert(file.clone(), reading);
                return Err(too_slow());
            }
            Some(reading) => Ok(reading),
            None => self.reader.begin(file.clone(), self.good.get(file).map(|good| good.1)).await,
        };
        let mut reading = begun?;
        match timeout(READ_TIMEOUT, &mut reading).await {
            Ok(outcome) => outcome.unwrap_or_else(|error| Err(error.to_string())),
            Err(_) => {
                self.reading.insert(file.clone(), reading);
                Err(too_slow())
            }
        }
    }

    fn store(&mut self, read: Vec<(PathBuf, (Bytes, FileStamp))>) -> bool {
        for (file, (text, mark)) in read {
            let old = self.good.get(&file).map_or(0, |(text, _)| text.len());
            match self.reader.replace(old, text.len()) {
                Ok(()) => {
                    self.good.insert(file, (text, mark));
                }
                Err(reason) => {
                    self.complain(&file, reason);
                    return false;
                }
            }
        }
        true
    }

    fn complain(&mut self, file: &PathBuf, reason: String) {
        if self.complaints.get(file) != Some(&reason) {
            warn!(file = %file.display(), %reason, "could not use a secret's file; its last good content stays");
            self.complaints.insert(file.clone(), reason);
        }
    }

    /// Lets go of files that no secret has any more.
    fn forget_others(&mut self, secrets: &[SecretSource]) {
        let is_wanted = |path: &PathBuf| secrets.iter().any(|secret| secret.files().contains(&path));
        let before = self.bytes();
        self.good.retain(|path, _| is_wanted(path));
        self.reading.retain(|path, _| is_wanted(path));
        self.complaints.retain(|path, _| is_wanted(path));
        self.reader.kept.fetch_sub(before - self.bytes(), Ordering::Relaxed);
    }

    fn bytes(&self) -> usize {
        self.good.values().map(|(text, _)| text.len()).sum()
    }
}

impl Drop for SecretFiles {
    fn drop(&mut self) {
        self.reader.kept.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

fn too_slow() -> String {
    format!("it could not be read in {READ_TIMEOUT:?}")
}
