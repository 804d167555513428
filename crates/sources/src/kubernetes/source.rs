//! A Kubernetes cluster as a source: watches feed the pure join, the join's changes go out. Nothing is told
//! before everything was listed once, and nothing is taken back because the API server cannot be reached.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::api::Api;
use kube::core::ApiResource;
use kube::runtime::watcher;
use model::change::{Change, SourceId};
use model::config::Kind;
use model::credential_refs::CredentialRefs;
use model::fetch_requests::FetchRequests;
use model::names::CredentialKey;
use model::problem::{Problem, Subject};
use model::settings::Settings;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{interval, sleep_until};
use tracing::{info, warn};

use super::access::Access;
use super::checked_client::checked_client;
use super::cluster_registry::{ClusterRegistry, SecretName};
use super::fetch_credential;
use super::guard::ListGuard;
use super::join::{ClusterOptions, ClusterState, Collection};
use super::kubeconfig::KubeconfigEntry;
use super::kubeconfig_dir::KubeconfigDir;
use super::outages::{OutageCause, Outages};
use super::remote::{KubeconfigOrigin, RemoteClusters};
use super::schema::{self, ClusterObject};
use super::watch::{
    CollectionWatch, NamedObject, ObjectContent, WatchEvent, WatchMessage, WatchableKind, definitions, document,
    resource,
};
use crate::source::{ChangeSender, Source, SourceError};

/// Messages that wait between watches and the join.
const QUEUE: usize = 4096;
/// Messages taken in at most before changes are told.
const AT_ONCE: usize = 8192;
/// How often the wait for everything to be listed is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How often the folder of clusters is looked into.
const FOLDER: Duration = Duration::from_secs(2);
/// How long credentials of which no client can be made are left alone.
const REFUSED: Duration = Duration::from_secs(30);
/// Secrets that a proxy can have a use for: no releases of Helm, and no tokens, each of which has an authority beside it.
const USABLE_SECRETS: &str = "type!=helm.sh/release.v1,type!=kubernetes.io/service-account-token";

/// How a cluster is followed, beyond what its objects mean.
#[derive(Clone, Debug, Default)]
pub struct WatchOptions {
    /// How often everything is listed anew and compared with what is known; `None` for never.
    pub resync: Option<Duration>,
    /// Where Secrets and the ConfigMap lie that name further clusters; `None` for the system namespace.
    pub registries_namespace: Option<String>,
    /// The ConfigMap that names further clusters in the form of Pilot 0.8.
    pub registries_config_map: Option<String>,
    /// A folder of files that name further clusters.
    pub registries_folder: Option<PathBuf>,
    /// The only namespaces whose objects are looked at; none for all. What lies in no namespace is looked at always.
    pub namespaces: BTreeSet<String>,
}

/// One cluster.
pub struct Kubernetes {
    id: SourceId,
    access: Access,
    watch_options: WatchOptions,
    /// Known once the sources of settings are in sync.
    settings: watch::Receiver<Option<Settings>>,
    /// What of the cluster the mesh wants, as far as anybody says so.
    wanted: Option<watch::Receiver<Option<FetchRequests>>>,
    cluster: ClusterState,
    is_primary: bool,
    system_namespace: String,
    remotes: RemoteClusters,
    cluster_registry: ClusterRegistry,
    folder: Option<KubeconfigDir>,
    /// Told once everything was listed.
    synced: watch::Sender<bool>,
    /// Whether the credentials are such that no client can be made of them.
    is_refused: watch::Sender<bool>,
    leave: tokio_util::sync::CancellationToken,
}

impl Kubernetes {
    /// The cluster that holds configuration too. Clusters that its Secrets name are watched beside it.
    pub fn primary(
        access: Access,
        watch_options: WatchOptions,
        options: ClusterOptions,
        settings: watch::Receiver<Option<Settings>>,
        initial: Settings,
    ) -> Kubernetes {
        let folder = watch_options.registries_folder.as_deref().map(KubeconfigDir::new);
        let remotes = RemoteClusters::new(
            access.rate_limit(),
            watch_options.clone(),
            options.clone(),
            settings.clone(),
            initial.clone(),
        );
        Kubernetes {
            id: SourceId("Kubernetes".into()),
            access,
            watch_options,
            settings,
            wanted: None,
            is_primary: true,
            system_namespace: options.system_namespace.to_string(),
            cluster: ClusterState::new(options, initial),
            remotes,
            cluster_registry: ClusterRegistry::default(),
            folder,
            synced: watch::Sender::new(false),
            is_refused: watch::Sender::new(false),
            leave: Default::default(),
        }
    }

