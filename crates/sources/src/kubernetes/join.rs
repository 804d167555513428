//! One cluster, joined in memory: objects go in in any order, changes come out. What is known decides, never
//! what came first: an endpoint whose pod is not known yet is told with the pod.

mod limits;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use model::change::Change;
use model::config::Object;
use model::config::mesh::{parse_mesh, parse_networks};
use model::credential_refs::CredentialRefs;
use model::endpoint::Locality;
use model::labels::{Labels, selects};
use model::names::{ClusterId, CredentialKey, CredentialKind, Namespace, NetworkId, ServiceKey, Str};
use model::problem::{FileLocation, Problem, Severity};
use model::service::Service;
use model::settings::{Knobs, Settings};
use model::workload::{Workload, WorkloadKey};

use super::config::{ConfigDocuments, DocumentId, kind_id};
use super::credentials::CredentialStore;
use super::interner::{InternPool, Interner};
use super::locality::{self, NETWORK};
use super::pod::{self, PodContext, PodTemplate, StoredPod};
use super::schema::{self, ClusterObject};
use super::selector::is_discovered;
use super::service::{self, ServiceContext, StoredService};
use super::slice::{self, AddressOwner, EndpointJoin, SERVICE_NAME, StoredSlice};

const REVISION: &str = "istio.io/rev";

/// Namespace and name.
type NamespacedName = (Namespace, Str);

/// What does not change while a cluster is watched.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    pub cluster: ClusterId,
    /// DNS suffix, `cluster.local`.
    pub domain: Str,
    /// Where the control plane and objects for the whole mesh stand.
    pub system_namespace: Namespace,
    /// Objects labelled for another revision are not read; empty reads all.
    pub revision: Str,
    /// Whether namespaces and config of this cluster count for the whole mesh.
    pub is_primary: bool,
    /// The ConfigMap of the system namespace that holds settings of the mesh, where no file does.
    pub mesh_config: Option<Str>,
}

impl ClusterOptions {
    /// The cluster that the control plane itself stands in, in the usual namespace, read whatever the revision.
    pub fn own(settings: &Settings) -> ClusterOptions {
        ClusterOptions {
            cluster: settings.cluster.clone(),
            domain: settings.domain.clone(),
            system_namespace: "istio-system".into(),
            revision: "".into(),
            is_primary: true,
            mesh_config: None,
        }
    }
}

/// A collection of objects, as one watch lists it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Collection {
    Service,
    EndpointSlice,
    Pod,
    Node,
    Namespace,
    Secret,
    ConfigMap,
    /// `apiVersion` and `kind` of documents.
    Config(Str, Str),
    /// Definitions of kinds, and what names other clusters (labelled Secrets, a ConfigMap, and a Secret that the
    /// ConfigMap names by namespace and name): read while watching, not joined.
    Definition,
    Remote,
    Registry,
    Access(Str, Str),
    /// The ConfigMap with settings of the mesh, where it lies outside of the namespaces that are watched.
    Mesh,
    /// The part of a collection that lies in one namespace.
    In(Namespace, Box<Collection>),
}

impl Collection {
    /// The whole collection, and the namespace of the part.
    fn parts(&self) -> (&Collection, Option<&Namespace>) {
        match self {
            Collection::In(namespace, whole) => (whole, Some(namespace)),
            whole => (whole, None),
        }
    }
}

impl fmt::Display for Collection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Collection::Config(api_version, kind) => write!(f, "{api_version}/{kind}"),
            Collection::Definition => f.write_str("CustomResourceDefinition"),
            Collection::Remote => f.write_str("Secret(istio/multiCluster)"),
            Collection::Registry => f.write_str("ConfigMap(clusterRegistries)"),
            Collection::Access(namespace, name) => write!(f, "Secret({namespace}/{name})"),
            Collection::Mesh => f.write_str("ConfigMap(mesh)"),
            Collection::In(namespace, whole) => write!(f, "{whole}({namespace})"),
            plain => write!(f, "{plain:?}"),
        }
    }
}

