//! A Kubernetes cluster as a source: watches feed `join`, whose changes are sent. Nothing is sent before every
//! collection was listed once, and nothing is removed because the API server cannot be reached.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use model::change::{Change, SourceId};
use model::credential_refs::CredentialRefs;
use model::fetch_requests::FetchRequests;
use model::settings::Settings;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, interval, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::access::Access;
use super::cluster_registry::ClusterRegistry;
use super::collection::Collection;
use super::join::{ClusterOptions, ClusterState};
use super::kubeconfig::{CheckedKubeconfig, KubeconfigEntry};
use super::kubeconfig_dir::KubeconfigDir;
use super::outages::OutageCause;
use super::rate_limit::RateLimit;
use super::remote::{KubeconfigOrigin, RemoteCluster, RemoteClusters};
use super::remote_access::RemoteAccess;
use super::session::{WatchOptions, WatchSession};
use super::watch::{NamedObject, ObjectContent, WatchEvent, WatchMessage};
use crate::health::{RegistryEvent, RegistryKind};
use crate::source::{ChangeSender, Source, SourceError, spawn};
use crate::source_set::SourceSet;

/// Messages that may wait between the watches and the join.
const QUEUE: usize = 4096;
/// The most messages applied before changes are sent.
const MAX_MESSAGES_AT_ONCE: usize = 8192;
/// How long config objects, and deletions of Services, wait for further events. Objects are written and deleted one after the
/// other, and each collection is watched by itself: a route may be read before its Services, or outlive them for a moment,
/// and its requests would fail meanwhile. Upstream waits as long after every change.
const RELATED_EVENTS_WAIT: Duration = Duration::from_millis(100);
/// How often the initial sync is checked: the wait for remote clusters ends without a message.
const SYNC_CHECK: Duration = Duration::from_millis(100);
/// How often the folder of kubeconfigs is read.
const KUBECONFIG_DIR_INTERVAL: Duration = Duration::from_secs(2);
/// How long to wait before unusable credentials are tried again.
const CREDENTIALS_RETRY: Duration = Duration::from_secs(30);

/// The source of one cluster.
pub struct Kubernetes {
    id: SourceId,
    access: Access,
    watch_options: WatchOptions,
    /// Present once the sources of settings are in sync.
    settings: watch::Receiver<Option<Settings>>,
    /// The credentials that the mesh refers to. Without this receiver the content of all is kept.
    wanted: Option<watch::Receiver<Option<FetchRequests>>>,
    cluster: ClusterState,
    remotes: RemoteClusters,
    cluster_registry: ClusterRegistry,
    kubeconfig_dir: Option<KubeconfigDir>,
    /// Whether every collection was listed once.
    synced: watch::Sender<bool>,
    /// Whether no client can be made of the credentials.
    is_refused: watch::Sender<bool>,
    /// Cancelled when a remote cluster is removed.
    removed: CancellationToken,
}

impl Kubernetes {
    /// The cluster that configuration is read from. It also starts the remote clusters that its objects name.
    pub fn primary(
        access: Access,
        watch_options: WatchOptions,
        options: ClusterOptions,
        settings: watch::Receiver<Option<Settings>>,
        initial: Settings,
    ) -> Kubernetes {
        let template = Arc::new(RemoteTemplate {
            rate_limit: access.rate_limit(),
            watch_options: watch_options.clone(),
            options: options.clone(),
            settings: settings.clone(),
            initial: initial.clone(),
        });
        let kubeconfig_dir = watch_options.registries_folder.as_deref().map(KubeconfigDir::new);
        let id = SourceId("Kubernetes".into());
        let cluster = ClusterState::new(options, initial);
        Kubernetes { kubeconfig_dir, ..Kubernetes::new(id, access, cluster, &template) }
    }

    fn new(id: SourceId, access: Access, cluster: ClusterState, template: &Arc<RemoteTemplate>) -> Kubernetes {
        Kubernetes {
            id,
            access,
            watch_options: template.watch_options.clone(),
            settings: template.settings.clone(),
            wanted: None,
            cluster,
            remotes: template.remote_clusters(),
            cluster_registry: ClusterRegistry::default(),
            kubeconfig_dir: None,
            synced: watch::Sender::new(false),
            is_refused: watch::Sender::new(false),
            removed: CancellationToken::new(),
        }
    }

    /// Lists the sources of remote clusters in the set.
    pub fn listing_remotes_in(mut self, sources: SourceSet) -> Kubernetes {
        self.remotes.sources = sources;
        self
    }

