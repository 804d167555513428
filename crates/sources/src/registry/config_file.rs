//! The registries of the file of `--registryConfig` while the process runs: an entry that is added is watched, one
//! that is changed is watched anew and keeps what was told until the new one is in sync, one that is removed takes
//! back what it told. A file that cannot be used changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

use model::change::{Batch, Change, SourceId};
use model::config::Key;
use model::conflict::ConflictSettings;
use model::names::{ClusterId, ServiceKey, Str};
use model::problem::{FileLocation, Problem, Subject};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::cloudfoundry::CloudFoundryRegistry;
use super::config::{Adapter, RegistryConfig, RegistryEntry};
use super::consul::ConsulRegistry;
use super::dns::DnsRegistry;
use super::eureka::EurekaRegistry;
use crate::source::{ChangeSender, Source, SourceError, SourceTask, spawn};
use crate::source_set::{SourceSet, StartupWait};
use crate::watched_file::{FileState, WatchedFile};

const KEEPING: &str = "; the registries are watched as before";

/// What a registry told that is still there.
#[derive(Clone, Debug, Default)]
struct PublishedKeys {
    services: BTreeSet<ServiceKey>,
    objects: BTreeSet<Key>,
}

/// All registries of a file.
pub struct RegistryConfigFile {
    file: WatchedFile,
    config: RegistryConfig,
    /// The bytes that were looked at last.
    bytes: Option<Vec<u8>>,
    source_set: SourceSet,
    cluster: ClusterId,
    /// Sources that are not of the file, whose names cannot be used in it.
    others: BTreeSet<SourceId>,
    /// RegistryConfig stores in their order, which is no part of the file.
    stores: Vec<Str>,
    watched: BTreeMap<SourceId, RunningRegistry>,
    is_begun: bool,
}

/// One registry at work.
struct RunningRegistry {
    entry: RegistryEntry,
    stop: CancellationToken,
    forwarding: JoinHandle<PublishedKeys>,
}

/// Starts what watches a registry.
pub fn watch(
    entry: &RegistryEntry,
    cluster: &ClusterId,
    batches: mpsc::Sender<Batch>,
    end: CancellationToken,
) -> Result<SourceTask, String> {
    let (id, cluster, guard) = (entry.id()?, cluster.clone(), entry.guard());
    Ok(match entry.adapter()? {
        Adapter::Consul(options) => spawn(ConsulRegistry::new(id, options, cluster, guard), batches, end),
        Adapter::Eureka(options) => spawn(EurekaRegistry::new(id, options, cluster, guard), batches, end),
        Adapter::CloudFoundry(options) => spawn(CloudFoundryRegistry::new(id, options, cluster, guard), batches, end),
        Adapter::Dns(options) => spawn(DnsRegistry::new(id, options, cluster, guard), batches, end),
    })
}

impl RegistryConfigFile {
    /// The file with what it said at the start.
    pub fn new(file: &Path, config: RegistryConfig, cluster: ClusterId, source_set: SourceSet) -> RegistryConfigFile {
        RegistryConfigFile {
            file: WatchedFile::new(file),
            config,
            bytes: None,
            source_set,
            cluster,
            others: BTreeSet::new(),
            stores: Vec::new(),
            watched: BTreeMap::new(),
            is_begun: false,
        }
    }

    /// Names that the file cannot use, because other sources have them.
    #[must_use]
    pub fn beside(self, others: BTreeSet<SourceId>) -> RegistryConfigFile {
        RegistryConfigFile { others, ..self }
    }

    /// RegistryConfig stores in the order in which they were given.
    #[must_use]
    pub fn with_stores(self, stores: Vec<Str>) -> RegistryConfigFile {
        RegistryConfigFile { stores, ..self }
    }

    /// Watches what the config describes and nothing else.
    async fn follow(&mut self, sender: &ChangeSender) -> Result<(), SourceError> {
        let mut wanted = BTreeMap::new();
        for entry in &self.config.registries {
            // The file was checked: every entry has a name and a kind.
            wanted.insert(entry.id().map_err(SourceError::Failed)?, entry.clone());
        }
        let gone: Vec<SourceId> = self.watched.keys().filter(|id| !wanted.contains_key(*id)).cloned().collect();
        for id in gone {
            self.remove(&id, sender).await?;
        }
        for (id, entry) in wanted {
            if self.watched.get(&id).is_some_and(|watched| watched.entry == entry) {
                continue;
            }
            let known = self.watched.remove(&id);
            let awaited = match (&known, self.is_begun) {
                (None, true) => StartupWait::Never,
                _ if entry.required => StartupWait::Always,
                _ => StartupWait::Until(Instant::now() + entry.startup_deadline.0),
            };
            let told = match known {
                Some(known) => known.stopped().await,
                None => PublishedKeys::default(),
            };
            info!(registry = &*id.0, "registry added or changed");
            let started = self.start(entry, awaited, told, sender).map_err(SourceError::Failed)?;
            self.watched.insert(id, started);
        }
        self.is_begun = true;
        Ok(())
    }

    fn start(
        &self,
        entry: RegistryEntry,
        awaited: StartupWait,
        told: PublishedKeys,
        sender: &ChangeSender,
    ) -> Result<RunningRegistry, String> {
        let (batches, end) = sender.shared();
        let stop = end.child_token();
        let (sender, inbox) = mpsc::channel(16);
        let running = watch(&entry, &self.cluster, sender, stop.clone())?;
        self.source_set.insert(entry.id()?, running.health.clone(), awaited);
        Ok(RunningRegistry { entry, stop, forwarding: tokio::spawn(forward(inbox, batches, told)) })
    }