/// All that is known of one cluster.
#[derive(Clone, Debug)]
pub struct ClusterState {
    options: ClusterOptions,
    settings: Settings,
    interner: Interner,
    templates: InternPool<PodTemplate>,
    namespaces: BTreeMap<Namespace, NamespaceState>,
    nodes: BTreeMap<Str, NodeState>,
    pods: BTreeMap<NamespacedName, PodState>,
    services: BTreeMap<NamespacedName, ServiceState>,
    /// By service, each with those of one in the order of their names: nearly always there is one.
    slices: BTreeMap<NamespacedName, Vec<(Str, StoredSlice)>>,
    service_of_slice: BTreeMap<NamespacedName, Str>,
    credentials: CredentialStore,
    documents: ConfigDocuments,
    dirty: DirtySet,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct NamespaceState {
    labels: Labels,
    /// The wish of its services for near endpoints.
    near: Option<Str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct NodeState {
    locality: Locality,
    labels: Labels,
    external: Option<Str>,
}

#[derive(Clone, Debug)]
struct PodState {
    pod: StoredPod,
    /// As it was told last.
    workload: Option<Arc<Workload>>,
}

#[derive(Clone, Debug)]
struct ServiceState {
    kept: Box<StoredService>,
    /// As it was told last.
    service: Option<Arc<Service>>,
}

/// The usable pods of one namespace by address, found once an endpoint that names no pod asks: few do, and keeping
/// them at hand for all would cost as much as a fifth of the pods themselves.
struct PodsByAddress<'a> {
    namespace: Namespace,
    at: OnceCell<HashMap<&'a str, &'a Arc<Workload>>>,
}

/// What must be looked at again.
#[derive(Clone, Debug, Default)]
struct DirtySet {
    everything: bool,
    /// Settings of the mesh came from the cluster.
    settings: bool,
    namespaces: BTreeSet<Namespace>,
    pods: BTreeSet<NamespacedName>,
    /// Addresses at which usable pods came or went.
    addresses: HashSet<Str>,
    services: BTreeSet<NamespacedName>,
    endpoints: BTreeSet<NamespacedName>,
    credentials: BTreeSet<CredentialKey>,
}

impl ClusterState {
    pub fn new(options: ClusterOptions, settings: Settings) -> ClusterState {
        ClusterState {
            options,
            settings,
            interner: Interner::default(),
            templates: InternPool::default(),
            namespaces: BTreeMap::new(),
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            services: BTreeMap::new(),
            slices: BTreeMap::new(),
            service_of_slice: BTreeMap::new(),
            credentials: CredentialStore::default(),
            documents: ConfigDocuments::default(),
            dirty: DirtySet::default(),
        }
    }

    pub(super) fn name(&self) -> &ClusterId {
        &self.options.cluster
    }

    pub(super) fn knobs(&self) -> &Knobs {
        &self.settings.knobs
    }

    /// The ConfigMap of the system namespace that holds settings of the mesh.
    pub(super) fn mesh_config(&self) -> Option<&Str> {
        self.options.mesh_config.as_ref()
    }

    /// Settings that decide what is watched and how endpoints are placed.
    pub fn adopt(&mut self, settings: Settings) {
        let same = self.settings.mesh == settings.mesh && self.settings.networks == settings.networks;
        self.settings = settings;
        if !same {
            self.dirty.everything = true;
        }
    }

    /// Takes an object in, new or changed. One that means the same as before changes nothing.
    pub fn apply(&mut self, item: ClusterObject) {
        match item {
            ClusterObject::Service(service) => self.put_service(*service),
            ClusterObject::EndpointSlice(slice) => self.put_slice(&slice),
            ClusterObject::Pod(pod) => self.put_pod(&pod),
            ClusterObject::Node(node) => self.put_node(&node),
            ClusterObject::Namespace(namespace) => self.put_namespace(&namespace.metadata),
            ClusterObject::Secret(holding) => self.put_credential(CredentialKind::Secret, &holding),
            ClusterObject::ConfigMap(holding) => self.put_credential(CredentialKind::ConfigMap, &holding),
            ClusterObject::Config(json) => {
                let place = FileLocation { file: format!("cluster {}", self.options.cluster).into(), line: 0 };
                self.documents.put(&json, &place);
            }
        }
    }

