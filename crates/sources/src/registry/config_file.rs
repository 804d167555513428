//! Follows the file of `--registryConfig` and runs the registries that it describes. A changed entry restarts its
//! registry; the old services are kept until the new source is in sync. A removed entry deletes its services. A file
//! that cannot be used changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

use model::change::{Batch, Change, SourceId};
use model::conflict::ConflictSettings;
use model::names::{ClusterId, Str};
use model::problem::{FileLocation, Problem, ProblemCode, Subject};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::registry::config::{RegistryConfig, RegistryConfigError, RegistryEntry};
use crate::registry::published_keys::{PublishedKeys, forward};
use crate::source::{ChangeSender, Source, SourceError};
use crate::source_set::{SourceSet, StartupWait};
use crate::watched_file::{FileState, WatchedFile};

/// All registries of a file.
pub struct RegistryConfigFile {
    file: WatchedFile,
    config: RegistryConfig,
    /// The file's content when it was last parsed.
    bytes: Option<Vec<u8>>,
    source_set: SourceSet,
    cluster: ClusterId,
    /// Sources that flags describe; the file cannot use their names.
    reserved: BTreeSet<SourceId>,
    /// Config stores in their order of precedence; they are no part of the file.
    stores: Vec<Str>,
    running: BTreeMap<SourceId, RunningRegistry>,
    is_started: bool,
}

/// A registry whose source runs.
struct RunningRegistry {
    entry: RegistryEntry,
    stop: CancellationToken,
    forwarding: JoinHandle<PublishedKeys>,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
enum ConfigFileError {
    #[error("the file does not exist")]
    Absent,
    #[error("could not read the file: {0}")]
    Unreadable(String),
    #[error("could not parse the file: not UTF-8")]
    NotUtf8,
    #[error("the file is empty: write `registries: []` for no registries")]
    Empty,
    #[error("could not use the file: {0}")]
    Invalid(#[from] RegistryConfigError),
    #[error("could not use the file: flags describe {0} too, give this one a name")]
    Reserved(Str),
}

impl RegistryConfigFile {
    /// A file whose content was parsed to `config` at startup.
    pub fn new(file: &Path, config: RegistryConfig, cluster: ClusterId, source_set: SourceSet) -> RegistryConfigFile {
        RegistryConfigFile {
            file: WatchedFile::new(file),
            config,
            bytes: None,
            source_set,
            cluster,
            reserved: BTreeSet::new(),
            stores: Vec::new(),
            running: BTreeMap::new(),
            is_started: false,
        }
    }

    /// Reserves the names of sources that the file does not describe.
    #[must_use]
    pub fn with_reserved(self, reserved: BTreeSet<SourceId>) -> RegistryConfigFile {
        RegistryConfigFile { reserved, ..self }
    }

    /// Config stores, in their order of precedence.
    #[must_use]
    pub fn with_stores(self, stores: Vec<Str>) -> RegistryConfigFile {
        RegistryConfigFile { stores, ..self }
    }

    /// Starts, restarts and stops registries so that exactly those of the config run.
    async fn reconcile(&mut self, sender: &ChangeSender) -> Result<(), SourceError> {
        let described: BTreeMap<SourceId, RegistryEntry> =
            self.config.registries.iter().map(|entry| (entry.id(), entry.clone())).collect();
        let gone: Vec<SourceId> = self.running.keys().filter(|id| !described.contains_key(*id)).cloned().collect();
        for id in gone {
            self.remove(&id, sender).await?;
        }
        for (id, entry) in described {
            if self.running.get(&id).is_some_and(|running| running.entry == entry) {
                continue;
            }
            let before = self.running.remove(&id);
            let wait = match (&before, self.is_started) {
                (None, true) => StartupWait::Never,
                _ if entry.required => StartupWait::Always,
                _ => StartupWait::Until(Instant::now() + entry.startup_deadline),
            };
            let published = match before {
                Some(before) => before.stopped().await,
                None => PublishedKeys::default(),
            };
            info!(registry = &*id.0, "registry added or changed");
            let started = self.start(entry, wait, published, sender);
            self.running.insert(id, started);
        }
        self.is_started = true;
        Ok(())
    }