    /// Shares access to remote clusters.
    pub fn sharing_remotes_in(mut self, access: RemoteAccess) -> Kubernetes {
        self.remotes.access = access;
        self
    }

    /// Keeps the content of only those Secrets and ConfigMaps that the mesh refers to, once these are known.
    pub fn holding(self, wanted: watch::Receiver<Option<FetchRequests>>) -> Kubernetes {
        Kubernetes { wanted: Some(wanted), ..self }
    }
}

impl Source for Kubernetes {
    fn id(&self) -> SourceId {
        self.id.clone()
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        let (mut settings, mut wanted) = (self.settings.clone(), self.wanted.clone());
        if settings.wait_for(Option::is_some).await.is_err() {
            return Err(SourceError::Closed);
        }
        self.adopt(&settings);
        let Some(client) = self.client(&sender).await? else { return self.remove_all(&sender).await };
        let (messages, mut inbox) = mpsc::channel(QUEUE);
        self.read_kubeconfig_dir(&sender).await;
        let mut dir_reads = interval(KUBECONFIG_DIR_INTERVAL);
        let mut session = self.start_session(1, client, messages.clone());
        // After new credentials the old session goes on until the new one has listed everything.
        let mut next: Option<WatchSession> = None;
        loop {
            let is_syncing = !*self.synced.borrow();
            tokio::select! {
                Some(message) = inbox.recv() => {
                    let mut sessions = [Some(&mut session), next.as_mut()];
                    let waits = self.handle_all(message, &mut inbox, &mut sessions, &sender);
                    if waits && !is_syncing {
                        tokio::time::sleep(RELATED_EVENTS_WAIT).await;
                        if let Ok(message) = inbox.try_recv() {
                            self.handle_all(message, &mut inbox, &mut sessions, &sender);
                        }
                    }
                }
                changed = settings.changed() => match changed {
                    Ok(()) => self.adopt(&settings),
                    Err(_) => return Err(SourceError::Closed),
                },
                named = next_credential_refs(&mut wanted) => {
                    for key in self.cluster.keep_credentials(named) {
                        session.fetch_credential(key);
                    }
                }
                () = self.access.changed() => match self.access.client().await {
                    Ok(client) => {
                        info!(source = %self.id.0, "credentials changed; starting new watches");
                        let number = next.as_ref().unwrap_or(&session).number + 1;
                        next = Some(self.start_session(number, client, messages.clone()));
                    }
                    Err(error) => {
                        warn!(source = %self.id.0, %error, "could not use the new credentials; keeping the old ones");
                    }
                },
                () = relist_due(&session, next.as_ref()) => {
                    session.relist_held();
                    next.iter_mut().for_each(WatchSession::relist_held);
                }
                _ = dir_reads.tick(), if self.kubeconfig_dir.is_some() => self.read_kubeconfig_dir(&sender).await,
                () = self.removed.cancelled() => return self.remove_all(&sender).await,
                () = tokio::time::sleep(SYNC_CHECK), if is_syncing => {}
            }
            if next.as_ref().is_some_and(WatchSession::is_complete)
                && let Some(newer) = next.take()
            {
                session = newer;
            }
            self.publish(&session, &sender).await?;
        }
    }
}

impl Kubernetes {
    fn start_session(&self, number: u64, client: Client, messages: mpsc::Sender<WatchMessage>) -> WatchSession {
        WatchSession::start(number, client, messages, &self.watch_options, &self.cluster)
    }

    /// A client. A remote cluster waits for usable credentials; `None` if it is removed before.
    async fn client(&mut self, sender: &ChangeSender) -> Result<Option<Client>, SourceError> {
        loop {
            let failure = match self.access.client().await {
                Ok(client) => {
                    self.is_refused.send_replace(false);
                    return Ok(Some(client));
                }
                Err(error) => format!("could not set up a client for {}: {error}", self.id.0),
            };
            if self.cluster.options().is_primary {
                return Err(SourceError::Failed(failure));
            }
            warn!(source = %self.id.0, error = failure, "could not use the credentials; waiting for others");
            sender.health().mark_unreachable(failure);
            self.is_refused.send_replace(true);
            tokio::select! {
                () = self.access.changed() => {}
                () = self.removed.cancelled() => return Ok(None),
                // A file that the kubeconfig names may exist by then.
                () = tokio::time::sleep(CREDENTIALS_RETRY) => {}
            }
        }
    }