    /// Forgets an object.
    pub fn delete(&mut self, collection: &Collection, namespace: &str, name: &str) {
        let key: NamespacedName = (namespace.into(), name.into());
        match collection {
            Collection::Service => {
                if self.services.remove(&key).is_some() {
                    self.dirty.services.insert(key);
                }
            }
            Collection::EndpointSlice => self.remove_slice(&key),
            Collection::Pod => self.remove_pod(&key),
            Collection::Node => {
                if self.nodes.remove(name).is_some() {
                    self.touch_node(name);
                }
            }
            Collection::Namespace => {
                let namespace = Namespace::from(name);
                if self.namespaces.remove(&namespace).is_some() {
                    self.touch_namespace(&namespace);
                }
            }
            Collection::Secret => self.remove_credential(CredentialKind::Secret, key),
            Collection::ConfigMap => self.remove_credential(CredentialKind::ConfigMap, key),
            Collection::Config(api_version, kind) => {
                let id = DocumentId { kind: kind_id(api_version, kind), namespace: key.0, name: key.1 };
                self.documents.remove(&id);
            }
            Collection::In(_, whole) => self.delete(whole, namespace, name),
            Collection::Definition
            | Collection::Remote
            | Collection::Registry
            | Collection::Access(..)
            | Collection::Mesh => {}
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        use Collection::{ConfigMap, EndpointSlice, Namespace, Node, Pod, Secret, Service};
        for collection in [Service, EndpointSlice, Pod, Node, Namespace, Secret, ConfigMap] {
            self.retain(&collection, &HashSet::new());
        }
        self.documents.clear();
    }

    /// Forgets the objects of a collection that a complete list does not have.
    pub fn retain(&mut self, collection: &Collection, listed: &HashSet<(String, String)>) {
        for (namespace, name) in self.known_part(collection) {
            if !listed.contains(&(namespace.to_string(), name.to_string())) {
                self.delete(collection, &namespace, &name);
            }
        }
    }

    fn known_part(&self, collection: &Collection) -> Vec<NamespacedName> {
        let (whole, within) = collection.parts();
        let mut known = self.known(whole);
        known.retain(|(namespace, _)| within.is_none_or(|within| *within == *namespace));
        known
    }

    /// Packs what lists have filled: a tree that grew in the order of its keys has half of its places free.
    pub(super) fn pack(&mut self) {
        self.pods = std::mem::take(&mut self.pods).into_iter().collect();
        self.services = std::mem::take(&mut self.services).into_iter().collect();
        self.slices = std::mem::take(&mut self.slices).into_iter().collect();
    }

    fn known(&self, collection: &Collection) -> Vec<NamespacedName> {
        let held = |kind: CredentialKind| {
            let of = self.credentials.keys().filter(move |key| key.kind == kind);
            of.map(|key| (key.namespace.clone(), key.name.clone())).collect()
        };
        match collection {
            Collection::Service => self.services.keys().cloned().collect(),
            Collection::EndpointSlice => self.service_of_slice.keys().cloned().collect(),
            Collection::Pod => self.pods.keys().cloned().collect(),
            Collection::Node => self.nodes.keys().map(|name| (Namespace::default(), name.clone())).collect(),
            Collection::Namespace => self.namespaces.keys().map(|n| (Namespace::default(), n.text().clone())).collect(),
            Collection::Secret => held(CredentialKind::Secret),
            Collection::ConfigMap => held(CredentialKind::ConfigMap),
            Collection::Config(api_version, kind) => {
                let kind = kind_id(api_version, kind);
                self.documents.of_kind(&kind).map(|id| (id.namespace.clone(), id.name.clone())).collect()
            }
            Collection::Definition
            | Collection::Remote
            | Collection::Registry
            | Collection::Access(..)
            | Collection::Mesh
            | Collection::In(..) => Vec::new(),
        }
    }

    fn name_of(&mut self, meta: &ObjectMeta) -> NamespacedName {
        let namespace = self.interner.text(meta.namespace.as_deref().unwrap_or_default());
        (Namespace::new(namespace), meta.name.as_deref().unwrap_or_default().into())
    }

    fn put_service(&mut self, service: schema::ServiceObject) {
        let key = self.name_of(&service.metadata);
        let kept = Box::new(StoredService::of(service));
        match self.services.get_mut(&key) {
            Some(known) if known.kept == kept => return,
            Some(known) => known.kept = kept,
            None => _ = self.services.insert(key.clone(), ServiceState { kept, service: None }),
        }
        self.dirty.services.insert(key);
    }

    fn put_slice(&mut self, slice: &schema::EndpointSlice) {
        let key = self.name_of(&slice.metadata);
        let labels = slice.metadata.labels.as_ref();
        let service = labels.and_then(|all| all.get(SERVICE_NAME)).filter(|name| !name.is_empty());
        let (Some(service), Some(kept)) = (service, StoredSlice::of(slice, &mut self.interner)) else {
            return self.remove_slice(&key);
        };
        let service: Str = self.interner.text(service);
        if self.service_of_slice.get(&key).is_some_and(|before| *before != service) {
            self.remove_slice(&key);
        }
        let owner = (key.0.clone(), service.clone());
        let slices = self.slices.entry(owner.clone()).or_default();
        match slices.binary_search_by(|(name, _)| name.cmp(&key.1)) {
            Ok(at) if slices[at].1 == kept => return,
            Ok(at) => slices[at].1 = kept,
            Err(at) => {
                slices.reserve_exact(1);
                slices.insert(at, (key.1.clone(), kept));
            }
        }
        self.service_of_slice.insert(key, service);
        self.dirty.endpoints.insert(owner);
    }

    fn remove_slice(&mut self, key: &NamespacedName) {
        let Some(service) = self.service_of_slice.remove(key) else { return };
        let owner = (key.0.clone(), service);
        if let Some(slices) = self.slices.get_mut(&owner) {
            slices.retain(|(name, _)| *name != key.1);
            if slices.is_empty() {
                self.slices.remove(&owner);
            }
        }
        self.dirty.endpoints.insert(owner);
    }

    fn put_pod(&mut self, pod: &schema::PodObject) {
        let key = self.name_of(&pod.metadata);
        let pod = StoredPod::of(pod, &mut self.interner, &mut self.templates);
        if pod.is_failed() {
            return self.remove_pod(&key);
        }
        match self.pods.get_mut(&key) {
            Some(before) if before.pod == pod => return,
            Some(before) => {
                let both = [before.pod.usable_address(), pod.usable_address()];
                self.dirty.addresses.extend(both.into_iter().flatten().cloned());
                before.pod = pod;
            }
            None => {
                self.dirty.addresses.extend(pod.usable_address().cloned());
                self.pods.insert(key.clone(), PodState { pod, workload: None });
            }
        }
        self.dirty.pods.insert(key);
    }

    fn remove_pod(&mut self, key: &NamespacedName) {
        if let Some(running) = self.pods.remove(key) {
            self.dirty.addresses.extend(running.pod.usable_address().cloned());
            self.dirty.pods.insert(key.clone());
        }
    }

    fn put_node(&mut self, node: &schema::NodeObject) {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let external = node.status.addresses.iter().find(|a| a.kind == "ExternalIP" && !a.address.is_empty());
        let facts = NodeState {
            locality: locality::of_node(&node.metadata, &mut self.interner),
            labels: schema::labels(&node.metadata),
            external: external.map(|a| a.address.as_str().into()),
        };
        if self.nodes.get(name) != Some(&facts) {
            self.nodes.insert(self.interner.text(name), facts);
            self.touch_node(name);
        }
    }

    fn touch_node(&mut self, name: &str) {
        let there = self.pods.iter().filter(|(_, running)| *running.pod.node == *name).map(|(key, _)| key.clone());
        self.dirty.pods.extend(there);
        let by_nodes = self.services.iter().filter(|(_, s)| s.kept.node_selector().is_some());
        self.dirty.services.extend(by_nodes.map(|(key, _)| key.clone()));
    }

    fn put_namespace(&mut self, meta: &ObjectMeta) {
        let name = Namespace::from(meta.name.as_deref().unwrap_or_default());
        let facts = NamespaceState { labels: schema::labels(meta), near: service::namespace_wish(meta) };
        let before = self.namespaces.insert(name.clone(), facts.clone());
        if before.as_ref() != Some(&facts) {
            self.touch_namespace(&name);
        }
    }

    fn touch_namespace(&mut self, name: &Namespace) {
        self.dirty.namespaces.insert(name.clone());
        let first = (name.clone(), Str::from(""));
        let pods = self.pods.range(first.clone()..).take_while(|((ns, _), _)| ns == name);
        self.dirty.pods.extend(pods.map(|(key, _)| key.clone()));
        let services = self.services.range(first..).take_while(|((ns, _), _)| ns == name);
        self.dirty.services.extend(services.map(|(key, _)| key.clone()));
        self.documents.touch(name);
        self.dirty.credentials.extend(self.credentials.keys().filter(|key| key.namespace == *name).cloned());
        if *name == self.options.system_namespace {
            // Its label is the network of the whole cluster.
            self.dirty.everything = true;
        }
    }

    fn put_credential(&mut self, kind: CredentialKind, holding: &schema::DataObject) {
        let (namespace, name) = self.name_of(&holding.metadata);
        let is_mesh = kind == CredentialKind::ConfigMap && namespace == self.options.system_namespace;
        if is_mesh && self.options.mesh_config.as_ref() == Some(&name) {
            self.put_mesh(&holding.data);
        }
        let key = CredentialKey { kind, namespace, name };
        if self.credentials.put(&key, &holding.data) {
            self.dirty.credentials.insert(key);
        }
    }

    /// Keeps certificates and keys of these credentials alone. Gives those that must be asked for.
    pub(super) fn want(&mut self, named: CredentialRefs) -> Vec<CredentialKey> {
        let renamed = self.credentials.want(named);
        self.dirty.credentials.extend(renamed.bared);
        renamed.missing
    }

    /// Takes in a credential that was asked for.
    pub(super) fn supply(&mut self, item: &ClusterObject) {
        let (kind, holding) = match item {
            ClusterObject::Secret(holding) => (CredentialKind::Secret, holding),
            ClusterObject::ConfigMap(holding) => (CredentialKind::ConfigMap, holding),
            _ => return,
        };
        let (namespace, name) = self.name_of(&holding.metadata);
        let key = CredentialKey { kind, namespace, name };
        if self.credentials.supply(&key, &holding.data) {
            self.dirty.credentials.insert(key);
        }
    }

    /// Settings of the mesh that a ConfigMap holds. Where it says nothing good, what is known stays.
    fn put_mesh(&mut self, data: &BTreeMap<String, String>) {
        let usable = |problems: &[Problem]| !problems.iter().any(|p| p.severity == Severity::Error);
        let file = format!("ConfigMap {}", self.options.mesh_config.as_deref().unwrap_or_default());
        let mut found = Vec::new();
        let mut settings = self.settings.clone();
        if let Some(text) = data.get("mesh") {
            let (mesh, problems) = parse_mesh(text, &file);
            if usable(&problems) {
                settings.mesh = mesh;
            }
            found.extend(problems);
        }
        if let Some(text) = data.get("meshNetworks") {
            let (networks, problems) = parse_networks(text, &file);
            if usable(&problems) {
                settings.networks = networks;
            }
            found.extend(problems);
        }
        self.documents.note("mesh", found);
        self.dirty.settings = true;
        self.adopt(settings);
    }

    /// Problems of what is no object of the model, by topic; they replace those of the topic before.
    pub(super) fn note(&mut self, topic: &'static str, problems: Vec<Problem>) {
        self.documents.note(topic, problems);
    }

    fn remove_credential(&mut self, kind: CredentialKind, (namespace, name): NamespacedName) {
        let key = CredentialKey { kind, namespace, name };
        if self.credentials.remove(&key) {
            self.dirty.credentials.insert(key);
        }
    }
}

/// What comes out.
impl ClusterState {
    /// All that is to be told since the last question. Nothing that means the same as before is told again.
    pub fn changes(&mut self) -> Vec<Change> {
        let mut dirty = std::mem::take(&mut self.dirty);
        if dirty.everything {
            dirty.namespaces.extend(self.namespaces.keys().cloned());
            dirty.pods.extend(self.pods.keys().cloned());
            dirty.services.extend(self.services.keys().cloned());
            dirty.endpoints.extend(self.slices.keys().cloned());
            dirty.credentials.extend(self.credentials.keys().cloned());
            self.documents.touch_all();
        }
        let mut changes = Vec::new();
        if dirty.settings {
            changes.push(Change::Mesh(self.settings.mesh.clone()));
            changes.push(Change::Networks(self.settings.networks.clone()));
        }
        let told = |namespace: &Namespace| self.options.is_primary && !namespace.is_empty();
        dirty.namespaces.retain(told);
        for namespace in std::mem::take(&mut dirty.namespaces) {
            let labels = self.namespaces.get(&namespace).map(|facts| facts.labels.clone());
            changes.push(Change::Namespace(namespace, labels));
        }
        let moved = self.tell_pods(&dirty.pods, &mut changes);
        self.find_readers(&moved, &mut dirty);
        self.tell_services(&mut dirty, &mut changes);
        self.share_with_pods(&dirty.endpoints);
        self.tell_endpoints(&dirty.endpoints, &mut changes);
        for key in dirty.credentials {
            let credential = self.credentials.get(&key).filter(|_| self.is_discovered(&key.namespace)).cloned();
            changes.push(Change::Credential(key, credential));
        }
        let mut documents = std::mem::take(&mut self.documents);
        documents.changes(|object| self.reads(object), &mut changes);
        self.documents = documents;
        changes
    }

