//! The mesh as the clients of one namespace see it for their calls: egress listeners with the services and routes they
//! import, and rules for these services. Clients with the same Sidecar resource share it. Equal parts are shared
//! further: with the default visibility all namespaces have the same services.

use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};

use api::istio::networking::v1alpha3::Sidecar;
use model::config::Config;
use model::hashed::fingerprint;
use model::names::{Hostname, Namespace};
use model::proxy::ProxyKind;
use model::service::Service;
use model::snapshot::Snapshot;
use parking_lot::Mutex;

use crate::egress::{self, EgressListener};
use crate::rules::{self, ImportedRules};
use crate::sections::{Importer, Sections};

/// The part of the mesh that a group of clients can call.
#[derive(Clone, Debug)]
pub struct OutboundScope {
    /// Egress listeners with the services and routes each imports; one catch-all without a Sidecar.
    pub(crate) egress: Arc<Vec<EgressListener>>,
    pub(crate) services: Arc<ImportedServices>,
    pub(crate) rules: Arc<ImportedRules>,
}

/// Services of all egress listeners, each host once.
#[derive(Debug, Default)]
pub struct ImportedServices {
    pub list: Vec<Arc<Service>>,
    by_host: BTreeMap<Hostname, usize>,
}

impl ImportedServices {
    pub(crate) fn get(&self, host: &str) -> Option<&Arc<Service>> {
        self.by_host.get(host).map(|index| &self.list[*index])
    }
}

impl OutboundScope {
    pub(crate) fn new(sections: &Sections, importer: Importer<'_>, sidecar: Option<&Config<Sidecar>>) -> OutboundScope {
        let egress = egress::listeners(sections, importer, sidecar);
        let list = egress::imported_services(sections, importer, &egress);
        let rules = rules::for_services(sections, importer.namespace, &list);
        let by_host = list.iter().enumerate().map(|(i, s)| (s.hostname.clone(), i)).collect();
        let services = ImportedServices { list, by_host };
        OutboundScope { egress: Arc::new(egress), services: Arc::new(services), rules: Arc::new(rules) }
    }
}

/// Outbound scopes of the newest snapshots, for all clients.
#[derive(Debug, Default)]
pub struct OutboundScopes(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    scopes: HashMap<ScopeKey, (Sections, OutboundScope)>,
    /// Parts by content, to share them between scopes.
    egress: HashMap<u128, Weak<Vec<EgressListener>>>,
    services: HashMap<u128, Weak<ImportedServices>>,
    rules: HashMap<u128, Weak<ImportedRules>>,
}

/// A kind of proxy, a namespace, and the Sidecar resource that applies there.
type ScopeKey = (ProxyKind, Namespace, u128);

impl OutboundScopes {
    /// The scope of a client, computed if it is not cached for these sections.
    pub(crate) fn get(
        &self,
        sections: &Sections,
        importer: Importer<'_>,
        sidecar: Option<&Config<Sidecar>>,
    ) -> OutboundScope {
        let of_sidecar = fingerprint(&sidecar.map(|s| (&s.meta.namespace, &s.meta.name, &s.spec)));
        let key = (importer.kind, importer.namespace.clone(), of_sidecar);
        let known = |kept: &Kept| {
            let (made_of, scope) = kept.scopes.get(&key)?;
            made_of.is_same(sections).then(|| scope.clone())
        };
        if let Some(scope) = known(&self.0.lock()) {
            return scope;
        }
        // Computed outside the lock: two clients may compute the same scope, and one result is kept.
        let made = OutboundScope::new(sections, importer, sidecar);
        let mut kept = self.0.lock();
        let scope = kept.interned(made);
        kept.scopes.insert(key, (sections.clone(), scope.clone()));
        scope
    }

    /// Drops all scopes: no client is connected.
    pub fn clear(&self) {
        let kept = std::mem::take(&mut *self.0.lock());
        // Dropped after the lock is released.
        drop(kept);
    }

    /// Drops scopes of older snapshots.
    pub fn retain_newest(&self, world: &Snapshot) {
        let newest = Sections::of(world);
        let mut kept = self.0.lock();
        kept.scopes.retain(|_, (made_of, _)| made_of.is_same(&newest));
        kept.egress.retain(|_, part| part.strong_count() > 0);
        kept.services.retain(|_, part| part.strong_count() > 0);
        kept.rules.retain(|_, part| part.strong_count() > 0);
    }
}

impl Kept {
    fn interned(&mut self, scope: OutboundScope) -> OutboundScope {
        let OutboundScope { egress, services, rules } = scope;
        OutboundScope {
            egress: intern(&mut self.egress, fingerprint(&Contents(&egress)), egress),
            services: intern(&mut self.services, fingerprint(&Pointers(&services.list)), services),
            rules: intern(&mut self.rules, fingerprint(&Contents(&rules)), rules),
        }
    }
}

fn intern<T>(known: &mut HashMap<u128, Weak<T>>, key: u128, part: Arc<T>) -> Arc<T> {
    if let Some(known) = known.get(&key).and_then(Weak::upgrade) {
        return known;
    }
    known.insert(key, Arc::downgrade(&part));
    part
}

/// Services, hashed by address. The cached part keeps them alive, so none of these addresses is reused while the part
/// is cached.
struct Pointers<'a>(&'a [Arc<Service>]);

impl Hash for Pointers<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.len().hash(state);
        self.0.iter().for_each(|item| Arc::as_ptr(item).addr().hash(state));
    }
}

struct Contents<'a, T>(&'a T);

impl Hash for Contents<'_, Arc<Vec<EgressListener>>> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for listener in self.0.iter() {
            listener.spec.hash(state);
            Pointers(&listener.services).hash(state);
            listener.virtual_services.hash(state);
            listener.most_specific_routes.hash(state);
        }
    }
}

impl Hash for Contents<'_, Arc<ImportedRules>> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for (host, rules) in self.0.iter() {
            host.hash(state);
            rules.iter().for_each(|rule| (&rule.rule, &rule.export_to, &rule.from).hash(state));
        }
    }
}
