//! The state of the mesh: immutable sections behind `Arc`. Applying a batch returns a new snapshot that shares every
//! unchanged section, and the keys that changed. One task writes; readers never wait.

pub mod auto_address;
mod conflicts;
pub mod endpoints;
pub mod gateway_api;
pub mod objects;
mod plugins;
pub mod routing;
mod service_entries;
pub mod services;
mod stores;
pub mod synthetic;
mod workload_entries;
pub mod workloads;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::change::{Batch, Change, SourceId};
use crate::config::problem::Problem;
use crate::config::traits::SnapshotSection;
use crate::config::{Key, Kind, Object};
use crate::credential_refs::CredentialRefs;
use crate::fetch_requests::{FetchRequests, KeySets};
use crate::names::{CredentialKey, Namespace, ServiceKey};
use crate::settings::Settings;
use crate::workload::WorkloadKey;
use auto_address::entries::AutoAddresses;
use endpoints::Endpoints;
use gateway_api::ConvertedConfig;
use objects::{AllObjects, Extensions, Gateways, Objects, SecurityPolicies, Sidecars};
use routing::Routing;
use services::Services;
use workloads::{Credentials, Namespaces, Workloads};

/// The whole mesh at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub settings: Arc<Settings>,
    /// All config objects, for debug pages and for rebuilding sections.
    pub objects: Arc<Objects>,
    /// Objects converted from the Gateway API, Ingress and legacy kinds, and statuses.
    pub converted: Arc<ConvertedConfig>,
    pub services: Arc<Services>,
    pub endpoints: Arc<Endpoints>,
    /// Automatic addresses of ServiceEntry hosts.
    pub auto_addresses: Arc<AutoAddresses>,
    pub routing: Arc<Routing>,
    pub policy: Arc<SecurityPolicies>,
    pub gateways: Arc<Gateways>,
    pub sidecars: Arc<Sidecars>,
    pub extensions: Arc<Extensions>,
    pub workloads: Arc<Workloads>,
    pub namespaces: Arc<Namespaces>,
    pub credentials: Arc<Credentials>,
    /// Fetched JSON Web Key Sets.
    pub keys: Arc<KeySets>,
    /// Problems by source. Steps of `rebuild` report under their own names.
    pub problems: Arc<BTreeMap<SourceId, Vec<Problem>>>,
    /// Sources that have reported their complete initial state.
    pub synced: Arc<BTreeSet<SourceId>>,
}

/// Keys whose meaning differs from the previous snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    pub settings: bool,
    pub objects: BTreeSet<Key>,
    pub services: BTreeSet<ServiceKey>,
    pub endpoints: BTreeSet<ServiceKey>,
    pub workloads: BTreeSet<WorkloadKey>,
    pub namespaces: BTreeSet<Namespace>,
    pub credentials: BTreeSet<CredentialKey>,
    /// A fetched key set changed.
    pub keys: bool,
}

impl Delta {
    pub fn is_empty(&self) -> bool {
        *self == Delta::default()
    }

    pub fn len(&self) -> usize {
        let (names, places) = (self.services.len() + self.endpoints.len(), self.namespaces.len());
        self.objects.len() + names + self.workloads.len() + places + self.credentials.len()
    }

    /// Whether an object of this kind changed.
    pub fn touches(&self, kind: Kind) -> bool {
        self.objects.iter().any(|key| key.kind == kind)
    }

    /// Sections that have to be rebuilt. Routing also depends on settings.
    fn sections(&self) -> BTreeSet<SnapshotSection> {
        let changed = self.objects.iter().map(|key| key.kind.traits().section);
        changed.chain(self.settings.then_some(SnapshotSection::Routing)).collect()
    }

    pub fn merge(&mut self, other: Delta) {
        self.settings |= other.settings;
        self.objects.extend(other.objects);
        self.services.extend(other.services);
        self.endpoints.extend(other.endpoints);
        self.workloads.extend(other.workloads);
        self.namespaces.extend(other.namespaces);
        self.credentials.extend(other.credentials);
        self.keys |= other.keys;
    }
}