    /// Whether discovery selectors let this namespace be seen.
    fn is_discovered(&self, namespace: &Namespace) -> bool {
        let selectors = &self.settings.mesh.discovery_selectors;
        if selectors.is_empty() || namespace.is_empty() {
            return true;
        }
        self.namespaces.get(namespace).is_some_and(|facts| is_discovered(selectors, &facts.labels))
    }

    fn reads(&self, object: &Object) -> bool {
        let revision = object.meta.labels.get(REVISION);
        let ours = self.options.revision.is_empty() || revision.is_none_or(|r| *r == self.options.revision);
        ours && self.is_discovered(&object.meta.namespace)
    }

    /// The workloads of these pods; gives those that are not as they were.
    fn tell_pods(&mut self, keys: &BTreeSet<NamespacedName>, changes: &mut Vec<Change>) -> HashSet<NamespacedName> {
        let mut moved = HashSet::new();
        for key in keys {
            let workload = self.workload(key);
            let told = match self.pods.get_mut(key) {
                Some(running) if running.workload == workload => continue,
                Some(running) => std::mem::replace(&mut running.workload, workload.clone()).is_some(),
                None => true,
            };
            match workload {
                Some(workload) => changes.push(Change::WorkloadApplied(workload)),
                None if told => changes.push(Change::WorkloadDeleted(self.workload_key(key))),
                None => continue,
            }
            moved.insert(key.clone());
        }
        moved
    }