    /// A further cluster, of which only services and workloads count. It goes with all that it told when
    /// `leave` is cancelled.
    pub(super) fn further(
        access: Access,
        watch_options: WatchOptions,
        options: ClusterOptions,
        settings: watch::Receiver<Option<Settings>>,
        initial: Settings,
        leave: tokio_util::sync::CancellationToken,
    ) -> Kubernetes {
        let id = SourceId(format!("Kubernetes/{}", options.cluster).into());
        let primary = Kubernetes::primary(access, watch_options, options, settings, initial);
        Kubernetes { id, is_primary: false, leave, folder: None, ..primary }
    }

    /// Keeps the content of those Secrets and ConfigMaps alone that the mesh wants, once that is known.
    pub fn holding(self, wanted: watch::Receiver<Option<FetchRequests>>) -> Kubernetes {
        Kubernetes { wanted: Some(wanted), ..self }
    }

    /// Tells when everything was listed once.
    pub(super) fn synced(&self) -> watch::Receiver<bool> {
        self.synced.subscribe()
    }

    /// Tells when credentials cannot be used, so that nobody need wait for the cluster.
    pub(super) fn is_refused(&self) -> watch::Receiver<bool> {
        self.is_refused.subscribe()
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
        let Some(client) = self.client(&sender).await? else { return self.go(&sender).await };
        let (tell, mut heard) = mpsc::channel(QUEUE);
        self.look_into_folder(&sender).await;
        let mut looks = interval(FOLDER);
        let mut session = WatchSession::start(1, client, tell.clone(), self);
        // After new credentials the round before goes on until the new one has listed everything.
        let mut next: Option<WatchSession> = None;
        loop {
            let awaits = !*self.synced.borrow();
            tokio::select! {
                Some(message) = heard.recv() => {
                    let mut left = AT_ONCE;
                    let mut message = Some(message);
                    while let Some(taken) = message {
                        match &mut next {
                            Some(newer) if newer.number == taken.session => self.hear(newer, taken, &sender),
                            _ if session.number == taken.session => self.hear(&mut session, taken, &sender),
                            _ => {}
                        }
                        left -= 1;
                        message = if left == 0 { None } else { heard.try_recv().ok() };
                    }
                }
                changed = settings.changed() => match changed {
                    Ok(()) => self.adopt(&settings),
                    Err(_) => return Err(SourceError::Closed),
                },
                named = named_anew(&mut wanted) => {
                    for key in self.cluster.want(named) {
                        session.ask(key);
                    }
                }
                () = self.access.changed() => match self.access.client().await {
                    Ok(client) => {
                        info!(source = %self.id.0, "new credentials");
                        let number = next.as_ref().unwrap_or(&session).number + 1;
                        next = Some(WatchSession::start(number, client, tell.clone(), self));
                    }
                    Err(reason) => warn!(source = %self.id.0, reason, "keeping the old credentials"),
                },
                () = listed_again_at(&session, next.as_ref()) => {
                    session.list_held_again();
                    next.iter_mut().for_each(WatchSession::list_held_again);
                }
                _ = looks.tick(), if self.folder.is_some() => self.look_into_folder(&sender).await,
                () = self.leave.cancelled() => return self.go(&sender).await,
                () = tokio::time::sleep(LOOK), if awaits => {}
            }
            if next.as_ref().is_some_and(WatchSession::is_complete)
                && let Some(newer) = next.take()
            {
                session = newer;
            }
            self.tell(&session, &sender).await?;
        }
    }
}

impl Kubernetes {
    /// A client. For a further cluster it is waited for credentials that can be used; none where it leaves before.
    async fn client(&mut self, sender: &ChangeSender) -> Result<Option<Client>, SourceError> {
        loop {
            let failure = match self.access.client().await {
                Ok(client) => {
                    self.is_refused.send_replace(false);
                    return Ok(Some(client));
                }
                Err(reason) => format!("could not set up a client for {}: {reason}", self.id.0),
            };
            if self.is_primary {
                return Err(SourceError::Failed(failure));
            }
            warn!(source = %self.id.0, error = failure, "waiting for other credentials");
            sender.health().mark_unreachable(failure);
            self.is_refused.send_replace(true);
            tokio::select! {
                () = self.access.changed() => {}
                () = self.leave.cancelled() => return Ok(None),
                // A file that they name may come.
                () = tokio::time::sleep(REFUSED) => {}
            }
        }
    }

