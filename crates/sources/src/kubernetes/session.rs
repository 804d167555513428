//! The watches of one cluster that share one set of credentials. After new credentials a new session starts, and the
//! old one ends when the new one has listed everything.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::api::Api;
use kube::core::ApiResource;
use kube::runtime::watcher;
use model::config::Kind;
use model::names::CredentialKey;
use model::problem::{Problem, Subject};
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tracing::warn;

use super::checked_client::checked_client;
use super::cluster_registry::SecretName;
use super::collection::Collection;
use super::fetch_credential;
use super::guard::ListGuard;
use super::join::ClusterState;
use super::join::revisions::{DEFAULT_VALIDATOR, TAG};
use super::outages::Outages;
use super::schema::{self, ClusterObject};
use super::watch::{CollectionWatch, ObjectContent, WatchMessage, WatchableKind, definitions, document, resource};

/// Secrets that a proxy can use: no Helm releases, and no service account tokens, although these contain a CA certificate.
const USABLE_SECRETS: &str = "type!=helm.sh/release.v1,type!=kubernetes.io/service-account-token";

/// What is watched and how often it is listed.
#[derive(Clone, Debug, Default)]
pub struct WatchOptions {
    /// How often every collection is listed again and compared; `None` for never.
    pub resync: Option<Duration>,
    /// The namespace of the Secrets and of the ConfigMap that name remote clusters; `None` for the system namespace.
    pub registries_namespace: Option<String>,
    /// The ConfigMap that names remote clusters, in the format of Pilot 0.8.
    pub registries_config_map: Option<String>,
    /// A folder of files that name remote clusters.
    pub registries_folder: Option<PathBuf>,
    /// Namespaces to watch; empty for all. Cluster-scoped objects are always watched.
    pub namespaces: BTreeSet<String>,
}

/// All watches of one cluster. They end when the session is dropped.
pub(super) struct WatchSession {
    pub(super) number: u64,
    client: Client,
    resync: Option<Duration>,
    namespaces: BTreeSet<String>,
    messages: mpsc::Sender<WatchMessage>,
    tasks: JoinSet<()>,
    /// Names of the objects listed so far, for each list that is not complete.
    pub(super) listing: BTreeMap<Collection, HashSet<(String, String)>>,
    /// Collections whose first list is not complete.
    awaited: BTreeSet<Collection>,
    pub(super) outages: Outages,
    pub(super) guard: ListGuard,
    /// Makes a watch list its collection again.
    relists: BTreeMap<Collection, Arc<Notify>>,
    /// The most objects kept of one collection.
    pub(super) max_objects: usize,
    /// Collections that have more.
    pub(super) full: BTreeSet<Collection>,
    /// Watches of custom kinds, by the name of their CustomResourceDefinition.
    defined: BTreeMap<String, Vec<(Collection, AbortHandle)>>,
    /// Watches of the Secrets that the ConfigMap of clusters names.
    secrets: BTreeMap<SecretName, AbortHandle>,
}

impl WatchSession {
    pub(super) fn start(
        number: u64,
        client: Client,
        messages: mpsc::Sender<WatchMessage>,
        options: &WatchOptions,
        cluster: &ClusterState,
    ) -> WatchSession {
        let knobs = cluster.knobs();
        let mut session = WatchSession {
            number,
            client,
            resync: options.resync,
            namespaces: options.namespaces.clone(),
            messages,
            tasks: JoinSet::new(),
            listing: BTreeMap::new(),
            awaited: BTreeSet::new(),
            outages: Outages::default(),
            guard: ListGuard::new(Duration::from_millis(knobs.hold_losses.0)),
            relists: BTreeMap::new(),
            max_objects: knobs.max_kubernetes_objects.try_into().unwrap_or(usize::MAX),
            full: BTreeSet::new(),
            defined: BTreeMap::new(),
            secrets: BTreeMap::new(),
        };
        session.watch_workloads();
        if cluster.options().is_primary {
            session.watch_config(cluster);
            session.watch_cluster_registries(options, &cluster.options().system_namespace);
        }
        session
    }

