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
use model::named::Named;
use model::names::CredentialKey;
use model::problem::Problem;
use model::settings::Settings;
use model::wanted::Wanted;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{interval, sleep_until};
use tracing::{info, warn};

use super::access::Access;
use super::asking;
use super::cluster::{Cluster, Collection, Options};
use super::folder::Folder;
use super::guard::ListGuard;
use super::kubeconfig::KubeconfigEntry;
use super::lists::checked;
use super::outages::{Cause, Outages};
use super::registered::{Registered, SecretName};
use super::remote::{Origin, Remotes};
use super::watching::{Heard, Object, Seen, Watch, Watched, What, definitions, document, resource};
use super::wire::{self, Item};
use crate::source::{Outlet, Source, Stopped};

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
pub struct Manner {
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
    manner: Manner,
    /// Known once the sources of settings are in sync.
    settings: watch::Receiver<Option<Settings>>,
    /// What of the cluster the mesh wants, as far as anybody says so.
    wanted: Option<watch::Receiver<Option<Wanted>>>,
    cluster: Cluster,
    is_primary: bool,
    system_namespace: String,
    remotes: Remotes,
    registered: Registered,
    folder: Option<Folder>,
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
        manner: Manner,
        options: Options,
        settings: watch::Receiver<Option<Settings>>,
        initial: Settings,
    ) -> Kubernetes {
        let folder = manner.registries_folder.as_deref().map(Folder::new);
        let remotes = Remotes::new(access.pace(), manner.clone(), options.clone(), settings.clone(), initial.clone());
        Kubernetes {
            id: SourceId("Kubernetes".into()),
            access,
            manner,
            settings,
            wanted: None,
            is_primary: true,
            system_namespace: options.system_namespace.to_string(),
            cluster: Cluster::new(options, initial),
            remotes,
            registered: Registered::default(),
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
        manner: Manner,
        options: Options,
        settings: watch::Receiver<Option<Settings>>,
        initial: Settings,
        leave: tokio_util::sync::CancellationToken,
    ) -> Kubernetes {
        let id = SourceId(format!("Kubernetes/{}", options.cluster).into());
        let primary = Kubernetes::primary(access, manner, options, settings, initial);
        Kubernetes { id, is_primary: false, leave, folder: None, ..primary }
    }

    /// Keeps the content of those Secrets and ConfigMaps alone that the mesh wants, once that is known.
    pub fn holding(self, wanted: watch::Receiver<Option<Wanted>>) -> Kubernetes {
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

    async fn run(&mut self, outlet: Outlet) -> Result<(), Stopped> {
        let (mut settings, mut wanted) = (self.settings.clone(), self.wanted.clone());
        if settings.wait_for(Option::is_some).await.is_err() {
            return Err(Stopped::Closed);
        }
        self.adopt(&settings);
        let Some(client) = self.client(&outlet).await? else { return self.go(&outlet).await };
        let (tell, mut heard) = mpsc::channel(QUEUE);
        self.look_into_folder(&outlet).await;
        let mut looks = interval(FOLDER);
        let mut round = Round::start(1, client, tell.clone(), self);
        // After new credentials the round before goes on until the new one has listed everything.
        let mut next: Option<Round> = None;
        loop {
            let awaits = !*self.synced.borrow();
            tokio::select! {
                Some(message) = heard.recv() => {
                    let mut left = AT_ONCE;
                    let mut message = Some(message);
                    while let Some(taken) = message {
                        match &mut next {
                            Some(newer) if newer.number == taken.round => self.hear(newer, taken, &outlet),
                            _ if round.number == taken.round => self.hear(&mut round, taken, &outlet),
                            _ => {}
                        }
                        left -= 1;
                        message = if left == 0 { None } else { heard.try_recv().ok() };
                    }
                }
                changed = settings.changed() => match changed {
                    Ok(()) => self.adopt(&settings),
                    Err(_) => return Err(Stopped::Closed),
                },
                named = named_anew(&mut wanted) => {
                    for key in self.cluster.want(named) {
                        round.ask(key);
                    }
                }
                () = self.access.changed() => match self.access.client().await {
                    Ok(client) => {
                        info!(source = %self.id.0, "new credentials");
                        let number = next.as_ref().unwrap_or(&round).number + 1;
                        next = Some(Round::start(number, client, tell.clone(), self));
                    }
                    Err(reason) => warn!(source = %self.id.0, reason, "keeping the old credentials"),
                },
                () = listed_again_at(&round, next.as_ref()) => {
                    round.list_held_again();
                    next.iter_mut().for_each(Round::list_held_again);
                }
                _ = looks.tick(), if self.folder.is_some() => self.look_into_folder(&outlet).await,
                () = self.leave.cancelled() => return self.go(&outlet).await,
                () = tokio::time::sleep(LOOK), if awaits => {}
            }
            if next.as_ref().is_some_and(Round::is_complete)
                && let Some(newer) = next.take()
            {
                round = newer;
            }
            self.tell(&round, &outlet).await?;
        }
    }
}

impl Kubernetes {
    /// A client. For a further cluster it is waited for credentials that can be used; none where it leaves before.
    async fn client(&mut self, outlet: &Outlet) -> Result<Option<Client>, Stopped> {
        loop {
            let failure = match self.access.client().await {
                Ok(client) => {
                    self.is_refused.send_replace(false);
                    return Ok(Some(client));
                }
                Err(reason) => format!("could not set up a client for {}: {reason}", self.id.0),
            };
            if self.is_primary {
                return Err(Stopped::Failed(failure));
            }
            warn!(source = %self.id.0, error = failure, "waiting for other credentials");
            outlet.health().lost(failure);
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
    async fn look_into_folder(&mut self, outlet: &Outlet) {
        let Some(before) = self.folder.clone() else { return };
        let read = tokio::task::spawn_blocking(move || before.read()).await;
        // It does not panic; if it did, the next look would tell.
        let Some(now) = read.ok().filter(|now| self.folder.as_ref() != Some(now)) else { return };
        self.remotes.apply(Origin::Folder, &now.kubeconfigs(), outlet);
        self.cluster.note("folder of clusters", now.problems());
        self.folder = Some(now);
    }

    /// Tells what is to be told, once there is all of it.
    async fn tell(&mut self, round: &Round, outlet: &Outlet) -> Result<(), Stopped> {
        if let Some(problems) = self.remotes.new_problems() {
            self.cluster.note("kubeconfigs", problems);
        }
        let problems = round.problems(self.cluster.name());
        self.cluster.note("answers", problems);
        if *self.synced.borrow() {
            return outlet.send(self.cluster.changes()).await;
        }
        if !round.is_complete() || !self.remotes.are_settled() {
            return Ok(());
        }
        self.cluster.pack();
        let mut changes = self.cluster.changes();
        changes.push(Change::Synced);
        outlet.send(changes).await?;
        self.synced.send_replace(true);
        Ok(())
    }

    /// Takes back all that was told.
    async fn go(&mut self, outlet: &Outlet) -> Result<(), Stopped> {
        self.cluster.clear();
        outlet.send(self.cluster.changes()).await
    }

    fn hear(&mut self, round: &mut Round, heard: Heard, outlet: &Outlet) {
        let collection = heard.collection;
        let was_hidden = round.hides_something();
        // A list that is not complete may be one that fails.
        if !matches!(heard.what, What::Failed { .. } | What::Begun | What::Listed(_)) {
            round.outages.end(&self.id, &collection);
        }
        match heard.what {
            What::Begun => _ = round.listing.insert(collection, HashSet::new()),
            What::Reopened => {}
            What::Supplied(Seen { object: Object::Item(item), .. }) => self.cluster.supply(&item),
            What::Supplied(_) => {}
            What::Listed(seen) => {
                if let Some(listed) = round.listing.get_mut(&collection) {
                    listed.insert((seen.namespace.clone(), seen.name.clone()));
                }
                self.take(round, &collection, seen, outlet);
            }
            What::Complete => {
                let listed = round.listing.remove(&collection).unwrap_or_default();
                self.complete(round, &collection, &listed, outlet);
                // What found no room finds it now.
                if round.full.contains(&collection) && self.cluster.has_room(&collection, "", "", round.max_objects) {
                    round.full.remove(&collection);
                    round.list_again(&collection);
                }
                round.done(&collection);
            }
            What::Applied(seen) => self.take(round, &collection, seen, outlet),
            What::Deleted(seen) => self.forget(round, &collection, seen, outlet),
            What::Failed { message, code, is_wrong } => {
                // What is not allowed or not there is not waited for.
                let cause = match is_wrong {
                    true => Cause::WrongAnswer,
                    false if matches!(code, 403 | 404) && round.done(&collection) => Cause::Refused,
                    false => Cause::Failure,
                };
                round.outages.fail(&self.id, &collection, cause, &message);
                if !round.outages.is_refused(&collection) {
                    outlet.health().lost(message);
                }
            }
        }
        if was_hidden && !round.hides_something() {
            outlet.health().regained();
        }
    }

    fn take(&mut self, round: &mut Round, collection: &Collection, seen: Seen, outlet: &Outlet) {
        match seen.object {
            Object::Item(_) if !self.cluster.has_room(collection, &seen.namespace, &seen.name, round.max_objects) => {
                round.full.insert(collection.clone());
            }
            Object::Item(item) => self.cluster.apply(item),
            Object::Definition(definition) if definition.is_usable() => round.define(&definition),
            Object::Definition(definition) => round.undefine(&definition),
            Object::Remote(secret) => {
                let entries = kubeconfigs(&seen.namespace, &seen.name, secret.data);
                self.remotes.apply(Origin::Secret(seen.namespace, seen.name), &entries, outlet);
            }
            Object::Registry(map) => {
                self.registered.put(&map.data);
                self.follow_registered(round, outlet);
            }
            Object::Access(secret) => {
                self.registered.put_secret(&(seen.namespace, seen.name), Some(secret.data));
                self.follow_registered(round, outlet);
            }
        }
    }

    fn forget(&mut self, round: &mut Round, collection: &Collection, seen: Seen, outlet: &Outlet) {
        match seen.object {
            Object::Item(_) => self.cluster.delete(collection, &seen.namespace, &seen.name),
            Object::Definition(definition) => round.undefine(&definition),
            Object::Remote(_) => self.remotes.delete(&Origin::Secret(seen.namespace, seen.name)),
            Object::Registry(_) | Object::Access(_) => self.retain(round, collection, &HashSet::new(), outlet),
        }
    }

    /// Believes a complete list, unless it takes away nearly all that is known.
    fn complete(
        &mut self,
        round: &mut Round,
        collection: &Collection,
        listed: &HashSet<(String, String)>,
        outlet: &Outlet,
    ) {
        let (known, lost) = match collection {
            Collection::Definition => round.loss_of_definitions(listed),
            Collection::Remote => self.remotes.loss(listed),
            Collection::Registry => (self.registered.len(), if listed.is_empty() { self.registered.len() } else { 0 }),
            _ => self.cluster.loss(collection, listed),
        };
        if round.guard.believes(collection, known, lost) {
            return self.retain(round, collection, listed, outlet);
        }
        outlet.health().lost(format!("a list of {collection} lacks {lost} of {known} known objects; keeping them"));
    }

    /// Forgets what a complete list does not have.
    fn retain(
        &mut self,
        round: &mut Round,
        collection: &Collection,
        listed: &HashSet<(String, String)>,
        outlet: &Outlet,
    ) {
        match collection {
            Collection::Definition => round.retain_definitions(listed),
            Collection::Remote => self.remotes.retain(listed),
            Collection::Registry if listed.is_empty() => {
                self.registered.put(&BTreeMap::new());
                self.follow_registered(round, outlet);
            }
            Collection::Access(namespace, name) if listed.is_empty() => {
                self.registered.put_secret(&(namespace.to_string(), name.to_string()), None);
                self.follow_registered(round, outlet);
            }
            _ => self.cluster.retain(collection, listed),
        }
    }

    /// Watches the Secrets that the ConfigMap of clusters names, and the clusters that they open.
    fn follow_registered(&mut self, round: &mut Round, outlet: &Outlet) {
        round.watch_secrets(&self.registered.secrets());
        self.remotes.apply(Origin::ConfigMap, &self.registered.kubeconfigs(), outlet);
        self.cluster.note("clusters", self.registered.problems());
    }
}

/// The watches that stand on one set of credentials. They end when it is dropped.
struct Round {
    number: u64,
    client: Client,
    resync: Option<Duration>,
    namespaces: BTreeSet<String>,
    tell: mpsc::Sender<Heard>,
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

impl Round {
    fn start(number: u64, client: Client, tell: mpsc::Sender<Heard>, of: &Kubernetes) -> Round {
        let mut round = Round {
            number,
            client,
            resync: of.manner.resync,
            namespaces: of.manner.namespaces.clone(),
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
        round.watch(Collection::Namespace, core("Namespace", "namespaces"), plain(), |_, n: wire::NamespaceObject| {
            Object::Item(Item::Namespace(n))
        });
        round.watch_parts(Collection::Service, core("Service", "services"), plain(), |_, s: wire::Service| {
            Object::Item(Item::Service(Box::new(s)))
        });
        round.watch_parts(
            Collection::Pod,
            core("Pod", "pods"),
            plain().fields("status.phase!=Failed"),
            |_, p: wire::Pod| Object::Item(Item::Pod(Box::new(p))),
        );
        round.watch(Collection::Node, core("Node", "nodes"), plain(), |_, n: wire::Node| Object::Item(Item::Node(n)));
        let slices = resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices");
        round.watch_parts(Collection::EndpointSlice, slices, plain(), |_, s: wire::EndpointSlice| {
            Object::Item(Item::EndpointSlice(s))
        });
        if of.is_primary {
            round.start_config(of);
            round.start_registries(&of.manner, &of.system_namespace);
        }
        round
    }

    /// Watches what only the cluster with configuration is read for.
    fn start_config(&mut self, of: &Kubernetes) {
        let plain = watcher::Config::default;
        let core = |kind: &str, plural: &str| resource("", "v1", kind, plural);
        self.watch_parts(
            Collection::Secret,
            core("Secret", "secrets"),
            plain().fields(USABLE_SECRETS),
            |_, s: wire::Holding| Object::Item(Item::Secret(s)),
        );
        let maps = core("ConfigMap", "configmaps");
        self.watch_parts(Collection::ConfigMap, maps.clone(), plain(), |_, c: wire::Holding| {
            Object::Item(Item::ConfigMap(c))
        });
        if let Some(name) = of.cluster.mesh_config().filter(|_| !self.watches(&of.system_namespace)) {
            let place = Some(of.system_namespace.as_str());
            self.spawn(Collection::Mesh, place, maps, named(name), |_, c| Object::Item(Item::ConfigMap(c)), None);
        }
        self.watch(Collection::Definition, definitions(), plain(), |_, d: wire::Definition| {
            Object::Definition(Box::new(d))
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
    fn start_registries(&mut self, manner: &Manner, system_namespace: &str) {
        let namespace = manner.registries_namespace.as_deref().unwrap_or(system_namespace);
        let secrets = resource("", "v1", "Secret", "secrets");
        let config = watcher::Config::default().labels("istio/multiCluster=true");
        self.spawn(Collection::Remote, Some(namespace), secrets, config, |_, s| Object::Remote(s), None);
        if let Some(name) = &manner.registries_config_map {
            let maps = resource("", "v1", "ConfigMap", "configmaps");
            self.spawn(Collection::Registry, Some(namespace), maps, named(name), |_, m| Object::Registry(m), None);
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
            let task =
                self.spawn(access_to(name), Some(&name.0), secrets, named(&name.1), |_, s| Object::Access(s), None);
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
            Problem::warning(format!("cluster {cluster}"), message)
        });
        self.outages.problems(cluster).chain(self.guard.problems(cluster)).chain(full).collect()
    }

    fn watch<K>(
        &mut self,
        collection: Collection,
        resource: ApiResource,
        config: watcher::Config,
        object: fn(&ApiResource, K) -> Object,
    ) where
        K: Watched,
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
        object: fn(&ApiResource, K) -> Object,
    ) where
        K: Watched,
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
        object: fn(&ApiResource, K) -> Object,
        definition: Option<String>,
    ) -> AbortHandle
    where
        K: Watched,
    {
        self.awaited.insert(collection.clone());
        let definition = definition.map(|name| (self.client.clone(), name));
        let (client, opened) = checked(&self.client, &resource);
        let relist = Arc::new(Notify::new());
        self.relists.insert(collection.clone(), relist.clone());
        let api = match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &resource),
            None => Api::all_with(client, &resource),
        };
        let (round, resync, max_objects) = (self.number, self.resync, self.max_objects);
        let watch =
            Watch { round, collection, api, opened, config, object, resource, definition, resync, relist, max_objects };
        self.tasks.spawn(watch.run(self.tell.clone()))
    }

    /// Asks for a credential whose content is not kept.
    fn ask(&mut self, key: CredentialKey) {
        self.tasks.spawn(asking::ask(self.client.clone(), key, self.number, self.tell.clone()));
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
    fn define(&mut self, definition: &wire::Definition) {
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
    fn undefine(&mut self, definition: &wire::Definition) {
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
async fn listed_again_at(round: &Round, next: Option<&Round>) {
    match [Some(round), next].into_iter().flatten().filter_map(|round| round.guard.due()).min() {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Completes when the mesh names other credentials than before.
async fn named_anew(wanted: &mut Option<watch::Receiver<Option<Wanted>>>) -> Named {
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