    fn adopt(&mut self, settings: &watch::Receiver<Option<Settings>>) {
        if let Some(settings) = &*settings.borrow() {
            self.cluster.adopt(settings.clone());
        }
    }

    /// Starts and removes the clusters that files name.
    async fn read_kubeconfig_dir(&mut self, sender: &ChangeSender) {
        let Some(before) = self.kubeconfig_dir.clone() else { return };
        let read = tokio::task::spawn_blocking(move || before.read()).await;
        // A failed task is tried again with the next tick.
        let Some(now) = read.ok().filter(|now| self.kubeconfig_dir.as_ref() != Some(now)) else { return };
        self.remotes.apply(KubeconfigOrigin::Directory, &now.kubeconfigs(), sender);
        self.cluster.set_problems("kubeconfig folder", now.problems());
        self.kubeconfig_dir = Some(now);
    }

    /// Sends changes, from the moment when every collection was listed once.
    async fn publish(&mut self, session: &WatchSession, sender: &ChangeSender) -> Result<(), SourceError> {
        if let Some(problems) = self.remotes.new_problems() {
            self.cluster.set_problems("kubeconfigs", problems);
        }
        let problems = session.problems(self.cluster.name());
        self.cluster.set_problems("responses", problems);
        if *self.synced.borrow() {
            return self.send_changes(sender).await;
        }
        if !session.is_complete() || !self.remotes.are_settled() {
            return Ok(());
        }
        self.cluster.pack();
        let mut changes = self.cluster.changes();
        changes.push(Change::Synced);
        sender.health().set_without_pod(self.cluster.endpoints_without_pod());
        sender.send(changes).await?;
        self.synced.send_replace(true);
        Ok(())
    }

    /// Deletes everything that this cluster has sent.
    async fn remove_all(&mut self, sender: &ChangeSender) -> Result<(), SourceError> {
        self.cluster.clear();
        self.send_changes(sender).await
    }

    async fn send_changes(&mut self, sender: &ChangeSender) -> Result<(), SourceError> {
        let changes = self.cluster.changes();
        sender.health().set_without_pod(self.cluster.endpoints_without_pod());
        sender.send(changes).await
    }

    /// Handles a message and all that wait. Returns whether further events should be waited for: routes and the Services that
    /// they refer to are often written or deleted together.
    fn handle_all(
        &mut self,
        first: WatchMessage,
        inbox: &mut mpsc::Receiver<WatchMessage>,
        sessions: &mut [Option<&mut WatchSession>],
        sender: &ChangeSender,
    ) -> bool {
        let (mut left, mut waits) = (MAX_MESSAGES_AT_ONCE, false);
        let mut message = Some(first);
        while let Some(taken) = message {
            waits |= matches!(
                (taken.collection.parts().0, &taken.event),
                (Collection::Config(..), WatchEvent::Applied(_)) | (Collection::Service, WatchEvent::Deleted(_))
            );
            let session = sessions.iter_mut().flatten().find(|session| session.number == taken.session);
            if let Some(session) = session {
                self.handle(session, taken, sender);
            }
            left -= 1;
            message = if left == 0 { None } else { inbox.try_recv().ok() };
        }
        waits
    }

    fn handle(&mut self, session: &mut WatchSession, message: WatchMessage, sender: &ChangeSender) {
        let collection = message.collection;
        let was_degraded = session.is_degraded();
        if message.event.shows_that_watch_works() {
            session.outages.end(&self.id, &collection);
        }
        match message.event {
            WatchEvent::ListStarted => _ = session.listing.insert(collection, HashSet::new()),
            WatchEvent::Recovered => {}
            WatchEvent::Fetched(NamedObject { content: ObjectContent::Item(item), .. }) => {
                self.cluster.put_fetched_credential(&item);
            }
            WatchEvent::Fetched(_) => {}
            WatchEvent::Listed(object) => {
                // A known object of a repeated list has not changed, or its event was counted.
                if !self.is_known(&collection, &object) {
                    count_event(sender, &collection, RegistryEvent::Add);
                }
                if let Some(listed) = session.listing.get_mut(&collection) {
                    listed.insert((object.namespace.clone(), object.name.clone()));
                }
                self.apply(session, &collection, object, sender);
            }
            WatchEvent::ListComplete => {
                let listed = session.listing.remove(&collection).unwrap_or_default();
                self.complete_list(session, &collection, &listed, sender);
                // Objects that were ignored for lack of room may fit now.
                let has_room = self.cluster.has_room(&collection, "", "", session.max_objects);
                if has_room && session.full.remove(&collection) {
                    session.relist(&collection);
                }
                session.stop_waiting_for(&collection);
            }
            WatchEvent::Applied(object) => {
                let is_known = self.is_known(&collection, &object);
                count_event(sender, &collection, if is_known { RegistryEvent::Update } else { RegistryEvent::Add });
                self.apply(session, &collection, object, sender);
            }
            WatchEvent::Deleted(object) => {
                count_event(sender, &collection, RegistryEvent::Delete);
                self.delete(session, &collection, object, sender);
            }
            WatchEvent::Failed { message, code, is_bad_response } => {
                // A collection that is forbidden or does not exist is not waited for.
                let cause = match is_bad_response {
                    true => OutageCause::BadResponse,
                    false if matches!(code, 403 | 404) && session.stop_waiting_for(&collection) => OutageCause::Refused,
                    false => OutageCause::Failure,
                };
                session.outages.begin(&self.id, &collection, cause, &message);
                if !session.outages.is_refused(&collection) {
                    sender.health().mark_unreachable(message);
                }
            }
        }
        if was_degraded && !session.is_degraded() {
            sender.health().mark_reachable();
        }
    }

