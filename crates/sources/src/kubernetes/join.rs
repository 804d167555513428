//! Joins the objects of one cluster in memory. The resulting changes (`changes`) depend on the known objects only, not on
//! their order of arrival: an endpoint whose pod is not known yet is sent when the pod arrives.

mod changes;
mod limits;
pub(super) mod revisions;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use model::config::mesh::{parse_mesh, parse_networks};
use model::credential_refs::CredentialRefs;
use model::endpoint::Locality;
use model::labels::Labels;
use model::names::{ClusterId, CredentialKey, CredentialKind, Namespace, Str};
use model::problem::{FileLocation, Problem, Severity};
use model::service::Service;
use model::settings::{Knobs, Settings};
use model::workload::Workload;
use revisions::RevisionTags;

use super::collection::Collection;
use super::config::{ConfigDocuments, DocumentId, kind_id};
use super::credentials::CredentialStore;
use super::interner::{InternPool, Interner};
use super::locality;
use super::pod::{PodTemplate, StoredPod};
use super::schema::{self, ClusterObject};
use super::service::{self, StoredService};
use super::slice::{SERVICE_NAME, StoredSlice};

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
    /// Objects labelled with another revision are ignored; empty reads and owns all.
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

/// The known objects of one cluster.
#[derive(Clone, Debug)]
pub struct ClusterState {
    options: ClusterOptions,
    settings: Settings,
    interner: Interner,
    templates: InternPool<PodTemplate>,
    namespaces: BTreeMap<Namespace, NamespaceState>,
    revisions: RevisionTags,
    nodes: BTreeMap<Str, NodeState>,
    pods: BTreeMap<NamespacedName, PodState>,
    services: BTreeMap<NamespacedName, ServiceState>,
    /// By service, ordered by the name of the slice. Nearly always there is one.
    slices: BTreeMap<NamespacedName, Vec<(Str, StoredSlice)>>,
    service_of_slice: BTreeMap<NamespacedName, Str>,
    /// By service, the number of addresses whose pod is not known, as of the last changes.
    without_pod: BTreeMap<NamespacedName, usize>,
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
            revisions: RevisionTags::default(),
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            services: BTreeMap::new(),
            slices: BTreeMap::new(),
            service_of_slice: BTreeMap::new(),
            without_pod: BTreeMap::new(),
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
            ClusterObject::RevisionTag(webhook) => self.put_webhook(&Collection::RevisionTag, &webhook.metadata),
            ClusterObject::DefaultRevision(webhook) => {
                self.put_webhook(&Collection::DefaultRevision, &webhook.metadata)
            }
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
                self.put_revision_tag(collection, &key, None);
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
            Collection::RevisionTag | Collection::DefaultRevision => self.put_revision_tag(collection, &key, None),
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
        use Collection::{
            ConfigMap, DefaultRevision, EndpointSlice, Namespace, Node, Pod, RevisionTag, Secret, Service,
        };
        let all = [Service, EndpointSlice, Pod, Node, Namespace, RevisionTag, DefaultRevision, Secret, ConfigMap];
        for collection in all {
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
        let names = |kind: CredentialKind| {
            let of = self.credentials.keys().filter(move |key| key.kind == kind);
            of.map(|key| (key.namespace.clone(), key.name.clone())).collect()
        };
        match collection {
            Collection::Service => self.services.keys().cloned().collect(),
            Collection::EndpointSlice => self.service_of_slice.keys().cloned().collect(),
            Collection::Pod => self.pods.keys().cloned().collect(),
            Collection::Node => self.nodes.keys().map(|name| (Namespace::default(), name.clone())).collect(),
            Collection::Namespace => self.namespaces.keys().map(|n| (Namespace::default(), n.text().clone())).collect(),
            Collection::RevisionTag | Collection::DefaultRevision => self.revisions.names(collection),
            Collection::Secret => names(CredentialKind::Secret),
            Collection::ConfigMap => names(CredentialKind::ConfigMap),
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
        self.put_revision_tag(&Collection::Service, &key, Some(&stored.labels));
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
    pub fn keep_credentials(&mut self, named: CredentialRefs) -> Vec<CredentialKey> {
        let diff = self.credentials.keep(named);
        self.dirty.credentials.extend(diff.dropped);
        diff.to_fetch
    }

    /// Adds the content of a credential that was fetched.
    pub fn put_fetched_credential(&mut self, item: &ClusterObject) {
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