    fn adopt(&mut self, settings: &watch::Receiver<Option<Settings>>) {
        if let Some(settings) = &*settings.borrow() {
            self.cluster.adopt(settings.clone());
        }
    }

    /// Follows the clusters that files name.
    async fn look_into_folder(&mut self, sender: &ChangeSender) {
        let Some(before) = self.folder.clone() else { return };
        let read = tokio::task::spawn_blocking(move || before.read()).await;
        // It does not panic; if it did, the next look would tell.
        let Some(now) = read.ok().filter(|now| self.folder.as_ref() != Some(now)) else { return };
        self.remotes.apply(KubeconfigOrigin::Directory, &now.kubeconfigs(), sender);
        self.cluster.note("folder of clusters", now.problems());
        self.folder = Some(now);
    }

    /// Tells what is to be told, once there is all of it.
    async fn tell(&mut self, session: &WatchSession, sender: &ChangeSender) -> Result<(), SourceError> {
        if let Some(problems) = self.remotes.new_problems() {
            self.cluster.note("kubeconfigs", problems);
        }
        let problems = session.problems(self.cluster.name());
        self.cluster.note("answers", problems);
        if *self.synced.borrow() {
            return sender.send(self.cluster.changes()).await;
        }
        if !session.is_complete() || !self.remotes.are_settled() {
            return Ok(());
        }
        self.cluster.pack();
        let mut changes = self.cluster.changes();
        changes.push(Change::Synced);
        sender.send(changes).await?;
        self.synced.send_replace(true);
        Ok(())
    }

    /// Takes back all that was told.
    async fn go(&mut self, sender: &ChangeSender) -> Result<(), SourceError> {
        self.cluster.clear();
        sender.send(self.cluster.changes()).await
    }

    fn hear(&mut self, session: &mut WatchSession, heard: WatchMessage, sender: &ChangeSender) {
        let collection = heard.collection;
        let was_hidden = session.hides_something();
        // A list that is not complete may be one that fails.
        if !matches!(heard.what, WatchEvent::Failed { .. } | WatchEvent::Begun | WatchEvent::Listed(_)) {
            session.outages.end(&self.id, &collection);
        }
        match heard.what {
            WatchEvent::Begun => _ = session.listing.insert(collection, HashSet::new()),
            WatchEvent::Reopened => {}
            WatchEvent::Supplied(NamedObject { content: ObjectContent::Item(item), .. }) => self.cluster.supply(&item),
            WatchEvent::Supplied(_) => {}
            WatchEvent::Listed(seen) => {
                if let Some(listed) = session.listing.get_mut(&collection) {
                    listed.insert((seen.namespace.clone(), seen.name.clone()));
                }
                self.take(session, &collection, seen, sender);
            }
            WatchEvent::Complete => {
                let listed = session.listing.remove(&collection).unwrap_or_default();
                self.complete(session, &collection, &listed, sender);
                // What found no room finds it now.
                if session.full.contains(&collection) && self.cluster.has_room(&collection, "", "", session.max_objects)
                {
                    session.full.remove(&collection);
                    session.list_again(&collection);
                }
                session.done(&collection);
            }
            WatchEvent::Applied(seen) => self.take(session, &collection, seen, sender),
            WatchEvent::Deleted(seen) => self.forget(session, &collection, seen, sender),
            WatchEvent::Failed { message, code, is_wrong } => {
                // What is not allowed or not there is not waited for.
                let cause = match is_wrong {
                    true => OutageCause::BadResponse,
                    false if matches!(code, 403 | 404) && session.done(&collection) => OutageCause::Refused,
                    false => OutageCause::Failure,
                };
                session.outages.fail(&self.id, &collection, cause, &message);
                if !session.outages.is_refused(&collection) {
                    sender.health().mark_unreachable(message);
                }
            }
        }
        if was_hidden && !session.hides_something() {
            sender.health().mark_reachable();
        }
    }