    fn workload_key(&self, (namespace, name): &NamespacedName) -> WorkloadKey {
        WorkloadKey { namespace: namespace.clone(), name: name.clone(), cluster: self.options.cluster.clone() }
    }

    fn workload(&mut self, key: &NamespacedName) -> Option<Arc<Workload>> {
        let running = self.pods.get(key).filter(|_| self.is_discovered(&key.0))?;
        let pod = &running.pod;
        let network = self.network(pod.labels(), pod.addresses.first().map_or("", |a| a));
        let node = self.nodes.get(&pod.node).map(|node| &node.locality);
        let around = PodContext {
            cluster: &self.options.cluster,
            trust_domain: &self.settings.mesh.trust_domain,
            node,
            network,
        };
        Some(pod::workload(&key.0, &key.1, pod, around, &mut self.interner))
    }

    /// The network of an address: of the pod's label, of the whole cluster, or as mesh networks say.
    fn network(&self, labels: &Labels, address: &str) -> NetworkId {
        if let Some(own) = labels.get(NETWORK).filter(|n| !n.is_empty()) {
            return NetworkId::new(own.clone());
        }
        let system = self.namespaces.get(&self.options.system_namespace);
        if let Some(whole) = system.and_then(|facts| facts.labels.get(NETWORK)).filter(|n| !n.is_empty()) {
            return NetworkId::new(whole.clone());
        }
        locality::network_of(&self.settings.networks, &self.options.cluster, address)
    }