impl Snapshot {
    /// An empty mesh.
    pub fn empty(settings: Settings) -> Snapshot {
        Snapshot {
            settings: Arc::new(settings),
            objects: Arc::default(),
            converted: Arc::default(),
            services: Arc::default(),
            endpoints: Arc::default(),
            auto_addresses: Arc::default(),
            routing: Arc::default(),
            policy: Arc::default(),
            gateways: Arc::default(),
            sidecars: Arc::default(),
            extensions: Arc::default(),
            workloads: Arc::default(),
            namespaces: Arc::default(),
            credentials: Arc::default(),
            keys: Arc::default(),
            problems: Arc::default(),
            synced: Arc::default(),
        }
    }

    /// Key sets and credentials that the mesh refers to.
    pub fn fetch_requests(&self) -> FetchRequests {
        let kinds = Kind::ALL.iter().filter(|kind| kind.traits().has_credentials);
        let all = AllObjects { written: &self.objects, converted: &self.converted.objects };
        let credentials = CredentialRefs::of(kinds.flat_map(|kind| all.of(*kind)));
        FetchRequests::of(&self.policy.request_authentications, credentials)
    }

    /// Applies batches. Returns the new snapshot, which shares unchanged sections, and what changed.
    pub fn apply(&self, batches: Vec<Batch>) -> (Snapshot, Delta) {
        let mut next = self.clone();
        let mut delta = Delta::default();
        for batch in batches {
            for change in batch.changes {
                next.apply_change(&batch.source, change, &mut delta);
            }
        }
        next.rebuild(&mut delta);
        (next, delta)
    }

    /// The mesh with some objects replaced or removed, whatever store they come from.
    #[must_use]
    pub fn with(&self, objects: impl IntoIterator<Item = (Key, Option<Object>)>) -> Snapshot {
        let mut next = self.clone();
        let mut delta = Delta::default();
        for (key, object) in objects {
            let all = Arc::make_mut(&mut next.objects);
            let is_new = match object {
                Some(object) => {
                    let before = all.get(&key).cloned();
                    all.insert(object.clone());
                    before.is_none_or(|before| !before.means_the_same_as(&object))
                }
                None => all.remove(&key).is_some(),
            };
            if is_new {
                delta.objects.insert(key);
            }
        }
        next.rebuild(&mut delta);
        next
    }

    /// Stores one change. Derived sections are updated later, in `rebuild`.
    fn apply_change(&mut self, source: &SourceId, change: Change, delta: &mut Delta) {
        match change {
            Change::Applied(object) => self.put_object(source, object.key(), Some(object), delta),
            Change::Deleted(key) => self.put_object(source, key, None, delta),
            Change::ServiceApplied(service) => {
                if let Some(key) = Arc::make_mut(&mut self.services).register(source, service) {
                    delta.services.insert(key);
                }
            }
            Change::ServiceDeleted(key) => {
                if Arc::make_mut(&mut self.services).unregister(source, &key) {
                    delta.services.insert(key);
                }
            }
            Change::Endpoints(key, list) => {
                delta.endpoints.extend(Arc::make_mut(&mut self.endpoints).put(&key, &source.0, list));
            }
            Change::WorkloadApplied(workload) => {
                let key = workload.key.clone();
                if Arc::make_mut(&mut self.workloads).insert(workload) {
                    delta.workloads.insert(key);
                }
            }
            Change::WorkloadDeleted(key) => {
                if Arc::make_mut(&mut self.workloads).remove(&key) {
                    delta.workloads.insert(key);
                }
            }
            Change::Namespace(namespace, labels) => {
                if Arc::make_mut(&mut self.namespaces).put(&namespace, labels) {
                    delta.namespaces.insert(namespace);
                }
            }
            Change::Credential(key, credential) => {
                if Arc::make_mut(&mut self.credentials).put(&key, credential) {
                    delta.credentials.insert(key);
                }
            }
            Change::Mesh(mesh) => {
                if self.settings.mesh != mesh {
                    Arc::make_mut(&mut self.settings).mesh = mesh;
                    delta.settings = true;
                }
            }
            Change::Networks(networks) => {
                if self.settings.networks != networks {
                    Arc::make_mut(&mut self.settings).networks = networks;
                    delta.settings = true;
                }
            }
            Change::ConflictSettings(conflicts) => {
                if self.settings.conflicts != *conflicts {
                    Arc::make_mut(&mut self.settings).conflicts = *conflicts;
                    Arc::make_mut(&mut self.services).unsettle();
                    delta.settings = true;
                }
            }
            Change::KeySet(source, found) => {
                if self.keys.get(&source) != found.as_ref() {
                    let keys = Arc::make_mut(&mut self.keys);
                    match found {
                        Some(set) => _ = keys.insert(source, set),
                        None => _ = keys.remove(&source),
                    }
                    delta.keys = true;
                }
            }
            Change::Renew => delta.settings = true,
            Change::Problems(list) => {
                Arc::make_mut(&mut self.problems).insert(source.clone(), list);
            }
            Change::Synced => {
                Arc::make_mut(&mut self.synced).insert(source.clone());
            }
        }
    }