    fn take(&mut self, session: &mut WatchSession, collection: &Collection, seen: NamedObject, sender: &ChangeSender) {
        match seen.content {
            ObjectContent::Item(_)
                if !self.cluster.has_room(collection, &seen.namespace, &seen.name, session.max_objects) =>
            {
                session.full.insert(collection.clone());
            }
            ObjectContent::Item(item) => self.cluster.apply(item),
            ObjectContent::Definition(definition) if definition.is_usable() => session.define(&definition),
            ObjectContent::Definition(definition) => session.undefine(&definition),
            ObjectContent::Remote(secret) => {
                let entries = kubeconfigs(&seen.namespace, &seen.name, secret.data);
                self.remotes.apply(KubeconfigOrigin::Secret(seen.namespace, seen.name), &entries, sender);
            }
            ObjectContent::Registry(map) => {
                self.cluster_registry.put(&map.data);
                self.follow_registered(session, sender);
            }
            ObjectContent::Access(secret) => {
                self.cluster_registry.put_secret(&(seen.namespace, seen.name), Some(secret.data));
                self.follow_registered(session, sender);
            }
        }
    }

    fn forget(
        &mut self,
        session: &mut WatchSession,
        collection: &Collection,
        seen: NamedObject,
        sender: &ChangeSender,
    ) {
        match seen.content {
            ObjectContent::Item(_) => self.cluster.delete(collection, &seen.namespace, &seen.name),
            ObjectContent::Definition(definition) => session.undefine(&definition),
            ObjectContent::Remote(_) => self.remotes.delete(&KubeconfigOrigin::Secret(seen.namespace, seen.name)),
            ObjectContent::Registry(_) | ObjectContent::Access(_) => {
                self.retain(session, collection, &HashSet::new(), sender)
            }
        }
    }

    /// Believes a complete list, unless it takes away nearly all that is known.
    fn complete(
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
                (self.cluster_registry.len(), if listed.is_empty() { self.cluster_registry.len() } else { 0 })
            }
            _ => self.cluster.loss(collection, listed),
        };
        if session.guard.believes(collection, known, lost) {
            return self.retain(session, collection, listed, sender);
        }
        sender
            .health()
            .mark_unreachable(format!("a list of {collection} lacks {lost} of {known} known objects; keeping them"));
    }

    /// Forgets what a complete list does not have.
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
                self.follow_registered(session, sender);
            }
            Collection::Access(namespace, name) if listed.is_empty() => {
                self.cluster_registry.put_secret(&(namespace.to_string(), name.to_string()), None);
                self.follow_registered(session, sender);
            }
            _ => self.cluster.retain(collection, listed),
        }
    }

    /// Watches the Secrets that the ConfigMap of clusters names, and the clusters that they open.
    fn follow_registered(&mut self, session: &mut WatchSession, sender: &ChangeSender) {
        session.watch_secrets(&self.cluster_registry.secrets());
        self.remotes.apply(KubeconfigOrigin::ConfigMap, &self.cluster_registry.kubeconfigs(), sender);
        self.cluster.note("clusters", self.cluster_registry.problems());
    }
}

/// The watches that stand on one set of credentials. They end when it is dropped.
struct WatchSession {
    number: u64,
    client: Client,
    resync: Option<Duration>,
    namespaces: BTreeSet<String>,
    tell: mpsc::Sender<WatchMessage>,
    tasks: JoinSet<()>,
    /// Lists that have begun and are not complete.
    listing: BTreeMap<Collection, HashSet<(String, String)>>,
    /// Collections that have not been listed once.
    awaited: BTreeSet<Collection>,
    outages: Outages,
    guard: ListGuard,
    /// How watches are asked for a list.
    relists: BTreeMap<Collection, Arc<Notify>>,
    /// Objects of a collection that are kept at most.
    max_objects: usize,
    /// Collections that have more.
    full: BTreeSet<Collection>,
    /// Watches of custom kinds, by the name of their definition.
    defined: BTreeMap<String, Vec<(Collection, AbortHandle)>>,
    /// Watches of Secrets that the ConfigMap of clusters names.
    secrets: BTreeMap<SecretName, AbortHandle>,
}

