//! The objects of the configuration API as a source: the storage's events feed the same join as those of an API server.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use configapi::document;
use configapi::resource::{ResourceInfo, ResourceTable};
use configapi::store::cache::WatchCache;
use configapi::store::{ObjectKey, Revision, Storage, StoreEvent, StoredObject};
use model::change::{Change, SourceId};
use model::fetch_requests::FetchRequests;
use model::names::{CredentialKey, CredentialKind};
use model::settings::Settings;
use sources::kubernetes::collection::Collection;
use sources::kubernetes::join::{ClusterOptions, ClusterState};
use sources::kubernetes::schema::ClusterObject;
use sources::source::{ChangeSender, Source, SourceError};
use tokio::sync::watch;
use tracing::warn;

/// Source id, and the name of this store.
pub(crate) const ID: &str = "configAPI";

/// The source of one storage.
pub(crate) struct ConfigApiSource {
    storage: Arc<dyn Storage>,
    cluster: ClusterState,
    settings: watch::Receiver<Option<Settings>>,
    /// The credentials that the mesh refers to.
    wanted: watch::Receiver<Option<FetchRequests>>,
    /// The revision up to which events were applied; `None` before the first read.
    seen: Option<Revision>,
}

impl ConfigApiSource {
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        options: ClusterOptions,
        settings: watch::Receiver<Option<Settings>>,
        wanted: watch::Receiver<Option<FetchRequests>>,
        initial: Settings,
    ) -> ConfigApiSource {
        ConfigApiSource { storage, cluster: ClusterState::new(options, initial), settings, wanted, seen: None }
    }
}

impl Source for ConfigApiSource {
    fn id(&self) -> SourceId {
        SourceId(ID.into())
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        let mut settings = self.settings.clone();
        if settings.wait_for(Option::is_some).await.is_err() {
            return Err(SourceError::Closed);
        }
        self.adopt(&settings);
        let cache = self.storage.cache().clone();
        let mut revisions = cache.follow();
        self.catch_up(&cache);
        let mut changes = self.cluster.changes();
        changes.push(Change::Synced);
        sender.send(changes).await?;
        loop {
            tokio::select! {
                changed = revisions.changed() => match changed {
                    Ok(()) => self.catch_up(&cache),
                    Err(_) => return Err(SourceError::Closed),
                },
                changed = settings.changed() => match changed {
                    Ok(()) => self.adopt(&settings),
                    Err(_) => return Err(SourceError::Closed),
                },
                changed = self.wanted.changed() => match changed {
                    Ok(()) => self.keep_credentials(&cache),
                    Err(_) => return Err(SourceError::Closed),
                },
            }
            sender.send(self.cluster.changes()).await?;
        }
    }
}

impl ConfigApiSource {
    fn adopt(&mut self, settings: &watch::Receiver<Option<Settings>>) {
        if let Some(settings) = &*settings.borrow() {
            self.cluster.adopt(settings.clone());
        }
    }

    /// Applies the events since the last call, or reads everything if they are not known any more.
    fn catch_up(&mut self, cache: &WatchCache) {
        match self.seen.map(|seen| cache.events_after(seen)) {
            Some(Ok((events, revision))) => {
                events.iter().for_each(|event| self.apply(event));
                self.seen = Some(revision);
            }
            Some(Err(_)) | None => self.read_all(cache),
        }
    }

    fn read_all(&mut self, cache: &WatchCache) {
        let (objects, revision) = cache.current();
        let mut listed: BTreeMap<Collection, HashSet<(String, String)>> =
            ResourceTable::get().all().filter_map(|resource| Some((collection(resource)?, HashSet::new()))).collect();
        for stored in objects.values() {
            self.put(stored);
            if let Some(names) = collection_of(&stored.key).and_then(|known| listed.get_mut(&known)) {
                names.insert((stored.key.namespace.to_string(), stored.key.name.to_string()));
            }
        }
        for (collection, names) in &listed {
            self.cluster.retain(collection, names);
        }
        self.seen = Some(revision);
    }

    fn apply(&mut self, event: &StoreEvent) {
        match (&event.after, &event.before) {
            (Some(after), _) => self.put(after),
            (None, Some(before)) => {
                if let Some(collection) = collection_of(&before.key) {
                    self.cluster.delete(&collection, &before.key.namespace, &before.key.name);
                }
            }
            (None, None) => {}
        }
    }

    fn put(&mut self, stored: &StoredObject) {
        if let Some(object) = cluster_object(stored) {
            self.cluster.apply(object);
        }
    }

    /// Keeps only the credentials that the mesh refers to, and reads those again that were dropped.
    fn keep_credentials(&mut self, cache: &WatchCache) {
        let Some(named) = self.wanted.borrow_and_update().as_ref().map(|wanted| wanted.credentials.clone()) else {
            return;
        };
        for key in self.cluster.keep_credentials(named) {
            if let Some(object) = cache.get(&storage_key(&key)).and_then(|stored| cluster_object(&stored)) {
                self.cluster.put_fetched_credential(&object);
            }
        }
    }
}

fn storage_key(key: &CredentialKey) -> ObjectKey {
    let resource = match key.kind {
        CredentialKind::Secret => "secrets",
        CredentialKind::ConfigMap => "configmaps",
    };
    ObjectKey::new(resource, &key.namespace, &key.name)
}

/// The object as the join reads it; `None` for kinds that the mesh does not read.
fn cluster_object(stored: &StoredObject) -> Option<ClusterObject> {
    let resource = ResourceTable::get().by_id(&stored.key.resource)?;
    collection(resource)?;
    let text = document(stored, resource, resource.preferred_version());
    let object = serde_json::from_str(&text).and_then(ClusterObject::read);
    object.inspect_err(|error| warn!(object = %stored.key, %error, "could not read a stored object; ignoring it")).ok()
}

fn collection_of(key: &ObjectKey) -> Option<Collection> {
    collection(ResourceTable::get().by_id(&key.resource)?)
}

fn collection(resource: &ResourceInfo) -> Option<Collection> {
    Some(match resource.id.as_str() {
        "services" => Collection::Service,
        "endpointslices.discovery.k8s.io" => Collection::EndpointSlice,
        "pods" => Collection::Pod,
        "nodes" => Collection::Node,
        "namespaces" => Collection::Namespace,
        "secrets" => Collection::Secret,
        "configmaps" => Collection::ConfigMap,
        _ => {
            resource.config?;
            let version = resource.api_version(resource.preferred_version());
            Collection::Config(version.as_str().into(), resource.kind.as_str().into())
        }
    })
}