    fn start(
        &self,
        entry: RegistryEntry,
        wait: StartupWait,
        published: PublishedKeys,
        sender: &ChangeSender,
    ) -> RunningRegistry {
        let (batches, end) = sender.shared();
        let stop = end.child_token();
        let (inbox_sender, inbox) = mpsc::channel(16);
        let task = entry.options.start(entry.place(&self.cluster), inbox_sender, stop.clone());
        self.source_set.insert(entry.id(), task.health.clone(), wait);
        RunningRegistry { entry, stop, forwarding: tokio::spawn(forward(inbox, batches, published)) }
    }

    /// Stops a registry and deletes what it has published.
    async fn remove(&mut self, id: &SourceId, sender: &ChangeSender) -> Result<(), SourceError> {
        let Some(running) = self.running.remove(id) else { return Ok(()) };
        let published = running.stopped().await;
        info!(registry = &*id.0, services = published.services.len(), "registry removed");
        self.source_set.remove(id);
        let mut changes = published.deletions();
        changes.push(Change::Problems(Vec::new()));
        let (batches, _) = sender.shared();
        batches.send(Batch { source: id.clone(), changes }).await.map_err(|_| SourceError::Closed)
    }

    /// The config of the file. `None` where it may still be written and should be read again soon.
    fn read(&mut self, state: FileState) -> Option<Result<RegistryConfig, ConfigFileError>> {
        let (bytes, is_young) = match state {
            FileState::Unsettled => return None,
            FileState::Absent => return Some(Err(ConfigFileError::Absent)),
            FileState::Unreadable(reason) => return Some(Err(ConfigFileError::Unreadable(reason))),
            FileState::Bytes { bytes, is_young } => (bytes, is_young),
        };
        if self.bytes.as_ref() == Some(&bytes) {
            return Some(Ok(self.config.clone()));
        }
        let parsed = self.parse(&bytes);
        if parsed.is_err() && is_young {
            return None;
        }
        if parsed.is_ok() {
            self.bytes = Some(bytes);
        }
        Some(parsed)
    }

    fn parse(&self, bytes: &[u8]) -> Result<RegistryConfig, ConfigFileError> {
        let text = std::str::from_utf8(bytes).map_err(|_| ConfigFileError::NotUtf8)?;
        if text.trim().is_empty() {
            return Err(ConfigFileError::Empty);
        }
        let config = RegistryConfig::parse(text)?;
        match config.registries.iter().map(RegistryEntry::id).find(|id| self.reserved.contains(id)) {
            Some(taken) => Err(ConfigFileError::Reserved(taken.0)),
            None => Ok(config),
        }
    }

    /// The conflict rules of the file, and its error if it cannot be used.
    fn changes(&self, error: Option<&str>) -> Vec<Change> {
        let conflicts = ConflictSettings { stores: self.stores.clone(), ..self.config.conflicts() };
        let problem = |error: &str| {
            let location = FileLocation { file: self.file.name().into(), line: 0 };
            let message = format!("{error}; the registries are watched as before");
            Problem::error(Subject::File(location.file.clone()), message).coded(ProblemCode::Setting).at(Some(location))
        };
        vec![Change::ConflictSettings(Box::new(conflicts)), Change::Problems(error.map(problem).into_iter().collect())]
    }
}

impl Source for RegistryConfigFile {
    fn id(&self) -> SourceId {
        SourceId("registryConfig".into())
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        self.reconcile(&sender).await?;
        sender.send(vec![Change::Synced]).await?;
        let mut sent = None;
        loop {
            let state = self.file.read(sender.health()).await?;
            let read = self.read(state);
            let was_read = read.is_some();
            if let Some(read) = read {
                let error = match read {
                    Ok(config) => {
                        self.config = config;
                        self.reconcile(&sender).await?;
                        None
                    }
                    Err(error) => Some(error.to_string()),
                };
                let now = (self.config.conflicts(), error);
                if sent.as_ref() != Some(&now) {
                    sender.send(self.changes(now.1.as_deref())).await?;
                    sent = Some(now);
                }
            }
            self.file.changed(was_read).await;
        }
    }
}

impl RunningRegistry {
    /// Stops it and returns what it has published, all of which was forwarded.
    async fn stopped(self) -> PublishedKeys {
        self.stop.cancel();
        // The task is neither aborted nor does it panic.
        self.forwarding.await.unwrap_or_default()
    }
}
