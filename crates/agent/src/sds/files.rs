//! Polls the files of one SDS stream's secrets. Files are read on blocking threads, so a file on a dead mount delays only
//! itself. If a file disappears or contains no PEM, the last good content stays in use.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::content::{FileContents, belong_together, is_pem};
use super::names::SecretSource;
use crate::file_secrets::access::{AccessError, FileAccess, FileStamp};

/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// How long to wait for one file before the others are served without it.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum concurrent reads of all streams. A read that never ends counts forever.
const MAX_READS: usize = 16;

/// Maximum size of all cached files of all streams. A file counts once per secret name.
const MAX_BYTES: usize = 32 << 20;

/// Why the content of a file is not used.
#[derive(Debug, Error)]
enum ReadError {
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("the file contains no PEM block")]
    NoPem,
    #[error("the file could not be read within {READ_TIMEOUT:?}")]
    Timeout,
    #[error("{MAX_READS} other files are still being read")]
    TooManyReads,
    #[error("all files together would exceed {MAX_BYTES} bytes")]
    CacheFull,
    #[error("the reading thread failed: {0}")]
    Thread(#[from] JoinError),
}

type ReadOutcome = Result<Option<(Bytes, FileStamp)>, ReadError>;

/// Reads files for all streams.
#[derive(Debug)]
pub(super) struct SecretReader {
    access: FileAccess,
    reads: Arc<Semaphore>,
    cached: AtomicUsize,
}

impl SecretReader {
    pub(super) fn new(access: FileAccess) -> SecretReader {
        SecretReader { access, reads: Arc::new(Semaphore::new(MAX_READS)), cached: AtomicUsize::new(0) }
    }

    /// Starts a read on a blocking thread. Fails if too many reads are pending.
    async fn start(&self, path: PathBuf, last: Option<FileStamp>) -> Result<JoinHandle<ReadOutcome>, ReadError> {
        let permit = timeout(READ_TIMEOUT, Arc::clone(&self.reads).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else { return Err(ReadError::TooManyReads) };
        let access = self.access.clone();
        Ok(tokio::task::spawn_blocking(move || {
            let outcome = access.read(&path, last).map_err(ReadError::from);
            drop(permit);
            outcome
        }))
    }

    /// Reserves memory for a content that replaces another.
    fn replace(&self, old: usize, new: usize) -> Result<(), ReadError> {
        let fits = |cached: usize| Some(cached - old + new).filter(|total| *total <= MAX_BYTES);
        let replaced = self.cached.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        replaced.map(|_| ()).map_err(|_| ReadError::CacheFull)
    }
}

/// Publishes the files of the subscribed secrets, and their changes, until the stream ends.
pub(super) async fn poll_files(
    mut secrets_watch: watch::Receiver<Vec<SecretSource>>,
    contents: watch::Sender<FileContents>,
    reader: Arc<SecretReader>,
) {
    let mut files = SecretFiles { reader, good: BTreeMap::new(), reading: BTreeMap::new(), logged: BTreeMap::new() };
    loop {
        let secrets = secrets_watch.borrow_and_update().clone();
        files.retain(&secrets);
        if files.read(&secrets).await {
            contents.send_replace(files.good.iter().map(|(path, (text, _))| (path.clone(), text.clone())).collect());
        }
        let has_files = secrets.iter().any(|secret| !secret.files().is_empty());
        tokio::select! {
            changed = secrets_watch.changed() => if changed.is_err() {
                return;
            },
            () = sleep(POLL_INTERVAL), if has_files => {}
        }
    }
}

struct SecretFiles {
    reader: Arc<SecretReader>,
    good: BTreeMap<PathBuf, (Bytes, FileStamp)>,
    /// Reads that exceeded the timeout and are still running.
    reading: BTreeMap<PathBuf, JoinHandle<ReadOutcome>>,
    /// The last logged error of each file, so that it is logged once.
    logged: BTreeMap<PathBuf, String>,
}

impl SecretFiles {
    /// Reads the files of these secrets; true if any content changed. A certificate and its key change together: while
    /// they do not match, which happens between two writes, the old pair stays.
    async fn read(&mut self, secrets: &[SecretSource]) -> bool {
        let mut changed = false;
        for secret in secrets {
            let mut read = Vec::new();
            for file in secret.files() {
                match self.read_pem(file).await {
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

    /// The PEM content of a file; `None` if it is not available.
    async fn read_pem(&mut self, file: &PathBuf) -> Option<(Bytes, FileStamp)> {
        let outcome = match self.outcome(file).await {
            Ok(Some((text, _))) if !is_pem(&text) => Err(ReadError::NoPem),
            Ok(None) => Ok(self.good.get(file).cloned()),
            other => other,
        };
        match outcome {
            Ok(found) => {
                self.logged.remove(file);
                found
            }
            Err(error) => {
                self.log_once(file, &error);
                None
            }
        }
    }

    async fn outcome(&mut self, file: &PathBuf) -> ReadOutcome {
        let started = match self.reading.remove(file) {
            // It exceeded the timeout before, so do not wait again.
            Some(reading) if !reading.is_finished() => {
                self.reading.insert(file.clone(), reading);
                return Err(ReadError::Timeout);
            }
            Some(reading) => Ok(reading),
            None => self.reader.start(file.clone(), self.good.get(file).map(|good| good.1)).await,
        };
        let mut reading = started?;
        match timeout(READ_TIMEOUT, &mut reading).await {
            Ok(outcome) => outcome.unwrap_or_else(|error| Err(error.into())),
            Err(_) => {
                self.reading.insert(file.clone(), reading);
                Err(ReadError::Timeout)
            }
        }
    }

    fn store(&mut self, read: Vec<(PathBuf, (Bytes, FileStamp))>) -> bool {
        for (file, (text, stamp)) in read {
            let old = self.good.get(&file).map_or(0, |(text, _)| text.len());
            match self.reader.replace(old, text.len()) {
                Ok(()) => {
                    self.good.insert(file, (text, stamp));
                }
                Err(error) => {
                    self.log_once(&file, &error);
                    return false;
                }
            }
        }
        true
    }

    fn log_once(&mut self, file: &PathBuf, error: &ReadError) {
        let reason = error.to_string();
        if self.logged.get(file) != Some(&reason) {
            warn!(file = %file.display(), %reason, "could not use a secret's file; keeping its last good content");
            self.logged.insert(file.clone(), reason);
        }
    }

    /// Drops files that no subscribed secret uses.
    fn retain(&mut self, secrets: &[SecretSource]) {
        let is_used = |path: &PathBuf| secrets.iter().any(|secret| secret.files().contains(&path));
        let before = self.bytes();
        self.good.retain(|path, _| is_used(path));
        self.reading.retain(|path, _| is_used(path));
        self.logged.retain(|path, _| is_used(path));
        self.reader.cached.fetch_sub(before - self.bytes(), Ordering::Relaxed);
    }

    fn bytes(&self) -> usize {
        self.good.values().map(|(text, _)| text.len()).sum()
    }
}

impl Drop for SecretFiles {
    fn drop(&mut self) {
        self.reader.cached.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}