impl WatchSession {
    fn start(number: u64, client: Client, tell: mpsc::Sender<WatchMessage>, of: &Kubernetes) -> WatchSession {
        let mut session = WatchSession {
            number,
            client,
            resync: of.watch_options.resync,
            namespaces: of.watch_options.namespaces.clone(),
            tell,
            tasks: JoinSet::new(),
            listing: BTreeMap::new(),
            awaited: BTreeSet::new(),
            outages: Outages::default(),
            guard: ListGuard::new(Duration::from_millis(of.cluster.knobs().hold_losses.0)),
            relists: BTreeMap::new(),
            max_objects: of.cluster.knobs().max_kubernetes_objects.try_into().unwrap_or(usize::MAX),
            full: BTreeSet::new(),
            defined: BTreeMap::new(),
            secrets: BTreeMap::new(),
        };
        let plain = watcher::Config::default;
        let core = |kind: &str, plural: &str| resource("", "v1", kind, plural);
        session.watch(
            Collection::Namespace,
            core("Namespace", "namespaces"),
            plain(),
            |_, n: schema::NamespaceObject| ObjectContent::Item(ClusterObject::Namespace(n)),
        );
        session.watch_parts(
            Collection::Service,
            core("Service", "services"),
            plain(),
            |_, s: schema::ServiceObject| ObjectContent::Item(ClusterObject::Service(Box::new(s))),
        );
        session.watch_parts(
            Collection::Pod,
            core("Pod", "pods"),
            plain().fields("status.phase!=Failed"),
            |_, p: schema::PodObject| ObjectContent::Item(ClusterObject::Pod(Box::new(p))),
        );
        session.watch(Collection::Node, core("Node", "nodes"), plain(), |_, n: schema::NodeObject| {
            ObjectContent::Item(ClusterObject::Node(n))
        });
        let slices = resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices");
        session.watch_parts(Collection::EndpointSlice, slices, plain(), |_, s: schema::EndpointSlice| {
            ObjectContent::Item(ClusterObject::EndpointSlice(s))
        });
        if of.is_primary {
            session.start_config(of);
            session.start_registries(&of.watch_options, &of.system_namespace);
        }
        session
    }

    /// Watches what only the cluster with configuration is read for.
    fn start_config(&mut self, of: &Kubernetes) {
        let plain = watcher::Config::default;
        let core = |kind: &str, plural: &str| resource("", "v1", kind, plural);
        self.watch_parts(
            Collection::Secret,
            core("Secret", "secrets"),
            plain().fields(USABLE_SECRETS),
            |_, s: schema::DataObject| ObjectContent::Item(ClusterObject::Secret(s)),
        );
        let maps = core("ConfigMap", "configmaps");
        self.watch_parts(Collection::ConfigMap, maps.clone(), plain(), |_, c: schema::DataObject| {
            ObjectContent::Item(ClusterObject::ConfigMap(c))
        });
        if let Some(name) = of.cluster.mesh_config().filter(|_| !self.watches(&of.system_namespace)) {
            let place = Some(of.system_namespace.as_str());
            self.spawn(
                Collection::Mesh,
                place,
                maps,
                named(name),
                |_, c| ObjectContent::Item(ClusterObject::ConfigMap(c)),
                None,
            );
        }
        self.watch(Collection::Definition, definitions(), plain(), |_, d: schema::CustomResourceDefinition| {
            ObjectContent::Definition(Box::new(d))
        });
        for kind in Kind::ALL.iter().filter(|kind| is_built_in(**kind)) {
            let resource = resource(kind.group(), kind.versions()[0], kind.as_str(), kind.plural());
            match kind {
                Kind::IngressClass => self.watch(documents(&resource), resource, plain(), document),
                _ => self.watch_parts(documents(&resource), resource, plain(), document),
            }
        }
    }

    /// Watches what names further clusters.
    fn start_registries(&mut self, watch_options: &WatchOptions, system_namespace: &str) {
        let namespace = watch_options.registries_namespace.as_deref().unwrap_or(system_namespace);
        let secrets = resource("", "v1", "Secret", "secrets");
        let config = watcher::Config::default().labels("istio/multiCluster=true");
        self.spawn(Collection::Remote, Some(namespace), secrets, config, |_, s| ObjectContent::Remote(s), None);
        if let Some(name) = &watch_options.registries_config_map {
            let maps = resource("", "v1", "ConfigMap", "configmaps");
            self.spawn(
                Collection::Registry,
                Some(namespace),
                maps,
                named(name),
                |_, m| ObjectContent::Registry(m),
                None,
            );
        }
    }