    fn put_object(&mut self, store: &SourceId, key: Key, object: Option<Object>, delta: &mut Delta) {
        if Arc::make_mut(&mut self.objects).put(store, &key, object, &self.settings.conflicts.stores) {
            delta.objects.insert(key);
        }
    }

    /// Updates the derived sections.
    fn rebuild(&mut self, delta: &mut Delta) {
        if self.objects.contested_changed
            && let Some(problems) = Arc::make_mut(&mut self.objects).contested()
        {
            self.set_problems("stores", &problems);
        }
        let mut statuses_changed = service_entries::join(self, delta);
        self.settle(delta);
        workload_entries::join(self, delta);
        if self.converted.is_stale(delta) {
            let fresh = ConvertedConfig::build(self, &self.converted);
            delta.objects.extend(fresh.changed(&self.converted));
            self.set_problems("converted", &fresh.problems);
            self.converted = Arc::new(fresh);
            statuses_changed = true;
        }
        if statuses_changed {
            let statuses = &mut Arc::make_mut(&mut self.converted).statuses;
            statuses.retain(|key, _| key.kind != Kind::ServiceEntry);
            statuses.extend(self.auto_addresses.statuses());
        }
        for section in delta.sections() {
            self.rebuild_section(section);
        }
        let (routing, extensions) = (self.routing.clone(), self.extensions.clone());
        self.set_problems("delegates", &routing.problems);
        self.set_problems("patches", &extensions.problems);
    }

    fn rebuild_section(&mut self, section: SnapshotSection) {
        let all = AllObjects { written: &self.objects, converted: &self.converted.objects };
        match section {
            SnapshotSection::Routing => self.routing = Arc::new(Routing::build(&all, &self.settings, &self.routing)),
            SnapshotSection::Security => self.policy = Arc::new(SecurityPolicies::build(&all)),
            SnapshotSection::Gateways => self.gateways = Arc::new(Gateways::build(&all)),
            SnapshotSection::Sidecars => self.sidecars = Arc::new(Sidecars::build(&self.objects)),
            SnapshotSection::Extensions => {
                let knobs = &self.settings.knobs;
                self.extensions = Arc::new(Extensions::build(&self.objects, &self.extensions, knobs));
            }
            // `rebuild` has updated these before.
            SnapshotSection::Services | SnapshotSection::Converted => {}
            SnapshotSection::None => {}
        }
    }

    /// Resolves conflicts between registries and indexes the services, once for all changes of a batch.
    fn settle(&mut self, delta: &mut Delta) {
        if !self.services.is_unsettled() {
            return;
        }
        let services = Arc::make_mut(&mut self.services);
        let Some(settled) = services.settle(&self.settings.conflicts) else { return };
        let touched = settled.placements.iter().filter(|((key, _), _)| delta.services.contains(key));
        let shown: Vec<ServiceKey> = touched.filter_map(|(_, target)| target.clone()).collect();
        let moved = Arc::make_mut(&mut self.endpoints).place(&settled.placements);
        delta.services.extend(moved.iter().cloned().chain(shown));
        delta.endpoints.extend(moved);
        self.set_problems("conflicts", &settled.problems);
    }

    /// Replaces the problems of a step of `rebuild`.
    fn set_problems(&mut self, step: &str, problems: &[Problem]) {
        let step = SourceId(step.into());
        if self.problems.get(&step).map_or(&[][..], |known| known) != problems {
            Arc::make_mut(&mut self.problems).insert(step, problems.to_vec());
        }
    }
}