    /// Watches services and workloads, which are read from every cluster.
    fn watch_workloads(&mut self) {
        let all = watcher::Config::default;
        self.watch(Collection::Namespace, core("Namespace", "namespaces"), all(), |_, n: schema::NamespaceObject| {
            ObjectContent::Item(ClusterObject::Namespace(n))
        });
        self.watch_namespaced(
            Collection::Service,
            core("Service", "services"),
            all(),
            |_, s: schema::ServiceObject| ObjectContent::Item(ClusterObject::Service(Box::new(s))),
        );
        self.watch_namespaced(
            Collection::Pod,
            core("Pod", "pods"),
            all().fields("status.phase!=Failed"),
            |_, p: schema::PodObject| ObjectContent::Item(ClusterObject::Pod(Box::new(p))),
        );
        self.watch(Collection::Node, core("Node", "nodes"), all(), |_, n: schema::NodeObject| {
            ObjectContent::Item(ClusterObject::Node(n))
        });
        let slices = resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices");
        self.watch_namespaced(Collection::EndpointSlice, slices, all(), |_, s: schema::EndpointSlice| {
            ObjectContent::Item(ClusterObject::EndpointSlice(s))
        });
    }

    /// Watches configuration, which is read from the primary cluster only.
    fn watch_config(&mut self, cluster: &ClusterState) {
        let all = watcher::Config::default;
        self.watch_namespaced(
            Collection::Secret,
            core("Secret", "secrets"),
            all().fields(USABLE_SECRETS),
            |_, s: schema::DataObject| ObjectContent::Item(ClusterObject::Secret(s)),
        );
        let maps = core("ConfigMap", "configmaps");
        self.watch_namespaced(Collection::ConfigMap, maps.clone(), all(), |_, c: schema::DataObject| {
            ObjectContent::Item(ClusterObject::ConfigMap(c))
        });
        let options = cluster.options();
        if !options.revision.is_empty() {
            self.watch_revisions();
        }
        if let Some(name) = options.mesh_config.as_ref().filter(|_| !self.watches(&options.system_namespace)) {
            let (namespace, config) = (Some(&*options.system_namespace), by_name(name));
            let content = |_: &ApiResource, c| ObjectContent::Item(ClusterObject::ConfigMap(c));
            self.spawn(Collection::Mesh, namespace, maps, config, content, None);
        }
        self.watch(Collection::Definition, definitions(), all(), |_, d: schema::CustomResourceDefinition| {
            ObjectContent::Definition(Box::new(d))
        });
        for kind in Kind::ALL.iter().filter(|kind| is_built_in(**kind)) {
            let resource = resource(kind.group(), kind.versions()[0], kind.as_str(), kind.plural());
            match kind {
                Kind::IngressClass => self.watch(documents(&resource), resource, all(), document),
                _ => self.watch_namespaced(documents(&resource), resource, all(), document),
            }
        }
    }