    /// Adds the services whose slices name one of these pods or an address where one came or went.
    fn find_readers(&self, moved: &HashSet<NamespacedName>, dirty: &mut DirtySet) {
        if moved.is_empty() && dirty.addresses.is_empty() {
            return;
        }
        let reads = |item: &slice::SliceItem| match &item.pod {
            Some(pod) => moved.contains(pod),
            None => item.addresses.iter().any(|a| dirty.addresses.contains(a)),
        };
        let touched = self.slices.iter().filter(|(_, slices)| slices.iter().any(|(_, s)| s.items.iter().any(reads)));
        dirty.endpoints.extend(touched.map(|(key, _)| key.clone()).collect::<Vec<_>>());
    }

    fn tell_services(&mut self, dirty: &mut DirtySet, changes: &mut Vec<Change>) {
        for key in &dirty.services {
            let service = self.service(key).map(Arc::new);
            let told = match self.services.get_mut(key) {
                Some(serving) if serving.service == service => continue,
                Some(serving) => std::mem::replace(&mut serving.service, service.clone()).is_some(),
                None => true,
            };
            match service {
                Some(service) => changes.push(Change::ServiceApplied(service)),
                None if told => changes.push(Change::ServiceDeleted(self.service_key(key))),
                None => continue,
            }
            dirty.endpoints.insert(key.clone());
        }
    }

