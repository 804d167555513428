//! Workloads, namespaces and credentials of all clusters.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::sync::Arc;

use crate::change::Credential;
use crate::labels::Labels;
use crate::names::{ClusterId, CredentialKey, Namespace};
use crate::workload::{Workload, WorkloadKey};

/// All workloads.
#[derive(Clone, Debug, Default)]
pub struct Workloads(imbl::OrdSet<KeyedWorkload>);

/// A workload ordered by its key. A set saves the memory that a map would need for a copy of the key.
#[derive(Clone, Debug)]
struct KeyedWorkload(Arc<Workload>);

impl Borrow<WorkloadKey> for KeyedWorkload {
    fn borrow(&self) -> &WorkloadKey {
        &self.0.key
    }
}

impl PartialEq for KeyedWorkload {
    fn eq(&self, other: &KeyedWorkload) -> bool {
        self.0.key == other.0.key
    }
}

impl Eq for KeyedWorkload {}

impl PartialOrd for KeyedWorkload {
    fn partial_cmp(&self, other: &KeyedWorkload) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for KeyedWorkload {
    fn cmp(&self, other: &KeyedWorkload) -> Ordering {
        self.0.key.cmp(&other.0.key)
    }
}

impl Workloads {
    pub fn get(&self, key: &WorkloadKey) -> Option<&Arc<Workload>> {
        self.0.get(key).map(|known| &known.0)
    }

    /// The workload of this name in the given cluster, or in any cluster if `cluster` is empty.
    pub fn named(&self, namespace: &Namespace, name: &str, cluster: &ClusterId) -> Option<&Arc<Workload>> {
        let key = WorkloadKey { namespace: namespace.clone(), name: name.into(), cluster: cluster.clone() };
        if !cluster.is_empty() {
            return self.get(&key);
        }
        let KeyedWorkload(workload) = self.0.range(key..).next()?;
        (workload.key.namespace == *namespace && *workload.key.name == *name).then_some(workload)
    }

    /// Workloads of one namespace, by name.
    pub fn of_namespace<'a>(&'a self, namespace: &'a Namespace) -> impl Iterator<Item = &'a Arc<Workload>> {
        let first = WorkloadKey { namespace: namespace.clone(), name: "".into(), cluster: ClusterId::default() };
        self.0.range(first..).map(|known| &known.0).take_while(move |w| w.key.namespace == *namespace)
    }

    /// All workloads, by namespace.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Workload>> {
        self.0.iter().map(|known| &known.0)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// False if unchanged.
    pub(super) fn insert(&mut self, workload: Arc<Workload>) -> bool {
        if self.get(&workload.key) == Some(&workload) {
            return false;
        }
        self.0.insert(KeyedWorkload(workload));
        true
    }

    pub(super) fn remove(&mut self, key: &WorkloadKey) -> bool {
        self.0.remove(key).is_some()
    }
}

/// The labels of all namespaces.
#[derive(Clone, Debug, Default)]
pub struct Namespaces(imbl::OrdMap<Namespace, Labels>);

impl Namespaces {
    pub fn labels(&self, namespace: &str) -> Option<&Labels> {
        self.0.get(namespace)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Namespace, &Labels)> {
        self.0.iter()
    }

    /// False if unchanged.
    pub(super) fn put(&mut self, namespace: &Namespace, labels: Option<Labels>) -> bool {
        if self.0.get(namespace) == labels.as_ref() {
            return false;
        }
        match labels {
            Some(labels) => self.0.insert(namespace.clone(), labels),
            None => self.0.remove(namespace),
        };
        true
    }
}

/// The credentials of Secrets and ConfigMaps.
#[derive(Clone, Debug, Default)]
pub struct Credentials(imbl::OrdMap<CredentialKey, Arc<Credential>>);

impl Credentials {
    pub fn get(&self, key: &CredentialKey) -> Option<&Arc<Credential>> {
        self.0.get(key)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&CredentialKey, &Arc<Credential>)> {
        self.0.iter()
    }

    /// False if unchanged.
    pub(super) fn put(&mut self, key: &CredentialKey, credential: Option<Arc<Credential>>) -> bool {
        if self.0.get(key) == credential.as_ref() {
            return false;
        }
        match credential {
            Some(credential) => self.0.insert(key.clone(), credential),
            None => self.0.remove(key),
        };
        true
    }
}
