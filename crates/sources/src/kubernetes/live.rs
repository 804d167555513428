//! A Kubernetes cluster as a source: watches feed the pure join, the join's changes go out. Nothing is told
//! before everything was listed once, and nothing is taken back because the API server cannot be reached.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

use kube::api::{Api, DynamicObject};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, Resource};
use kube::runtime::watcher;
use kube::{Client, Config};
use model::change::{Change, SourceId};
use model::config::Kind;
use model::settings::Settings;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::client::client;
use super::cluster::{Cluster, Collection, Options};
use super::remote::Remotes;
use super::watching::{Heard, Object, Seen, Watch, What, definitions, document, resource};
use super::wire::{self, Item};
use crate::source::{Outlet, Source, Stopped};

/// Messages that wait between watches and the join.
const QUEUE: usize = 4096;
/// Messages taken in at most before changes are told.
const AT_ONCE: usize = 8192;
/// How often the wait for everything to be listed is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// Secrets that a proxy can have a use for: no releases of Helm, and no tokens, each of which has an authority beside it.
const USABLE_SECRETS: &str = "type!=helm.sh/release.v1,type!=kubernetes.io/service-account-token";

/// How the API server is reached.
#[derive(Clone, Debug)]
pub enum Access {
    /// As a pod of the cluster.
    InCluster,
    Kubeconfig(PathBuf),
    /// The text of a kubeconfig; a new text is new credentials.
    Told(watch::Receiver<String>),
}

impl Access {
    pub(crate) async fn client(&mut self) -> Result<Client, String> {
        let text = |e: &dyn std::fmt::Display| e.to_string();
        let kubeconfig = match self {
            Access::InCluster => {
                return client(Config::incluster().map_err(|e| text(&e))?);
            }
            Access::Kubeconfig(path) => Kubeconfig::read_from(&*path).map_err(|e| text(&e))?,
            Access::Told(told) => Kubeconfig::from_yaml(&told.borrow_and_update()).map_err(|e| text(&e))?,
        };
        let options = KubeConfigOptions::default();
        client(Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|e| text(&e))?)
    }

    /// Completes when there are new credentials.
    async fn changed(&mut self) {
        if let Access::Told(told) = self
            && told.changed().await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }
}

/// One cluster.
pub struct Kubernetes {
    id: SourceId,
    access: Access,
    /// Known once the sources of settings are in sync.
    settings: watch::Receiver<Option<Settings>>,
    cluster: Cluster,
    is_primary: bool,
    system_namespace: String,
    remotes: Remotes,
    /// Told once everything was listed.
    synced: watch::Sender<bool>,
    leave: tokio_util::sync::CancellationToken,
}

impl Kubernetes {
    /// The cluster that holds configuration too. Clusters that its Secrets name are watched beside it.
    pub fn primary(
        access: Access,
        options: Options,
        settings: watch::Receiver<Option<Settings>>,
        initial: Settings,
    ) -> Kubernetes {
        let remotes = Remotes::new(options.clone(), settings.clone(), initial.clone());
        Kubernetes {
            id: SourceId("Kubernetes".into()),
            access,
            settings,
            is_primary: true,
            system_namespace: options.system_namespace.to_string(),
            cluster: Cluster::new(options, initial),
            remotes,
            synced: watch::Sender::new(false),
            leave: Default::default(),
        }
    }

    /// A further cluster, of which only services and workloads count. It goes with all that it told when
    /// `leave` is cancelled.
    pub(super) fn further(
        access: Access,
        options: Options,
        settings: watch::Receiver<Option<Settings>>,
        initial: Settings,
        leave: tokio_util::sync::CancellationToken,
    ) -> Kubernetes {
        let id = SourceId(format!("Kubernetes/{}", options.cluster).into());
        let primary = Kubernetes::primary(access, options, settings, initial);
        Kubernetes { id, is_primary: false, leave, ..primary }
    }

    /// Tells when everything was listed once.
    pub fn synced(&self) -> watch::Receiver<bool> {
        self.synced.subscribe()
    }
}

impl Source for Kubernetes {
    fn id(&self) -> SourceId {
        self.id.clone()
    }