    /// Watches these Secrets, and no others that were named before.
    fn watch_secrets(&mut self, wanted: &BTreeSet<SecretName>) {
        let gone: Vec<SecretName> = self.secrets.keys().filter(|name| !wanted.contains(*name)).cloned().collect();
        for name in gone {
            if let Some(task) = self.secrets.remove(&name) {
                task.abort();
            }
            self.forget(&access_to(&name));
        }
        let new: Vec<&SecretName> = wanted.iter().filter(|name| !self.secrets.contains_key(*name)).collect();
        for name in new {
            let secrets = resource("", "v1", "Secret", "secrets");
            let task = self.spawn(
                access_to(name),
                Some(&name.0),
                secrets,
                named(&name.1),
                |_, s| ObjectContent::Access(s),
                None,
            );
            self.secrets.insert(name.clone(), task);
        }
    }

    /// Waits for nothing of a collection that is watched no more.
    fn forget(&mut self, collection: &Collection) {
        self.awaited.remove(collection);
        self.listing.remove(collection);
        self.outages.forget(collection);
        self.guard.forget(collection);
        self.relists.remove(collection);
        self.full.remove(collection);
    }

    /// Whether what is served is not what the cluster has, as far as is known.
    fn hides_something(&self) -> bool {
        self.outages.hide_something() || self.guard.holds_something()
    }

    /// Asks again for the lists that are held back and due.
    fn list_held_again(&mut self) {
        for collection in self.guard.take_due() {
            self.list_again(&collection);
        }
    }

    fn list_again(&self, collection: &Collection) {
        if let Some(relist) = self.relists.get(collection) {
            relist.notify_one();
        }
    }

    /// What is wrong with the answers of the API server.
    fn problems(&self, cluster: &str) -> Vec<Problem> {
        let full = self.full.iter().map(|collection| {
            let message = format!(
                "more than {} objects of {collection}: further ones are ignored (PILOTAGE_KUBERNETES_MAX_OBJECTS)",
                self.max_objects
            );
            Problem::warning(Subject::Cluster(cluster.into()), message)
        });
        self.outages.problems(cluster).chain(self.guard.problems(cluster)).chain(full).collect()
    }

    fn watch<K>(
        &mut self,
        collection: Collection,
        resource: ApiResource,
        config: watcher::Config,
        object: fn(&ApiResource, K) -> ObjectContent,
    ) where
        K: WatchableKind,
    {
        self.spawn(collection, None, resource, config, object, None);
    }

    /// Whether objects of this namespace are looked at.
    fn watches(&self, namespace: &str) -> bool {
        self.namespaces.is_empty() || self.namespaces.contains(namespace)
    }

    /// Watches a collection as far as it lies in namespaces that are looked at.
    fn watch_parts<K>(
        &mut self,
        collection: Collection,
        resource: ApiResource,
        config: watcher::Config,
        object: fn(&ApiResource, K) -> ObjectContent,
    ) where
        K: WatchableKind,
    {
        for (part, namespace) in self.parts(&collection) {
            self.spawn(part, namespace.as_deref(), resource.clone(), config.clone(), object, None);
        }
    }

    /// The collection, or a part for each namespace that is looked at.
    fn parts(&self, collection: &Collection) -> Vec<(Collection, Option<String>)> {
        if self.namespaces.is_empty() {
            return vec![(collection.clone(), None)];
        }
        let part = |namespace: &String| Collection::In(namespace.as_str().into(), Box::new(collection.clone()));
        self.namespaces.iter().map(|namespace| (part(namespace), Some(namespace.clone()))).collect()
    }