    fn is_known(&self, collection: &Collection, object: &NamedObject) -> bool {
        registry_kind(collection).is_some() && self.cluster.has_room(collection, &object.namespace, &object.name, 0)
    }

    fn apply(
        &mut self,
        session: &mut WatchSession,
        collection: &Collection,
        object: NamedObject,
        sender: &ChangeSender,
    ) {
        let NamedObject { namespace, name, content } = object;
        match content {
            ObjectContent::Item(_) if !self.cluster.has_room(collection, &namespace, &name, session.max_objects) => {
                session.full.insert(collection.clone());
            }
            ObjectContent::Item(item) => self.cluster.apply(item),
            ObjectContent::Definition(definition) if definition.is_usable() => session.define(&definition),
            ObjectContent::Definition(_) => session.undefine(&name),
            ObjectContent::Remote(secret) => {
                let entries = kubeconfigs(&namespace, &name, secret.data);
                self.remotes.apply(KubeconfigOrigin::Secret(namespace, name), &entries, sender);
            }
            ObjectContent::Registry(map) => {
                self.cluster_registry.put(&map.data);
                self.follow_cluster_registry(session, sender);
            }
            ObjectContent::Access(secret) => {
                self.cluster_registry.put_secret(&(namespace, name), Some(secret.data));
                self.follow_cluster_registry(session, sender);
            }
        }
    }

    fn delete(
        &mut self,
        session: &mut WatchSession,
        collection: &Collection,
        object: NamedObject,
        sender: &ChangeSender,
    ) {
        let NamedObject { namespace, name, content } = object;
        match content {
            ObjectContent::Item(_) => self.cluster.delete(collection, &namespace, &name),
            ObjectContent::Definition(_) => session.undefine(&name),
            ObjectContent::Remote(_) => self.remotes.delete(&KubeconfigOrigin::Secret(namespace, name)),
            ObjectContent::Registry(_) | ObjectContent::Access(_) => {
                self.retain(session, collection, &HashSet::new(), sender);
            }
        }
    }

    /// Removes objects that a complete list does not have, unless the guard holds the list back.
    fn complete_list(
        &mut self,
        session: &mut WatchSession,
        collection: &Collection,
        listed: &HashSet<(String, String)>,
        sender: &ChangeSender,
    ) {
        let (known, lost) = match collection {
            Collection::Definition => session.loss_of_definitions(listed),
            Collection::Remote => self.remotes.loss(listed),
            Collection::Registry => {
                let known = self.cluster_registry.len();
                (known, if listed.is_empty() { known } else { 0 })
            }
            _ => self.cluster.loss(collection, listed),
        };
        if session.guard.accepts(collection, known, lost) {
            return self.retain(session, collection, listed, sender);
        }
        sender
            .health()
            .mark_unreachable(format!("a list of {collection} lacks {lost} of {known} known objects; keeping them"));
    }

    fn retain(
        &mut self,
        session: &mut WatchSession,
        collection: &Collection,
        listed: &HashSet<(String, String)>,
        sender: &ChangeSender,
    ) {
        match collection {
            Collection::Definition => session.retain_definitions(listed),
            Collection::Remote => self.remotes.retain(listed),
            Collection::Registry if listed.is_empty() => {
                self.cluster_registry.put(&BTreeMap::new());
                self.follow_cluster_registry(session, sender);
            }
            Collection::Access(namespace, name) if listed.is_empty() => {
                self.cluster_registry.put_secret(&(namespace.to_string(), name.to_string()), None);
                self.follow_cluster_registry(session, sender);
            }
            _ => self.cluster.retain(collection, listed),
        }
    }

