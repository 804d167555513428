//! Joins the objects of one cluster in memory into changes of the model. The result depends on the known objects only,
//! not on their order of arrival: an endpoint whose pod is not known yet is sent when the pod arrives.

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

/// Settings that do not change while a cluster is watched.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    pub cluster: ClusterId,
    /// DNS suffix, `cluster.local`.
    pub domain: Str,
    /// The namespace of the control plane and of mesh-wide objects.
    pub system_namespace: Namespace,
    /// Objects labelled with another revision are ignored; empty reads all.
    pub revision: Str,
    /// Whether namespaces and config of this cluster are read.
    pub is_primary: bool,
    /// The ConfigMap in the system namespace that holds mesh settings, if no file does.
    pub mesh_config: Option<Str>,
}

impl ClusterOptions {
    /// The primary cluster with the default system namespace, reading all revisions.
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

/// A collection of objects that one watch covers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Collection {
    Service,
    EndpointSlice,
    Pod,
    Node,
    Namespace,
    Secret,
    ConfigMap,
    /// Objects of a config kind, by `apiVersion` and `kind`.
    Config(Str, Str),
    /// CustomResourceDefinitions.
    Definition,
    /// Labelled Secrets with kubeconfigs of remote clusters.
    Remote,
    /// The ConfigMap that names remote clusters.
    Registry,
    /// A Secret that this ConfigMap names, by namespace and name.
    Access(Str, Str),
    /// The ConfigMap with mesh settings, if its namespace is not watched otherwise.
    Mesh,
    /// The objects of a collection in one namespace.
    In(Namespace, Box<Collection>),
}

impl Collection {
    /// The collection, and the namespace that it is limited to.
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

/// The known objects of one cluster.
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
    /// By service, ordered by the name of the slice. Nearly always there is one.
    slices: BTreeMap<NamespacedName, Vec<(Str, StoredSlice)>>,
    service_of_slice: BTreeMap<NamespacedName, Str>,
    credentials: CredentialStore,
    documents: ConfigDocuments,
    dirty: DirtySet,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct NamespaceState {
    labels: Labels,
    /// The traffic distribution annotation, which applies to its services.
    traffic_distribution: Option<Str>,
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
    /// As sent last.
    workload: Option<Arc<Workload>>,
}

#[derive(Clone, Debug)]
struct ServiceState {
    stored: Box<StoredService>,
    /// As sent last.
    service: Option<Arc<Service>>,
}

/// The usable pods of one namespace by address. Built when an endpoint without a target pod needs it: few do, and an
/// index for all namespaces would need a fifth of the memory of the pods.
struct PodsByAddress<'a> {
    namespace: Namespace,
    workloads: OnceCell<HashMap<&'a str, &'a Arc<Workload>>>,
}

impl PodsByAddress<'_> {
    fn new(namespace: Namespace) -> Self {
        PodsByAddress { namespace, workloads: OnceCell::new() }
    }
}

/// Objects whose changes must be computed again.
#[derive(Clone, Debug, Default)]
struct DirtySet {
    everything: bool,
    /// The ConfigMap with mesh settings changed.
    settings: bool,
    namespaces: BTreeSet<Namespace>,
    pods: BTreeSet<NamespacedName>,
    /// Addresses of usable pods that were added or removed.
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

    pub(super) fn options(&self) -> &ClusterOptions {
        &self.options
    }

    /// Replaces the mesh settings (discovery selectors, networks, trust domain).
    pub fn adopt(&mut self, settings: Settings) {
        let same = self.settings.mesh == settings.mesh && self.settings.networks == settings.networks;
        self.settings = settings;
        if !same {
            self.dirty.everything = true;
        }
    }

    /// Adds or replaces an object.
    pub fn apply(&mut self, item: ClusterObject) {
        match item {
            ClusterObject::Service(service) => self.put_service(*service),
            ClusterObject::EndpointSlice(slice) => self.put_slice(&slice),
            ClusterObject::Pod(pod) => self.put_pod(&pod),
            ClusterObject::Node(node) => self.put_node(&node),
            ClusterObject::Namespace(namespace) => self.put_namespace(&namespace.metadata),
            ClusterObject::Secret(object) => self.put_credential(CredentialKind::Secret, &object),
            ClusterObject::ConfigMap(object) => self.put_credential(CredentialKind::ConfigMap, &object),
            ClusterObject::Config(json) => {
                let place = FileLocation { file: format!("cluster {}", self.options.cluster).into(), line: 0 };
                self.documents.put(&json, &place);
            }
        }
    }