    async fn run(&mut self, outlet: Outlet) -> Result<(), Stopped> {
        let mut settings = self.settings.clone();
        if settings.wait_for(Option::is_some).await.is_err() {
            return Err(Stopped::Closed);
        }
        self.adopt(&settings);
        let client = self.access.client().await.map_err(|reason| unreachable(&self.id, reason))?;
        let (tell, mut heard) = mpsc::channel(QUEUE);
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
                () = self.access.changed() => match self.access.client().await {
                    Ok(client) => {
                        info!(source = %self.id.0, "new credentials");
                        let number = next.as_ref().unwrap_or(&round).number + 1;
                        next = Some(Round::start(number, client, tell.clone(), self));
                    }
                    Err(reason) => warn!(source = %self.id.0, reason, "keeping the old credentials"),
                },
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
    fn adopt(&mut self, settings: &watch::Receiver<Option<Settings>>) {
        if let Some(settings) = &*settings.borrow() {
            self.cluster.adopt(settings.clone());
        }
    }

    /// Tells what is to be told, once there is all of it.
    async fn tell(&mut self, round: &Round, outlet: &Outlet) -> Result<(), Stopped> {
        if *self.synced.borrow() {
            return outlet.send(self.cluster.changes()).await;
        }
        if !round.is_complete() || !self.remotes.are_settled() {
            return Ok(());
        }
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
        if !matches!(heard.what, What::Failed { .. }) && round.failing.remove(&collection) && round.failing.is_empty() {
            outlet.health().regained();
        }
        match heard.what {
            What::Begun => _ = round.listing.insert(collection, HashSet::new()),
            What::Listed(seen) => {
                if let Some(listed) = round.listing.get_mut(&collection) {
                    listed.insert((seen.namespace.clone(), seen.name.clone()));
                }
                self.take(round, seen, outlet);
            }
            What::Complete => {
                let listed = round.listing.remove(&collection).unwrap_or_default();
                self.complete(round, &collection, &listed);
                round.done(&collection);
            }
            What::Applied(seen) => self.take(round, seen, outlet),
            What::Deleted(seen) => self.forget(round, &collection, seen),
            What::Failed { message, code } => {
                // What is not allowed or not there is not waited for.
                if matches!(code, 403 | 404) {
                    if round.done(&collection) {
                        warn!(source = %self.id.0, collection = ?collection, message, "not watched");
                    }
                    return;
                }
                if round.failing.insert(collection.clone()) {
                    warn!(source = %self.id.0, collection = ?collection, message, "keeping what is known");
                }
                outlet.health().lost(message);
            }
        }
    }

    fn take(&mut self, round: &mut Round, seen: Seen, outlet: &Outlet) {
        match seen.object {
            Object::Item(item) => self.cluster.apply(item),
            Object::Definition(definition) if definition.is_usable() => round.define(&definition),
            Object::Definition(definition) => round.undefine(&definition),
            Object::Remote(secret) => self.remotes.apply(&seen.name, &secret.data, outlet),
        }
    }

    fn forget(&mut self, round: &mut Round, collection: &Collection, seen: Seen) {
        match seen.object {
            Object::Item(_) => self.cluster.delete(collection, &seen.namespace, &seen.name),
            Object::Definition(definition) => round.undefine(&definition),
            Object::Remote(_) => self.remotes.delete(&seen.name),
        }
    }

    fn complete(&mut self, round: &mut Round, collection: &Collection, listed: &HashSet<(String, String)>) {
        match collection {
            Collection::Definition => round.retain_definitions(listed),
            Collection::Remote => self.remotes.retain(listed),
            _ => self.cluster.retain(collection, listed),
        }
    }
}

/// The watches that stand on one set of credentials. They end when it is dropped.
struct Round {
    number: u64,
    client: Client,
    tell: mpsc::Sender<Heard>,
    tasks: JoinSet<()>,
    /// Lists that have begun and are not complete.
    listing: BTreeMap<Collection, HashSet<(String, String)>>,
    /// Collections that have not been listed once.
    awaited: BTreeSet<Collection>,
    failing: BTreeSet<Collection>,
    /// Watches of custom kinds, by the name of their definition.
    defined: BTreeMap<String, (Collection, tokio::task::AbortHandle)>,
}

impl Round {
    fn start(number: u64, client: Client, tell: mpsc::Sender<Heard>, of: &Kubernetes) -> Round {
        let mut round = Round {
            number,
            client,
            tell,
            tasks: JoinSet::new(),
            listing: BTreeMap::new(),
            awaited: BTreeSet::new(),
            failing: BTreeSet::new(),
            defined: BTreeMap::new(),
        };
        let plain = watcher::Config::default;
        let core = |kind: &str, plural: &str| resource("", "v1", kind, plural);
        round.watch(Collection::Namespace, core("Namespace", "namespaces"), plain(), |_, n: wire::NamespaceObject| {
            Object::Item(Item::Namespace(n))
        });
        round.watch(Collection::Service, core("Service", "services"), plain(), |_, s: wire::Service| {
            Object::Item(Item::Service(Box::new(s)))
        });
        round.watch(Collection::Pod, core("Pod", "pods"), plain().fields("status.phase!=Failed"), |_, p: wire::Pod| {
            Object::Item(Item::Pod(Box::new(p)))
        });
        round.watch(Collection::Node, core("Node", "nodes"), plain(), |_, n: wire::Node| Object::Item(Item::Node(n)));
        let slices = resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices");
        round.watch(Collection::EndpointSlice, slices, plain(), |_, s: wire::EndpointSlice| {
            Object::Item(Item::EndpointSlice(s))
        });
        if of.is_primary {
            round.start_config(&of.system_namespace);
        }
        round
    }