    /// Watches the webhook configurations that define tags of revisions and the default revision.
    fn watch_revisions(&mut self) {
        let webhooks = |kind: &str, plural: &str| resource("admissionregistration.k8s.io", "v1", kind, plural);
        self.watch(
            Collection::RevisionTag,
            webhooks("MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
            watcher::Config::default().labels(TAG),
            |_, w: schema::WebhookObject| ObjectContent::Item(ClusterObject::RevisionTag(w)),
        );
        self.watch(
            Collection::DefaultRevision,
            webhooks("ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
            by_name(DEFAULT_VALIDATOR),
            |_, w: schema::WebhookObject| ObjectContent::Item(ClusterObject::DefaultRevision(w)),
        );
    }

    /// Watches the objects that name remote clusters.
    fn watch_cluster_registries(&mut self, options: &WatchOptions, system_namespace: &str) {
        let namespace = options.registries_namespace.as_deref().unwrap_or(system_namespace);
        let config = watcher::Config::default().labels("istio/multiCluster=true");
        let secrets = core("Secret", "secrets");
        self.spawn(Collection::Remote, Some(namespace), secrets, config, |_, s| ObjectContent::Remote(s), None);
        if let Some(name) = &options.registries_config_map {
            let (maps, config) = (core("ConfigMap", "configmaps"), by_name(name));
            self.spawn(Collection::Registry, Some(namespace), maps, config, |_, m| ObjectContent::Registry(m), None);
        }
    }

    /// Watches exactly these Secrets with kubeconfigs.
    pub(super) fn watch_secrets(&mut self, wanted: &BTreeSet<SecretName>) {
        let gone: Vec<SecretName> = self.secrets.keys().filter(|name| !wanted.contains(*name)).cloned().collect();
        for name in gone {
            if let Some(task) = self.secrets.remove(&name) {
                task.abort();
            }
            self.forget(&kubeconfig_secret(&name));
        }
        let new: Vec<&SecretName> = wanted.iter().filter(|name| !self.secrets.contains_key(*name)).collect();
        for name in new {
            let (secrets, config) = (core("Secret", "secrets"), by_name(&name.1));
            let content = |_: &ApiResource, s| ObjectContent::Access(s);
            let task = self.spawn(kubeconfig_secret(name), Some(&name.0), secrets, config, content, None);
            self.secrets.insert(name.clone(), task);
        }
    }

    /// Drops the state of a collection that is no longer watched.
    fn forget(&mut self, collection: &Collection) {
        self.awaited.remove(collection);
        self.listing.remove(collection);
        self.outages.forget(collection);
        self.guard.forget(collection);
        self.relists.remove(collection);
        self.full.remove(collection);
    }

    /// Whether the known objects may differ from those in the API server: a watch fails, or a list is held back.
    pub(super) fn is_degraded(&self) -> bool {
        self.outages.has_failures() || self.guard.holds_any()
    }

    /// Lists the held back collections that are due.
    pub(super) fn relist_held(&mut self) {
        for collection in self.guard.take_due() {
            self.relist(&collection);
        }
    }

    pub(super) fn relist(&self, collection: &Collection) {
        if let Some(relist) = self.relists.get(collection) {
            relist.notify_one();
        }
    }

    /// Problems with the responses of the API server.
    pub(super) fn problems(&self, cluster: &str) -> Vec<Problem> {
        let full = self.full.iter().map(|collection| {
            let message = format!(
                "more than {} objects of {collection}: further ones are ignored (PILOTAGE_KUBERNETES_MAX_OBJECTS)",
                self.max_objects
            );
            Problem::warning(Subject::Cluster(cluster.into()), message)
        });
        self.outages.problems(cluster).chain(self.guard.problems(cluster)).chain(full).collect()
    }

    fn watch<K: WatchableKind>(
        &mut self,
        collection: Collection,
        resource: ApiResource,
        config: watcher::Config,
        content: fn(&ApiResource, K) -> ObjectContent,
    ) {
        self.spawn(collection, None, resource, config, content, None);
    }

    /// Whether objects of this namespace are watched.
    fn watches(&self, namespace: &str) -> bool {
        self.namespaces.is_empty() || self.namespaces.contains(namespace)
    }

    /// Watches a collection in the watched namespaces.
    fn watch_namespaced<K: WatchableKind>(
        &mut self,
        collection: Collection,
        resource: ApiResource,
        config: watcher::Config,
        content: fn(&ApiResource, K) -> ObjectContent,
    ) {
        for (part, namespace) in self.parts(&collection) {
            self.spawn(part, namespace.as_deref(), resource.clone(), config.clone(), content, None);
        }
    }

    /// The whole collection, or one part for each watched namespace.
    fn parts(&self, collection: &Collection) -> Vec<(Collection, Option<String>)> {
        if self.namespaces.is_empty() {
            return vec![(collection.clone(), None)];
        }
        let part = |namespace: &String| Collection::In(namespace.as_str().into(), Box::new(collection.clone()));
        self.namespaces.iter().map(|namespace| (part(namespace), Some(namespace.clone()))).collect()
    }

    /// Starts the watch of a collection in one namespace, or in all.
    fn spawn<K: WatchableKind>(
        &mut self,
        collection: Collection,
        namespace: Option<&str>,
        resource: ApiResource,
        config: watcher::Config,
        content: fn(&ApiResource, K) -> ObjectContent,
        definition: Option<String>,
    ) -> AbortHandle {
        self.awaited.insert(collection.clone());
        let definition = definition.map(|name| (self.client.clone(), name));
        let (client, opened) = checked_client(&self.client, &resource);
        let relist = Arc::new(Notify::new());
        self.relists.insert(collection.clone(), relist.clone());
        let api = match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &resource),
            None => Api::all_with(client, &resource),
        };
        let watch = CollectionWatch {
            session: self.number,
            collection,
            api,
            opened,
            config,
            content,
            resource,
            definition,
            resync: self.resync,
            relist,
            max_objects: self.max_objects,
        };
        self.tasks.spawn(watch.run(self.messages.clone()))
    }