    /// Ends a registry and takes back what it told, at once.
    async fn remove(&mut self, id: &SourceId, sender: &ChangeSender) -> Result<(), SourceError> {
        let Some(watched) = self.watched.remove(id) else { return Ok(()) };
        let told = watched.stopped().await;
        info!(registry = &*id.0, services = told.services.len(), "registry removed");
        self.source_set.remove(id);
        let mut changes = told.taken_back();
        changes.push(Change::Problems(Vec::new()));
        let (batches, _) = sender.shared();
        batches.send(Batch { source: id.clone(), changes }).await.map_err(|_| SourceError::Closed)
    }

    /// What is new in the file; an error where it cannot be used. `None` where it should be looked at again.
    fn read(&mut self, state: FileState) -> Option<Result<RegistryConfig, String>> {
        let (bytes, is_young) = match state {
            FileState::Unsettled => return None,
            FileState::Absent => return Some(Err("the file is gone".to_owned())),
            FileState::Unreadable(reason) => return Some(Err(format!("could not read the file: {reason}"))),
            FileState::Bytes { bytes, is_young } => (bytes, is_young),
        };
        if self.bytes.as_ref() == Some(&bytes) {
            return Some(Ok(self.config.clone()));
        }
        let read = self.parsed(&bytes);
        if read.is_err() && is_young {
            return None;
        }
        if read.is_ok() {
            self.bytes = Some(bytes);
        }
        Some(read)
    }

    fn parsed(&self, bytes: &[u8]) -> Result<RegistryConfig, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "could not parse the file: not UTF-8".to_owned())?;
        if text.trim().is_empty() {
            return Err("the file is empty: no registry at all is `registries: []`".to_owned());
        }
        let config = RegistryConfig::parse(text).map_err(|reason| format!("could not use the file: {reason}"))?;
        let mut ids = config.registries.iter().filter_map(|entry| entry.id().ok());
        match ids.find(|id| self.others.contains(id)) {
            Some(taken) => {
                Err(format!("could not use the file: {} is watched by flags, give this one a name", taken.0))
            }
            None => Ok(config),
        }
    }

    /// What holds between the registries, and what is wrong with the file.
    fn said(&self, fault: Option<String>) -> Vec<Change> {
        let conflicts = ConflictSettings { stores: self.stores.clone(), ..self.config.conflicts() };
        let problem = |reason: String| {
            let location = FileLocation { file: self.file.name().into(), line: 0 };
            Problem::error(Subject::File(location.file.clone()), format!("{reason}{KEEPING}")).at(Some(location))
        };
        vec![Change::ConflictSettings(Box::new(conflicts)), Change::Problems(fault.map(problem).into_iter().collect())]
    }
}

impl Source for RegistryConfigFile {
    fn id(&self) -> SourceId {
        SourceId("registryConfig".into())
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        self.follow(&sender).await?;
        sender.send(vec![Change::Synced]).await?;
        let mut told = None;
        loop {
            let state = self.file.read(sender.health()).await?;
            let read = self.read(state);
            let was_taken_in = read.is_some();
            if let Some(read) = read {
                let fault = match read {
                    Ok(config) => {
                        self.config = config;
                        self.follow(&sender).await?;
                        None
                    }
                    Err(reason) => Some(reason),
                };
                let now = (self.config.conflicts(), fault.clone());
                if told.as_ref() != Some(&now) {
                    sender.send(self.said(fault)).await?;
                    told = Some(now);
                }
            }
            self.file.changed(was_taken_in).await;
        }
    }
}

impl RunningRegistry {
    /// Ends it; gives what it told, all of which has been passed on.
    async fn stopped(self) -> PublishedKeys {
        self.stop.cancel();
        // The task is not aborted and does not panic: what it gives is all that was told.
        self.forwarding.await.unwrap_or_default()
    }
}

impl PublishedKeys {
    /// Notes one change.
    fn note(&mut self, change: &Change) {
        match change {
            Change::ServiceApplied(service) => _ = self.services.insert(service.key()),
            Change::ServiceDeleted(key) => _ = self.services.remove(key),
            Change::Applied(object) => _ = self.objects.insert(object.key()),
            Change::Deleted(key) => _ = self.objects.remove(key),
            _ => {}
        }
    }

    /// What the other told and this one did not.
    fn missing_from(&self, other: &PublishedKeys) -> PublishedKeys {
        PublishedKeys {
            services: other.services.difference(&self.services).cloned().collect(),
            objects: other.objects.difference(&self.objects).cloned().collect(),
        }
    }

    fn taken_back(self) -> Vec<Change> {
        let both = |key: ServiceKey| [Change::Endpoints(key.clone(), Vec::new()), Change::ServiceDeleted(key)];
        let services = self.services.into_iter().flat_map(both);
        services.chain(self.objects.into_iter().map(Change::Deleted)).collect()
    }
}

/// Passes on what a registry tells and remembers it. What one before it told under the same name is taken back when
/// this one is in sync and has not told it.
async fn forward(
    mut inbox: mpsc::Receiver<Batch>,
    batches: mpsc::Sender<Batch>,
    before: PublishedKeys,
) -> PublishedKeys {
    let (mut before, mut told) = (Some(before), PublishedKeys::default());
    while let Some(mut batch) = inbox.recv().await {
        batch.changes.iter().for_each(|change| told.note(change));
        if batch.changes.iter().any(|change| matches!(change, Change::Synced)) {
            let old = before.take().map(|before| told.missing_from(&before)).unwrap_or_default();
            batch.changes.splice(0..0, old.taken_back());
        }
        if batches.send(batch).await.is_err() {
            break;
        }
    }
    // One that never was in sync leaves what was there.
    let PublishedKeys { services, objects } = before.unwrap_or_default();
    told.services.extend(services);
    told.objects.extend(objects);
    told
}
