//! Where WorkloadEntries of registered workloads are written: to the API server, without Kubernetes to the configuration
//! API, or without both into the snapshot of this server.

use std::collections::BTreeMap;

use model::change::{Batch, Change, SourceId};
use model::config::Key;
use model::config::parse::documents;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sources::kubernetes::access::Access;
use sources::kubernetes::trust_objects::{TrustRequestError, WriteResult};
use sources::kubernetes::workload_entries::{StoredEntry, WorkloadEntryObjects};
use tokio::sync::{OnceCell, mpsc};

/// The place of WorkloadEntries.
pub(super) enum EntryStore {
    Objects { access: Access, client: OnceCell<WorkloadEntryObjects>, missing: MissingNamespace },
    Memory(MemoryEntries),
}

/// What happens if the namespace of an entry does not exist in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissingNamespace {
    /// It was deleted, and the entry with it.
    Deleted,
    /// It is made: the group of the workload may come from another store, such as files.
    Made,
}

/// Entries of this server, as documents.
pub(super) struct MemoryEntries {
    changes: mpsc::Sender<Batch>,
    entries: Mutex<BTreeMap<Key, (u64, Value)>>,
}

impl EntryStore {
    pub(super) fn objects(access: Access, missing: MissingNamespace) -> EntryStore {
        EntryStore::Objects { access, client: OnceCell::new(), missing }
    }

    pub(super) fn memory(changes: mpsc::Sender<Batch>) -> EntryStore {
        EntryStore::Memory(MemoryEntries { changes, entries: Mutex::default() })
    }

    /// `None` if there is no such entry.
    pub(super) async fn get(&self, key: &Key) -> Result<Option<StoredEntry>, TrustRequestError> {
        match self {
            EntryStore::Objects { access, client, .. } => {
                connected(client, access).await?.get(key.namespace.as_str(), &key.name).await
            }
            EntryStore::Memory(memory) => Ok(memory.get(key)),
        }
    }

    pub(super) async fn create(
        &self,
        key: &Key,
        group: &Key,
        document: Value,
    ) -> Result<WriteResult, TrustRequestError> {
        match self {
            EntryStore::Objects { access, client, missing } => {
                let (client, namespace) = (connected(client, access).await?, key.namespace.as_str());
                if *missing == MissingNamespace::Made {
                    client.make_namespace(namespace).await?;
                }
                client.create(namespace, &group.name, document).await
            }
            EntryStore::Memory(memory) => memory.write(key, 0, document).await,
        }
    }

    /// Sets annotations, and removes those without a value.
    pub(super) async fn annotate(
        &self,
        key: &Key,
        version: &str,
        annotations: &[(&str, Option<&str>)],
    ) -> Result<WriteResult, TrustRequestError> {
        match self {
            EntryStore::Objects { access, client, .. } => {
                let client = connected(client, access).await?;
                client.annotate(key.namespace.as_str(), &key.name, version, annotations).await
            }
            EntryStore::Memory(memory) => {
                let edit = |document: &mut Value| {
                    for (name, value) in annotations {
                        document["metadata"]["annotations"][name] = json!(value);
                    }
                };
                memory.edit(key, version, edit).await
            }
        }
    }

    /// Replaces the conditions of the status.
    pub(super) async fn write_conditions(
        &self,
        key: &Key,
        version: &str,
        conditions: &[Value],
    ) -> Result<WriteResult, TrustRequestError> {
        match self {
            EntryStore::Objects { access, client, .. } => {
                let client = connected(client, access).await?;
                client.write_conditions(key.namespace.as_str(), &key.name, version, conditions).await
            }
            EntryStore::Memory(memory) => {
                memory.edit(key, version, |document| document["status"]["conditions"] = json!(conditions)).await
            }
        }
    }

    pub(super) async fn delete(&self, key: &Key, version: &str) -> Result<WriteResult, TrustRequestError> {
        match self {
            EntryStore::Objects { access, client, .. } => {
                connected(client, access).await?.delete(key.namespace.as_str(), &key.name, version).await
            }
            EntryStore::Memory(memory) => memory.delete(key, version).await,
        }
    }
}

async fn connected<'a>(
    client: &'a OnceCell<WorkloadEntryObjects>,
    access: &Access,
) -> Result<&'a WorkloadEntryObjects, TrustRequestError> {
    client.get_or_try_init(|| WorkloadEntryObjects::connect(access.clone())).await
}

impl MemoryEntries {
    fn get(&self, key: &Key) -> Option<StoredEntry> {
        let entries = self.entries.lock();
        let (version, document) = entries.get(key)?;
        let annotations = document["metadata"]["annotations"].as_object().into_iter().flatten();
        let text = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
        Some(StoredEntry {
            version: version.to_string(),
            annotations: annotations.filter_map(text).collect(),
            conditions: document["status"]["conditions"].as_array().cloned().unwrap_or_default(),
        })
    }

    async fn edit(
        &self,
        key: &Key,
        version: &str,
        edit: impl FnOnce(&mut Value),
    ) -> Result<WriteResult, TrustRequestError> {
        let found = self.entries.lock().get(key).cloned();
        let Some((current, mut document)) = found.filter(|(current, _)| current.to_string() == version) else {
            return Ok(WriteResult::Conflict);
        };
        edit(&mut document);
        self.write(key, current, document).await
    }

    /// Writes over the given version; zero means that there is no entry yet.
    async fn write(&self, key: &Key, version: u64, mut document: Value) -> Result<WriteResult, TrustRequestError> {
        if let Some(annotations) = document["metadata"]["annotations"].as_object_mut() {
            annotations.retain(|_, value| !value.is_null());
        }
        let Some(object) = documents(&document.to_string(), "").objects.pop() else {
            return Err(TrustRequestError::Failed("the WorkloadEntry is not valid".to_owned()));
        };
        {
            let mut entries = self.entries.lock();
            if entries.get(key).map_or(0, |(current, _)| *current) != version {
                return Ok(WriteResult::Conflict);
            }
            entries.insert(key.clone(), (version + 1, document));
        }
        self.send(Change::Applied(object)).await
    }

    async fn delete(&self, key: &Key, version: &str) -> Result<WriteResult, TrustRequestError> {
        {
            let mut entries = self.entries.lock();
            match entries.get(key) {
                Some((current, _)) if current.to_string() != version => return Ok(WriteResult::Conflict),
                _ => entries.remove(key),
            };
        }
        self.send(Change::Deleted(key.clone())).await
    }

    async fn send(&self, change: Change) -> Result<WriteResult, TrustRequestError> {
        let batch = Batch { source: SourceId("registration".into()), changes: vec![change] };
        match self.changes.send(batch).await {
            Ok(()) => Ok(WriteResult::Written),
            Err(_) => Err(TrustRequestError::Failed("the server is stopping".to_owned())),
        }
    }
}
