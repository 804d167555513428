//! All services of all registries, joined: what ServiceEntries say stands beside what registries found.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::change::SourceId;
use crate::config::Key;
use crate::conflict::Conflicts;
use crate::names::{Hostname, Namespace, ServiceKey};
use crate::service::{Registry, Service};

use super::conflicts::{self, Registered, Settled};

/// Every service, oldest first, with an index by host name.
#[derive(Clone, Debug, Default)]
pub struct Services {
    registered: Registered,
    /// Services of each ServiceEntry, in the order of its hosts and addresses.
    entries: imbl::OrdMap<Key, Arc<[Arc<Service>]>>,
    all: Arc<[Arc<Service>]>,
    by_host: BTreeMap<Hostname, BTreeMap<Namespace, Arc<Service>>>,
    /// Something was told since the last `settle`.
    is_unsettled: bool,
}

impl Services {
    /// Every service, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.all.iter()
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The owner of a host name in each namespace that has one.
    pub fn by_host(&self, host: &str) -> Option<&BTreeMap<Namespace, Arc<Service>>> {
        self.by_host.get(host)
    }

    pub fn get(&self, key: &ServiceKey) -> Option<&Arc<Service>> {
        self.by_host.get(&key.hostname)?.get(&key.namespace)
    }

    /// Services that a ServiceEntry gave.
    pub(super) fn of_entry(&self, entry: &Key) -> Option<&Arc<[Arc<Service>]>> {
        self.entries.get(entry)
    }

    pub(super) fn register(&mut self, source: &SourceId, service: Arc<Service>) -> Option<ServiceKey> {
        let key = service.key();
        let slot = (source.clone(), key.clone());
        if self.registered.get(&slot) == Some(&service) {
            return None;
        }
        self.registered.insert(slot, service);
        self.is_unsettled = true;
        Some(key)
    }

    pub(super) fn unregister(&mut self, source: &SourceId, key: &ServiceKey) -> bool {
        let known = self.registered.remove(&(source.clone(), key.clone())).is_some();
        self.is_unsettled |= known;
        known
    }

    /// Replaces what some ServiceEntries give; an empty list removes one.
    pub(super) fn replace_entries(&mut self, changed: Vec<(Key, Vec<Arc<Service>>)>) {
        for (entry, services) in changed {
            if services.is_empty() {
                self.entries.remove(&entry);
            } else {
                self.entries.insert(entry, services.into());
            }
        }
        self.is_unsettled = true;
    }

    /// Indexes what was told since the last time. `None` where nothing was.
    pub(super) fn settle(&mut self, conflicts: &Conflicts) -> Option<Settled> {
        if !std::mem::take(&mut self.is_unsettled) {
            return None;
        }
        let mut settled = conflicts::settle(&self.registered, conflicts);
        self.index(std::mem::take(&mut settled.services));
        Some(settled)
    }

    pub(super) fn is_unsettled(&self) -> bool {
        self.is_unsettled
    }

    fn index(&mut self, mut all: Vec<Arc<Service>>) {
        all.extend(self.entries.values().flat_map(|services| services.iter()).cloned());
        // Ties are broken by name and namespace, so the order is the same on every replica.
        all.sort_by(|a, b| (a.created, &a.name, &a.namespace).cmp(&(b.created, &b.name, &b.namespace)));
        self.by_host.clear();
        for service in &all {
            let owners = self.by_host.entry(service.hostname.clone()).or_default();
            let taken = owners.get(&service.namespace).is_some_and(|owner| !yields(owner, service));
            if !taken {
                owners.insert(service.namespace.clone(), service.clone());
            }
        }
        self.all = all.into();
    }
}

/// The oldest service owns a host name, but Kubernetes' own services go before all others.
fn yields(owner: &Service, newcomer: &Service) -> bool {
    owner.registry != Registry::Kubernetes && newcomer.registry == Registry::Kubernetes
}