    /// Removes an object.
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

    /// Removes all objects.
    pub fn clear(&mut self) {
        use Collection::{ConfigMap, EndpointSlice, Namespace, Node, Pod, Secret, Service};
        for collection in [Service, EndpointSlice, Pod, Node, Namespace, Secret, ConfigMap] {
            self.retain(&collection, &HashSet::new());
        }
        self.documents.clear();
    }

    /// Removes the objects of a collection that a complete list does not have.
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

    /// Rebuilds the largest maps to save memory: a B-tree filled in key order has half-empty nodes.
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
        let stored = Box::new(StoredService::of(service));
        match self.services.get_mut(&key) {
            Some(known) if known.stored == stored => return,
            Some(known) => known.stored = stored,
            None => _ = self.services.insert(key.clone(), ServiceState { stored, service: None }),
        }
        self.dirty.services.insert(key);
    }

    fn put_slice(&mut self, slice: &schema::EndpointSlice) {
        let key = self.name_of(&slice.metadata);
        let labels = slice.metadata.labels.as_ref();
        let service = labels.and_then(|all| all.get(SERVICE_NAME)).filter(|name| !name.is_empty());
        let (Some(service), Some(stored)) = (service, StoredSlice::of(slice, &mut self.interner)) else {
            return self.remove_slice(&key);
        };
        let service: Str = self.interner.text(service);
        if self.service_of_slice.get(&key).is_some_and(|before| *before != service) {
            self.remove_slice(&key);
        }
        let owner = (key.0.clone(), service.clone());
        let slices = self.slices.entry(owner.clone()).or_default();
        match slices.binary_search_by(|(name, _)| name.cmp(&key.1)) {
            Ok(at) if slices[at].1 == stored => return,
            Ok(at) => slices[at].1 = stored,
            Err(at) => {
                slices.reserve_exact(1);
                slices.insert(at, (key.1.clone(), stored));
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
        if let Some(state) = self.pods.remove(key) {
            self.dirty.addresses.extend(state.pod.usable_address().cloned());
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
        let there = self.pods.iter().filter(|(_, state)| *state.pod.node == *name).map(|(key, _)| key.clone());
        self.dirty.pods.extend(there);
        let by_nodes = self.services.iter().filter(|(_, s)| s.stored.node_selector().is_some());
        self.dirty.services.extend(by_nodes.map(|(key, _)| key.clone()));
    }

    fn put_namespace(&mut self, meta: &ObjectMeta) {
        let name = Namespace::from(meta.name.as_deref().unwrap_or_default());
        let facts = NamespaceState {
            labels: schema::labels(meta),
            traffic_distribution: service::namespace_distribution(meta),
        };
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
            // The label of this namespace sets the network of the whole cluster.
            self.dirty.everything = true;
        }
    }

    fn put_credential(&mut self, kind: CredentialKind, object: &schema::DataObject) {
        let (namespace, name) = self.name_of(&object.metadata);
        let is_mesh = kind == CredentialKind::ConfigMap && namespace == self.options.system_namespace;
        if is_mesh && self.options.mesh_config.as_ref() == Some(&name) {
            self.put_mesh(&object.data);
        }
        let key = CredentialKey { kind, namespace, name };
        if self.credentials.put(&key, &object.data) {
            self.dirty.credentials.insert(key);
        }
    }

    /// Keeps the content of only these credentials. Returns those whose content must be fetched.
    pub(super) fn keep_credentials(&mut self, named: CredentialRefs) -> Vec<CredentialKey> {
        let diff = self.credentials.keep(named);
        self.dirty.credentials.extend(diff.dropped);
        diff.to_fetch
    }

    /// Adds the content of a credential that was fetched.
    pub(super) fn put_fetched_credential(&mut self, item: &ClusterObject) {
        let (kind, object) = match item {
            ClusterObject::Secret(object) => (CredentialKind::Secret, object),
            ClusterObject::ConfigMap(object) => (CredentialKind::ConfigMap, object),
            _ => return,
        };
        let (namespace, name) = self.name_of(&object.metadata);
        let key = CredentialKey { kind, namespace, name };
        if self.credentials.put_fetched(&key, &object.data) {
            self.dirty.credentials.insert(key);
        }
    }

    /// Reads mesh settings from a ConfigMap. Invalid settings are ignored, the last valid ones stay.
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
        self.documents.set_problems("mesh", found);
        self.dirty.settings = true;
        self.adopt(settings);
    }

    /// Replaces the problems of a topic that belong to no config object.
    pub(super) fn set_problems(&mut self, topic: &'static str, problems: Vec<Problem>) {
        self.documents.set_problems(topic, problems);
    }

    fn remove_credential(&mut self, kind: CredentialKind, (namespace, name): NamespacedName) {
        let key = CredentialKey { kind, namespace, name };
        if self.credentials.remove(&key) {
            self.dirty.credentials.insert(key);
        }
    }
}

