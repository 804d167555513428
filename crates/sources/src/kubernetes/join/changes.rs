//! The changes of the model that result from the known objects of a cluster.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use model::change::Change;
use model::config::Object;
use model::endpoint::Locality;
use model::labels::{Labels, selects};
use model::names::{Namespace, NetworkId, ServiceKey, Str};
use model::service::Service;
use model::workload::{Workload, WorkloadKey};

use super::{ClusterState, DirtySet, NamespacedName, PodState, ServiceState};
use crate::kubernetes::locality::{self, NETWORK};
use crate::kubernetes::pod::{self, PodContext};
use crate::kubernetes::selector::is_discovered;
use crate::kubernetes::service::{self, ServiceContext};
use crate::kubernetes::slice::{self, AddressOwner, EndpointJoin};

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
        self.count_without_pod(&dirty.endpoints);
        self.endpoint_changes(&dirty.endpoints, &mut changes);
        for key in dirty.credentials {
            let credential = self.credentials.get(&key).filter(|_| self.is_discovered(&key.namespace)).cloned();
            changes.push(Change::Credential(key, credential));
        }
        let mut documents = std::mem::take(&mut self.documents);
        documents.changes(|object| self.read(object), &mut changes);
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

    /// The object as this revision reads it, if it does.
    fn read(&self, object: &Object) -> Option<Object> {
        if !self.is_discovered(&object.meta.namespace) || !self.is_in_revision(object) {
            return None;
        }
        let mut read = object.clone();
        // Objects of other kinds have no status and no deployment.
        if object.spec.kind().is_converted() && !self.owns(&object.meta) {
            Arc::make_mut(&mut read.meta).is_of_other_revision = true;
        }
        Some(read)
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

    /// Counts addresses whose slice names a pod that is not known: they are not sent.
    fn count_without_pod(&mut self, keys: &BTreeSet<NamespacedName>) {
        for key in keys {
            let items = self.slices.get(key).into_iter().flatten().flat_map(|(_, slice)| slice.items.iter());
            let is_unknown = |pod: &NamespacedName| self.pods.get(pod).is_none_or(|state| state.workload.is_none());
            let unknown = items.filter(|item| item.pod.as_ref().is_some_and(is_unknown));
            match unknown.map(|item| item.addresses.len()).sum() {
                0 => _ = self.without_pod.remove(key),
                count => _ = self.without_pod.insert(key.clone(), count),
            }
        }
    }

    /// Services with endpoints whose pod is not known, and the number of these endpoints.
    pub(in crate::kubernetes) fn endpoints_without_pod(&self) -> (usize, usize) {
        (self.without_pod.len(), self.without_pod.values().sum())
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
