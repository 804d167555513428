//! All services: those of registries and those of ServiceEntries. A Kubernetes service in several clusters is merged
//! into one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::change::SourceId;
use crate::config::Key;
use crate::conflict::ConflictSettings;
use crate::names::{Hostname, Namespace, ServiceKey};
use crate::service::{KubernetesService, Registry, Resolution, Service};

use super::auto_address;
use super::conflicts::{self, RegistryServices, SettledServices};

/// All services, oldest first, with indexes.
#[derive(Clone, Debug, Default)]
pub struct Services {
    registered: RegistryServices,
    /// Services by ServiceEntry, in the order of its hosts and addresses.
    entries: imbl::OrdMap<Key, Arc<[Arc<Service>]>>,
    all: Arc<[Arc<Service>]>,
    by_key: BTreeMap<ServiceKey, Arc<Service>>,
    /// Kubernetes services with a selector, oldest first.
    selecting: BTreeMap<Namespace, Vec<Arc<Service>>>,
    /// Services with addresses of load balancers or nodes.
    external: Vec<Arc<Service>>,
    /// Something changed since the last `settle`.
    is_unsettled: bool,
}

impl Services {
    /// All services, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.all.iter()
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The services of a host name, one per namespace, by namespace.
    pub fn owners<'a>(&'a self, host: &str) -> impl Iterator<Item = &'a Arc<Service>> + use<'a> {
        let first = ServiceKey { hostname: host.into(), namespace: Namespace::default() };
        let hostname = first.hostname.clone();
        let owners = self.by_key.range(first..).take_while(move |(key, _)| key.hostname == hostname);
        owners.map(|(_, service)| service)
    }

    pub fn get(&self, key: &ServiceKey) -> Option<&Arc<Service>> {
        self.by_key.get(key)
    }

    /// Kubernetes services of a namespace with a selector, oldest first.
    pub fn selecting(&self, namespace: &str) -> &[Arc<Service>] {
        self.selecting.get(namespace).map_or(&[], |list| list)
    }

    /// Services with addresses of load balancers or nodes, oldest first.
    pub fn external(&self) -> &[Arc<Service>] {
        &self.external
    }

    /// Services of a ServiceEntry.
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

    /// Replaces the services of some ServiceEntries; an empty list removes an entry.
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

    /// Resolves conflicts and rebuilds the indexes. `None` if nothing changed since the last call.
    pub(super) fn settle(&mut self, conflicts: &ConflictSettings) -> Option<SettledServices> {
        if !std::mem::take(&mut self.is_unsettled) {
            return None;
        }
        let mut settled = conflicts::settle(&self.registered, conflicts);
        self.index(std::mem::take(&mut settled.services));
        Some(settled)
    }

    /// Forces the next `settle`, after the conflict settings changed.
    pub(super) fn unsettle(&mut self) {
        self.is_unsettled = true;
    }

    pub(super) fn is_unsettled(&self) -> bool {
        self.is_unsettled
    }

    fn index(&mut self, registered: Vec<Arc<Service>>) {
        let mut all = merged(registered);
        auto_address::registries::allocate(&mut all, self.entries.values().flat_map(|services| services.iter()));
        all.extend(self.entries.values().flat_map(|services| services.iter()).cloned());
        // Ties are broken by name and namespace, so the order is the same on every replica.
        all.sort_by(|a, b| (a.created, &a.name, &a.namespace).cmp(&(b.created, &b.name, &b.namespace)));
        name_aliases(&mut all);
        self.by_key.clear();
        self.selecting.clear();
        let is_external = |s: &&Arc<Service>| s.kubernetes.as_ref().is_some_and(|k| !k.external_addresses.is_empty());
        self.external = all.iter().filter(is_external).cloned().collect();
        for service in &all {
            let key = service.key();
            if self.by_key.get(&key).is_none_or(|owner| yields(owner, service)) {
                self.by_key.insert(key, service.clone());
            }
            if service.registry == Registry::Kubernetes && !service.selector.is_empty() {
                self.selecting.entry(service.namespace.clone()).or_default().push(service.clone());
            }
        }
        self.all = all.into();
    }
}

/// Merges Kubernetes services of the same host name. The result is that of the first cluster, by the name of its
/// source, with the addresses and accounts of all clusters.
fn merged(registered: Vec<Arc<Service>>) -> Vec<Arc<Service>> {
    let mut found: Vec<Arc<Service>> = Vec::new();
    let mut by_host: BTreeMap<Hostname, usize> = BTreeMap::new();
    for service in registered {
        if service.registry != Registry::Kubernetes {
            found.push(service);
            continue;
        }
        match by_host.get(&service.hostname) {
            None => {
                by_host.insert(service.hostname.clone(), found.len());
                found.push(service);
            }
            Some(index) => add(Arc::make_mut(&mut found[*index]), &service),
        }
    }
    found
}

/// Adds the addresses and accounts of another cluster.
fn add(service: &mut Service, other: &Service) {
    for (cluster, addresses) in &other.cluster_addresses {
        if !service.cluster_addresses.iter().any(|(known, _)| known == cluster) {
            service.cluster_addresses.push((cluster.clone(), addresses.clone()));
        }
    }
    for account in &other.service_accounts {
        if !service.service_accounts.contains(account) {
            service.service_accounts.push(account.clone());
        }
    }
    if let Some(theirs) = other.kubernetes.as_ref().filter(|k| !k.external_addresses.is_empty()) {
        let ours = Arc::make_mut(service.kubernetes.get_or_insert_default());
        ours.external_addresses.extend(theirs.external_addresses.iter().cloned());
    }
}

/// Sets the aliases of each service. A chain of aliases ends at its last name; a cycle is ignored.
fn name_aliases(all: &mut [Arc<Service>]) {
    let target = |s: &Service| s.kubernetes.as_ref().and_then(|k: &Arc<KubernetesService>| k.alias_of.clone());
    let aliases = all.iter().filter(|s| s.resolution == Resolution::Alias);
    let named: BTreeMap<Hostname, (ServiceKey, Hostname)> =
        aliases.filter_map(|s| Some((s.hostname.clone(), (s.key(), target(s)?)))).collect();
    let mut known_as: BTreeMap<Hostname, BTreeSet<ServiceKey>> = BTreeMap::new();
    for (alias, first) in named.values() {
        let mut seen = BTreeSet::from([&alias.hostname]);
        let mut host = first;
        while let Some((_, next)) = named.get(host).filter(|_| seen.insert(host)) {
            host = next;
        }
        if !named.contains_key(host) {
            known_as.entry(host.clone()).or_default().insert(alias.clone());
        }
    }
    for service in all.iter_mut() {
        if let Some(names) = known_as.get(&service.hostname) {
            Arc::make_mut(service).aliases = names.iter().cloned().collect();
        }
    }
}

/// The oldest service owns a host name, but Kubernetes services take precedence.
fn yields(owner: &Service, newcomer: &Service) -> bool {
    owner.registry != Registry::Kubernetes && newcomer.registry == Registry::Kubernetes
}