/// The changes that result from the objects.
impl ClusterState {
    /// All changes since the last call.
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
        dirty.namespaces.retain(|namespace| self.options.is_primary && !namespace.is_empty());
        for namespace in std::mem::take(&mut dirty.namespaces) {
            let labels = self.namespaces.get(&namespace).map(|facts| facts.labels.clone());
            changes.push(Change::Namespace(namespace, labels));
        }
        let moved = self.workload_changes(&dirty.pods, &mut changes);
        self.mark_affected_services(&moved, &mut dirty);
        self.service_changes(&mut dirty, &mut changes);
        self.share_with_pods(&dirty.endpoints);
        self.endpoint_changes(&dirty.endpoints, &mut changes);
        for key in dirty.credentials {
            let credential = self.credentials.get(&key).filter(|_| self.is_discovered(&key.namespace)).cloned();
            changes.push(Change::Credential(key, credential));
        }
        let mut documents = std::mem::take(&mut self.documents);
        documents.changes(|object| self.reads(object), &mut changes);
        self.documents = documents;
        changes
    }

    /// Whether the discovery selectors match this namespace.
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

    /// Adds the changes of these pods' workloads. Returns the pods whose workload changed.
    fn workload_changes(
        &mut self,
        keys: &BTreeSet<NamespacedName>,
        changes: &mut Vec<Change>,
    ) -> HashSet<NamespacedName> {
        let mut moved = HashSet::new();
        for key in keys {
            let workload = self.workload(key);
            let was_sent = match self.pods.get_mut(key) {
                Some(known) if known.workload == workload => continue,
                Some(known) => std::mem::replace(&mut known.workload, workload.clone()).is_some(),
                None => true,
            };
            match workload {
                Some(workload) => changes.push(Change::WorkloadApplied(workload)),
                None if was_sent => changes.push(Change::WorkloadDeleted(self.workload_key(key))),
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
        let pod = &self.pods.get(key).filter(|_| self.is_discovered(&key.0))?.pod;
        let network = self.network(pod.labels(), pod.addresses.first().map_or("", |a| a));
        let node = self.nodes.get(&pod.node).map(|node| &node.locality);
        let context = PodContext {
            cluster: &self.options.cluster,
            trust_domain: &self.settings.mesh.trust_domain,
            node,
            network,
        };
        Some(pod::workload(&key.0, &key.1, pod, context, &mut self.interner))
    }

    /// The network of an address: from the pod's label, from the label of the system namespace, or from meshNetworks.
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

    /// Marks the services whose slices name one of these pods, or an address of a pod that was added or removed.
    fn mark_affected_services(&self, moved: &HashSet<NamespacedName>, dirty: &mut DirtySet) {
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

    fn service_changes(&mut self, dirty: &mut DirtySet, changes: &mut Vec<Change>) {
        for key in &dirty.services {
            let service = self.service(key).map(Arc::new);
            let was_sent = match self.services.get_mut(key) {
                Some(known) if known.service == service => continue,
                Some(known) => std::mem::replace(&mut known.service, service.clone()).is_some(),
                None => true,
            };
            match service {
                Some(service) => changes.push(Change::ServiceApplied(service)),
                None if was_sent => changes.push(Change::ServiceDeleted(self.service_key(key))),
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
        let stored = &self.services.get(key).filter(|_| self.is_discovered(&key.0))?.stored;
        let selector = stored.node_selector();
        let external_addresses = |wanted: &BTreeMap<String, String>| {
            let nodes = self.nodes.values().filter(|node| selects(wanted, &node.labels));
            nodes.filter_map(|node| node.external.clone()).collect()
        };
        let context = ServiceContext {
            domain: &self.options.domain,
            cluster: &self.options.cluster,
            trust_domain: &self.settings.mesh.trust_domain,
            traffic_distribution: self.namespaces.get(&key.0).and_then(|facts| facts.traffic_distribution.as_deref()),
            nodes: selector.as_ref().map(external_addresses).unwrap_or_default(),
        };
        Some(service::convert(&key.0, &key.1, stored, context))
    }

    /// Makes slices share the names and addresses of known pods instead of object copies.
    fn share_with_pods(&mut self, keys: &BTreeSet<NamespacedName>) {
        for key in keys {
            for (_, slice) in self.slices.get_mut(key).into_iter().flatten() {
                slice.share(|pod| {
                    let ((_, name), state) = self.pods.get_key_value(pod)?;
                    Some((name, &state.pod.addresses[..]))
                });
            }
        }
    }

    fn endpoint_changes(&self, keys: &BTreeSet<NamespacedName>, changes: &mut Vec<Change>) {
        // Keys are ordered, so those of one namespace are adjacent.
        let mut here = PodsByAddress::new(Namespace::default());
        for key in keys {
            if here.namespace != key.0 {
                here = PodsByAddress::new(key.0.clone());
            }
            let endpoints = match self.services.get(key) {
                Some(ServiceState { stored, service: Some(service) }) => {
                    let join = EndpointJoin {
                        service,
                        keeps_sessions: stored.keeps_sessions(),
                        dual_stack: self.settings.knobs.dual_stack,
                        pod: |name: &NamespacedName| self.pods.get(name).and_then(|state| state.workload.clone()),
                        at: |address: &str| self.owner_of(&here, address),
                    };
                    self.slices.get(key).map(|slices| join.endpoints(slices)).unwrap_or_default()
                }
                _ => Vec::new(),
            };
            changes.push(Change::Endpoints(self.service_key(key), endpoints));
        }
    }

    /// The usable pods of a namespace by address.
    fn usable_pods<'a>(&'a self, namespace: &Namespace) -> HashMap<&'a str, &'a Arc<Workload>> {
        let first = (namespace.clone(), Str::default());
        let pods = self.pods.range(first..).take_while(|((ns, _), _)| ns == namespace);
        let mut found = HashMap::new();
        for (_, PodState { pod, workload }) in pods {
            if let (Some(address), Some(workload)) = (pod.usable_address(), workload) {
                // Several pods may claim an address; the first by name wins.
                found.entry(&**address).or_insert(workload);
            }
        }
        found
    }

    /// The pod of this namespace that has the address, or an endpoint without a workload.
    fn owner_of<'a>(&'a self, pods: &PodsByAddress<'a>, address: &str) -> AddressOwner {
        let workloads = pods.workloads.get_or_init(|| self.usable_pods(&pods.namespace));
        let owner = workloads.get(address).map(|workload| Arc::clone(workload));
        owner.map(AddressOwner::Pod).unwrap_or_else(|| {
            let network = self.network(&Labels::default(), address);
            let locality = Locality::default();
            let location = locality::WorkloadLocation {
                locality: &locality,
                cluster: &self.options.cluster,
                node: "",
                network: &network,
            };
            let label = |(key, value): (&str, &str)| Arc::new((key.into(), value.into()));
            let labels = locality::with_location_labels(&Labels::default(), &location, label);
            AddressOwner::Unknown(Box::new(slice::bare_endpoint(self.options.cluster.clone(), network, labels)))
        })
    }
}