    /// Watches what only the cluster with configuration is read for.
    fn start_config(&mut self, system_namespace: &str) {
        let plain = watcher::Config::default;
        let core = |kind: &str, plural: &str| resource("", "v1", kind, plural);
        self.watch(
            Collection::Secret,
            core("Secret", "secrets"),
            plain().fields(USABLE_SECRETS),
            |_, s: wire::Holding| Object::Item(Item::Secret(s)),
        );
        self.watch(Collection::ConfigMap, core("ConfigMap", "configmaps"), plain(), |_, c: wire::Holding| {
            Object::Item(Item::ConfigMap(c))
        });
        self.watch(Collection::Definition, definitions(), plain(), |_, d: wire::Definition| {
            Object::Definition(Box::new(d))
        });
        for kind in Kind::ALL.iter().filter(|kind| is_built_in(**kind)) {
            let resource = resource(kind.group(), kind.versions()[0], kind.as_str(), kind.plural());
            self.watch(documents(&resource), resource, plain(), document);
        }
        let secrets = core("Secret", "secrets");
        let api: Api<wire::Holding> = Api::namespaced_with(self.client.clone(), system_namespace, &secrets);
        let config = plain().labels("istio/multiCluster=true");
        self.spawn(Collection::Remote, api, secrets, config, |_, s| Object::Remote(s), None);
    }

    fn watch<K>(
        &mut self,
        collection: Collection,
        resource: ApiResource,
        config: watcher::Config,
        object: fn(&ApiResource, K) -> Object,
    ) where
        K: Resource<DynamicType = ApiResource> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        let api = Api::all_with(self.client.clone(), &resource);
        self.spawn(collection, api, resource, config, object, None);
    }

    fn spawn<K>(
        &mut self,
        collection: Collection,
        api: Api<K>,
        resource: ApiResource,
        config: watcher::Config,
        object: fn(&ApiResource, K) -> Object,
        definition: Option<String>,
    ) -> tokio::task::AbortHandle
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        self.awaited.insert(collection.clone());
        let definition = definition.map(|name| (self.client.clone(), name));
        let watch = Watch { round: self.number, collection, api, config, object, resource, definition };
        self.tasks.spawn(watch.run(self.tell.clone()))
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
        let collection = documents(&resource);
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let config = watcher::Config::default();
        let task = self.spawn(collection.clone(), api, resource, config, document, Some(name.clone()));
        self.defined.insert(name, (collection, task));
    }

    /// Watches a kind no more; its objects stay as they are known until it is defined again.
    fn undefine(&mut self, definition: &wire::Definition) {
        self.undefine_named(definition.metadata.name.as_deref().unwrap_or_default());
    }

    fn undefine_named(&mut self, name: &str) {
        let Some((collection, task)) = self.defined.remove(name) else { return };
        task.abort();
        warn!(definition = name, "the kind is gone; keeping its objects");
        self.awaited.remove(&collection);
        self.listing.remove(&collection);
        self.failing.remove(&collection);
    }

    fn retain_definitions(&mut self, listed: &HashSet<(String, String)>) {
        let gone: Vec<String> =
            self.defined.keys().filter(|name| !listed.contains(&(String::new(), (*name).clone()))).cloned().collect();
        gone.iter().for_each(|name| self.undefine_named(name));
    }
}

fn documents(resource: &ApiResource) -> Collection {
    Collection::Config(resource.api_version.as_str().into(), resource.kind.as_str().into())
}

/// Kinds that every API server has.
fn is_built_in(kind: Kind) -> bool {
    kind.group() == "networking.k8s.io"
}

fn unreachable(id: &SourceId, reason: String) -> Stopped {
    Stopped::Failed(format!("could not set up a client for {}: {reason}", id.0))
}