    /// Watches the Secrets that the ConfigMap of clusters names, and starts the clusters of their kubeconfigs.
    fn follow_cluster_registry(&mut self, session: &mut WatchSession, sender: &ChangeSender) {
        session.watch_secrets(&self.cluster_registry.secrets());
        self.remotes.apply(KubeconfigOrigin::ConfigMap, &self.cluster_registry.kubeconfigs(), sender);
        self.cluster.set_problems("clusters", self.cluster_registry.problems());
    }
}

/// The options that all remote clusters start with.
struct RemoteTemplate {
    /// Each cluster has its own token bucket with this limit.
    rate_limit: Option<RateLimit>,
    watch_options: WatchOptions,
    options: ClusterOptions,
    settings: watch::Receiver<Option<Settings>>,
    initial: Settings,
}

impl RemoteTemplate {
    fn remote_clusters(self: &Arc<Self>) -> RemoteClusters {
        let template = self.clone();
        let start = move |name: &str, kubeconfig, sender: &ChangeSender| template.start(name, kubeconfig, sender);
        let allowed = self.initial.knobs.insecure_kubeconfig_options.clone();
        RemoteClusters::new(self.options.cluster.clone(), allowed, Box::new(start))
    }

    /// Starts the source of a remote cluster, of which only services and workloads are read.
    fn start(self: &Arc<Self>, name: &str, kubeconfig: CheckedKubeconfig, sender: &ChangeSender) -> RemoteCluster {
        let (kubeconfig, updates) = watch::channel(kubeconfig);
        let id = SourceId(format!("Kubernetes/{name}").into());
        let access = Access::updated_kubeconfig(updates, self.rate_limit);
        let options =
            ClusterOptions { cluster: name.into(), is_primary: false, mesh_config: None, ..self.options.clone() };
        let cluster = ClusterState::new(options, self.initial.clone());
        let source = Kubernetes::new(id.clone(), access, cluster, self);
        let patience = Duration::from_millis(self.initial.knobs.remote_cluster_timeout.0);
        let (synced, is_refused) = (source.synced.subscribe(), source.is_refused.subscribe());
        let (removed, awaited_until) = (source.removed.clone(), Instant::now() + patience);
        let (batches, cancel) = sender.shared();
        // The source ends by itself when the cluster is removed or the process ends.
        let health = spawn(source, batches, cancel).health;
        RemoteCluster { kubeconfig, synced, is_refused, awaited_until, source: id, health, removed }
    }
}

/// Completes when a held back list is due to be listed again, in either session.
fn count_event(sender: &ChangeSender, collection: &Collection, event: RegistryEvent) {
    if let Some(kind) = registry_kind(collection) {
        sender.health().count_event(kind, event);
    }
}

/// The kind of a collection that makes services and endpoints.
fn registry_kind(collection: &Collection) -> Option<RegistryKind> {
    match collection.parts().0 {
        Collection::Service => Some(RegistryKind::Service),
        Collection::EndpointSlice => Some(RegistryKind::EndpointSlice),
        Collection::Pod => Some(RegistryKind::Pod),
        Collection::Node => Some(RegistryKind::Node),
        _ => None,
    }
}

async fn relist_due(session: &WatchSession, next: Option<&WatchSession>) {
    match [Some(session), next].into_iter().flatten().filter_map(|session| session.guard.due()).min() {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Completes when the mesh refers to other credentials than before.
async fn next_credential_refs(wanted: &mut Option<watch::Receiver<Option<FetchRequests>>>) -> CredentialRefs {
    let Some(wanted) = wanted else { return std::future::pending().await };
    loop {
        if wanted.changed().await.is_err() {
            return std::future::pending().await;
        }
        if let Some(wanted) = &*wanted.borrow_and_update() {
            return wanted.credentials.clone();
        }
    }
}

/// The kubeconfigs of a labelled Secret: each key is the name of a cluster.
fn kubeconfigs(namespace: &str, name: &str, data: BTreeMap<String, String>) -> BTreeMap<String, KubeconfigEntry> {
    let entries = data.into_iter().map(|(key, encoded)| {
        let found_at = format!("Secret {namespace}/{name}, key {key}");
        (key, KubeconfigEntry { found_at, encoded })
    });
    entries.collect()
}