    /// Fetches a credential whose content was dropped.
    pub(super) fn fetch_credential(&mut self, key: CredentialKey) {
        self.tasks.spawn(fetch_credential::fetch(self.client.clone(), key, self.number, self.messages.clone()));
    }

    /// Whether every collection was listed once.
    pub(super) fn is_complete(&self) -> bool {
        self.awaited.is_empty()
    }

    /// Stops waiting for the first list of a collection. Returns whether it was waited for.
    pub(super) fn stop_waiting_for(&mut self, collection: &Collection) -> bool {
        self.awaited.remove(collection)
    }

    /// Watches a custom kind that the API server now serves, if the model reads it.
    pub(super) fn define(&mut self, definition: &schema::CustomResourceDefinition) {
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

    /// Stops watching a custom kind. Its known objects are kept until it is defined again.
    pub(super) fn undefine(&mut self, name: &str) {
        let Some(tasks) = self.defined.remove(name) else { return };
        warn!(definition = name, "CustomResourceDefinition was deleted; keeping its known objects");
        for (collection, task) in tasks {
            task.abort();
            self.forget(&collection);
        }
    }

    /// How many custom kinds are watched, and how many of them a complete list of definitions does not have.
    pub(super) fn loss_of_definitions(&self, listed: &HashSet<(String, String)>) -> (usize, usize) {
        (self.defined.len(), self.unlisted_definitions(listed).len())
    }

    pub(super) fn retain_definitions(&mut self, listed: &HashSet<(String, String)>) {
        self.unlisted_definitions(listed).iter().for_each(|name| self.undefine(name));
    }

    fn unlisted_definitions(&self, listed: &HashSet<(String, String)>) -> Vec<String> {
        let is_unlisted = |name: &&String| !listed.contains(&(String::new(), (*name).clone()));
        self.defined.keys().filter(is_unlisted).cloned().collect()
    }
}

fn core(kind: &str, plural: &str) -> ApiResource {
    resource("", "v1", kind, plural)
}

/// Selects one object by its name.
fn by_name(name: &str) -> watcher::Config {
    watcher::Config::default().fields(&format!("metadata.name={name}"))
}

fn kubeconfig_secret((namespace, name): &SecretName) -> Collection {
    Collection::Access(namespace.as_str().into(), name.as_str().into())
}

fn documents(resource: &ApiResource) -> Collection {
    Collection::Config(resource.api_version.as_str().into(), resource.kind.as_str().into())
}

/// Kinds that every API server serves without a CustomResourceDefinition.
fn is_built_in(kind: Kind) -> bool {
    kind.group() == "networking.k8s.io"
}