    fn service_key(&self, (namespace, name): &NamespacedName) -> ServiceKey {
        let hostname = service::hostname(namespace, name, &self.options.domain);
        ServiceKey { hostname, namespace: namespace.clone() }
    }

    fn service(&self, key: &NamespacedName) -> Option<Service> {
        let serving = self.services.get(key).filter(|_| self.is_discovered(&key.0))?;
        let selector = serving.kept.node_selector();
        let answering = |wanted: &BTreeMap<String, String>| {
            let nodes = self.nodes.values().filter(|node| selects(wanted, &node.labels));
            nodes.filter_map(|node| node.external.clone()).collect()
        };
        let around = ServiceContext {
            domain: &self.options.domain,
            cluster: &self.options.cluster,
            trust_domain: &self.settings.mesh.trust_domain,
            near: self.namespaces.get(&key.0).and_then(|facts| facts.near.as_deref()),
            nodes: selector.as_ref().map(answering).unwrap_or_default(),
        };
        Some(service::convert(&key.0, &key.1, &serving.kept, around))
    }

    /// Lets slices hold the names and addresses of pods that are known, and no copies of them.
    fn share_with_pods(&mut self, keys: &BTreeSet<NamespacedName>) {
        for key in keys {
            for (_, slice) in self.slices.get_mut(key).into_iter().flatten() {
                slice.share(|pod| {
                    let ((_, name), running) = self.pods.get_key_value(pod)?;
                    Some((name, &running.pod.addresses[..]))
                });
            }
        }
    }

    fn tell_endpoints(&self, keys: &BTreeSet<NamespacedName>, changes: &mut Vec<Change>) {
        // Keys are ordered, so those of one namespace follow each other.
        let mut here = self.neighbours(&Namespace::default());
        for key in keys {
            if here.namespace != key.0 {
                here = self.neighbours(&key.0);
            }
            let endpoints = match self.services.get(key) {
                Some(ServiceState { kept, service: Some(service) }) => {
                    let join = EndpointJoin {
                        service,
                        keeps_sessions: kept.keeps_sessions(),
                        dual_stack: self.settings.knobs.dual_stack,
                        pod: |name: &NamespacedName| self.pods.get(name).and_then(|running| running.workload.clone()),
                        at: |address: &str| self.standing(&here, address),
                    };
                    self.slices.get(key).map(|slices| join.endpoints(slices)).unwrap_or_default()
                }
                _ => Vec::new(),
            };
            changes.push(Change::Endpoints(self.service_key(key), endpoints));
        }
    }

    fn neighbours(&self, namespace: &Namespace) -> PodsByAddress<'_> {
        PodsByAddress { namespace: namespace.clone(), at: OnceCell::new() }
    }

    /// The usable pods of a namespace by address.
    fn usable<'a>(&'a self, namespace: &Namespace) -> HashMap<&'a str, &'a Arc<Workload>> {
        let first = (namespace.clone(), Str::default());
        let pods = self.pods.range(first..).take_while(|((ns, _), _)| ns == namespace);
        let mut found = HashMap::new();
        for (_, PodState { pod, workload }) in pods {
            if let (Some(address), Some(workload)) = (pod.usable_address(), workload) {
                // The first by name, where several say that they have it.
                found.entry(&**address).or_insert(workload);
            }
        }
        found
    }

    /// A pod of this namespace at the address, or nobody.
    fn standing<'a>(&'a self, neighbours: &PodsByAddress<'a>, address: &str) -> AddressOwner {
        let at = neighbours.at.get_or_init(|| self.usable(&neighbours.namespace));
        let here = at.get(address).map(|workload| Arc::clone(workload));
        here.map(AddressOwner::Pod).unwrap_or_else(|| {
            let network = self.network(&Labels::default(), address);
            let locality = Locality::default();
            let place = locality::WorkloadLocation {
                locality: &locality,
                cluster: &self.options.cluster,
                node: "",
                network: &network,
            };
            let label = |(key, value): (&str, &str)| Arc::new((key.into(), value.into()));
            let labels = locality::with_location_labels(&Labels::default(), &place, label);
            AddressOwner::Unknown(Box::new(slice::bare_endpoint(self.options.cluster.clone(), network, labels)))
        })
    }
}