    /// Watches a collection of one namespace, or of all.
    fn spawn<K>(
        &mut self,
        collection: Collection,
        namespace: Option<&str>,
        resource: ApiResource,
        config: watcher::Config,
        object: fn(&ApiResource, K) -> ObjectContent,
        definition: Option<String>,
    ) -> AbortHandle
    where
        K: WatchableKind,
    {
        self.awaited.insert(collection.clone());
        let definition = definition.map(|name| (self.client.clone(), name));
        let (client, opened) = checked_client(&self.client, &resource);
        let relist = Arc::new(Notify::new());
        self.relists.insert(collection.clone(), relist.clone());
        let api = match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &resource),
            None => Api::all_with(client, &resource),
        };
        let (session, resync, max_objects) = (self.number, self.resync, self.max_objects);
        let watch = CollectionWatch {
            session,
            collection,
            api,
            opened,
            config,
            object,
            resource,
            definition,
            resync,
            relist,
            max_objects,
        };
        self.tasks.spawn(watch.run(self.tell.clone()))
    }

    /// Asks for a credential whose content is not kept.
    fn ask(&mut self, key: CredentialKey) {
        self.tasks.spawn(fetch_credential::ask(self.client.clone(), key, self.number, self.tell.clone()));
    }

    /// Whether everything was listed once.
    fn is_complete(&self) -> bool {
        self.awaited.is_empty()
    }

    /// Whether the collection was waited for until now.
    fn done(&mut self, collection: &Collection) -> bool {
        self.awaited.remove(collection)
    }

    /// Watches a custom kind that there is now, if the model reads it.
    fn define(&mut self, definition: &schema::CustomResourceDefinition) {
        let name = definition.metadata.name.clone().unwrap_or_default();
        let names = &definition.spec.names;
        let known = |k: &&Kind| k.group() == definition.spec.group && k.as_str() == names.kind;
        let Some(kind) = Kind::ALL.iter().find(known).filter(|_| !self.defined.contains_key(&name)) else { return };
        let serves = |version: &&&str| definition.spec.versions.iter().any(|v| v.served && v.name == **version);
        let Some(version) = kind.versions().iter().find(serves) else { return };
        let resource = resource(kind.group(), version, kind.as_str(), &names.plural);
        let parts = match definition.spec.scope.as_str() {
            "Cluster" => vec![(documents(&resource), None)],
            _ => self.parts(&documents(&resource)),
        };
        let mut tasks = Vec::new();
        for (part, namespace) in parts {
            let (resource, config, defined) = (resource.clone(), watcher::Config::default(), Some(name.clone()));
            let task = self.spawn(part.clone(), namespace.as_deref(), resource, config, document, defined);
            tasks.push((part, task));
        }
        self.defined.insert(name, tasks);
    }

    /// Watches a kind no more; its objects stay as they are known until it is defined again.
    fn undefine(&mut self, definition: &schema::CustomResourceDefinition) {
        self.undefine_named(definition.metadata.name.as_deref().unwrap_or_default());
    }

    fn undefine_named(&mut self, name: &str) {
        let Some(tasks) = self.defined.remove(name) else { return };
        warn!(definition = name, "the kind is gone; keeping its objects");
        for (collection, task) in tasks {
            task.abort();
            self.forget(&collection);
        }
    }

    /// How many kinds are watched, and how many of them a complete list of definitions does not have.
    fn loss_of_definitions(&self, listed: &HashSet<(String, String)>) -> (usize, usize) {
        let gone = self.defined.keys().filter(|name| !listed.contains(&(String::new(), (*name).clone())));
        (self.defined.len(), gone.count())
    }

    fn retain_definitions(&mut self, listed: &HashSet<(String, String)>) {
        let gone: Vec<String> =
            self.defined.keys().filter(|name| !listed.contains(&(String::new(), (*name).clone()))).cloned().collect();
        gone.iter().for_each(|name| self.undefine_named(name));
    }
}

/// Completes when a list must be asked for again, of one round or the other.
async fn listed_again_at(session: &WatchSession, next: Option<&WatchSession>) {
    match [Some(session), next].into_iter().flatten().filter_map(|session| session.guard.due()).min() {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Completes when the mesh names other credentials than before.
async fn named_anew(wanted: &mut Option<watch::Receiver<Option<FetchRequests>>>) -> CredentialRefs {
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

/// One object by its name.
fn named(name: &str) -> watcher::Config {
    watcher::Config::default().fields(&format!("metadata.name={name}"))
}

fn access_to((namespace, name): &SecretName) -> Collection {
    Collection::Access(namespace.as_str().into(), name.as_str().into())
}

fn documents(resource: &ApiResource) -> Collection {
    Collection::Config(resource.api_version.as_str().into(), resource.kind.as_str().into())
}

/// Kinds that every API server has.
fn is_built_in(kind: Kind) -> bool {
    kind.group() == "networking.k8s.io"
}
