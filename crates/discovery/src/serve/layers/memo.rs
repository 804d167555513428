//! Results cached by the inputs they were computed from. A client whose view has the same inputs gets the cached
//! result. Results are stored by the set of inputs read, of which there are a handful, and for each set by the
//! fingerprint of the values.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use model::names::{Namespace, ServiceKey};
use parking_lot::Mutex;
use scope::View;
use scope::reads::{Aspect, EndpointReads, ReadSet, Reads};

use crate::serve::class::missing_input;
use crate::serve::snapshot_writer::PublishedSnapshot;

/// The view and the snapshot for which a result is requested.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerRequest<'a> {
    pub(crate) view: &'a Arc<View>,
    pub(crate) published: &'a PublishedSnapshot,
    /// The fingerprint of the view's pins; 0 without pins.
    pub(crate) pins: u128,
}

impl<'a> LayerRequest<'a> {
    /// The services whose endpoints changed since an earlier snapshot; one may be repeated. `None` if unknown: there
    /// are too many steps between, or the view has pins, which the steps do not describe.
    pub(crate) fn changed_endpoints(&self, earlier: u64) -> Option<impl Iterator<Item = &'a ServiceKey> + Clone> {
        if self.pins != 0 {
            return None;
        }
        self.published.deltas_since(earlier).map(|deltas| deltas.flat_map(|delta| &delta.endpoints))
    }

    /// Whether few endpoints changed since an earlier snapshot.
    pub(crate) fn is_next_to(&self, earlier: u64) -> bool {
        const FEW: usize = 8;
        let Some(changed) = self.changed_endpoints(earlier) else { return false };
        let mut distinct = BTreeSet::new();
        changed.clone().take(FEW + 1).count() <= FEW || changed.filter(|key| distinct.insert(*key)).nth(FEW).is_none()
    }
}

/// Results of one kind of computation, by name.
#[derive(Debug)]
pub(crate) struct Memo<T> {
    named: Mutex<HashMap<Box<str>, Vec<Group<T>>>>,
    /// Held while a result is computed for clients of a namespace, so that it is computed once.
    computing: Mutex<HashMap<Namespace, Arc<Mutex<()>>>>,
}

impl<T> Default for Memo<T> {
    fn default() -> Self {
        Memo { named: Mutex::default(), computing: Mutex::default() }
    }
}

/// Results that were computed from the same set of inputs.
#[derive(Debug)]
struct Group<T> {
    reads: ReadSet,
    entries: HashMap<(u128, u128), Arc<Entry<T>>>,
}

/// One result.
#[derive(Debug)]
pub(crate) struct Entry<T> {
    pub(crate) value: T,
    endpoints: EndpointReads,
    valid: Mutex<Valid>,
}

/// The newest snapshot for which a result is known to be valid. Fingerprints identify sections by address, so the
/// view that has them is kept.
#[derive(Debug)]
struct Valid {
    number: u64,
    _inputs: Arc<View>,
}

impl<T> Entry<T> {
    /// A result that is not shared.
    pub(crate) fn unshared(value: T, view: &Arc<View>) -> Arc<Entry<T>> {
        let valid = Valid { number: 0, _inputs: view.clone() };
        Arc::new(Entry { value, endpoints: EndpointReads::default(), valid: Mutex::new(valid) })
    }

    /// Whether the result is valid for a view with the same inputs; only endpoints are compared. A result that is
    /// valid for a later snapshot is served too: the client will take up that snapshot next.
    pub(crate) fn holds(&self, request: LayerRequest<'_>) -> bool {
        let mut valid = self.valid.lock();
        let (published, view) = (request.published, request.view);
        if valid.number >= published.number {
            return true;
        }
        let is_same = |key: &_, aspect| {
            let found = self.endpoints.get(&(ServiceKey::clone(key), aspect));
            found.is_none_or(|found| view.has_endpoints(key, aspect, *found))
        };
        let changed = if self.endpoints.is_empty() { None } else { request.changed_endpoints(valid.number) };
        let holds = match changed {
            Some(mut changed) => changed.all(|key| is_same(key, Aspect::All) && is_same(key, Aspect::Identities)),
            None => self.endpoints.iter().all(|((key, aspect), found)| view.has_endpoints(key, *aspect, *found)),
        };
        if holds {
            *valid = Valid { number: published.number, _inputs: view.clone() };
        }
        holds
    }

    fn number(&self) -> u64 {
        self.valid.lock().number
    }
}

impl<T> Memo<T> {
    /// The result of this name for a view, computed unless it is cached.
    pub(crate) fn get(
        &self,
        request: LayerRequest<'_>,
        name: &str,
        compute: impl FnOnce(&View, &Reads) -> T,
    ) -> Arc<Entry<T>> {
        if let Some(found) = self.find(request, name) {
            return found;
        }
        let namespace = &request.view.proxy.unrecorded().namespace;
        let computing = self.computing.lock().entry(namespace.clone()).or_default().clone();
        let _computing = computing.lock();
        // Another client of the namespace may have computed it meanwhile.
        if let Some(found) = self.find(request, name) {
            return found;
        }
        self.renew(request, name, compute)
    }

    /// The result of this name for a view, computed even if it is cached.
    pub(crate) fn renew(
        &self,
        request: LayerRequest<'_>,
        name: &str,
        compute: impl FnOnce(&View, &Reads) -> T,
    ) -> Arc<Entry<T>> {
        let (view, reads) = request.view.recording();
        let value = compute(&view, &reads);
        debug_assert_eq!(
            missing_input(request.view.proxy.unrecorded(), &reads.set()),
            None,
            "{name} reads what the class of its clients lacks"
        );
        let valid = Valid { number: request.published.number, _inputs: request.view.clone() };
        let entry = Arc::new(Entry { value, endpoints: reads.take_endpoints(), valid: Mutex::new(valid) });
        self.insert(request, name, reads.set(), entry.clone());
        entry
    }

    /// The cached result of this name for a view.
    pub(crate) fn find(&self, request: LayerRequest<'_>, name: &str) -> Option<Arc<Entry<T>>> {
        let named = self.named.lock();
        let candidates = named.get(name)?.iter().filter_map(|group| {
            let key = (request.view.fingerprint(&group.reads), request.pins);
            group.entries.get(&key).cloned()
        });
        let candidates: Vec<_> = candidates.collect();
        // Endpoints are compared outside the lock.
        drop(named);
        candidates.into_iter().find(|entry| entry.holds(request))
    }

    fn insert(&self, request: LayerRequest<'_>, name: &str, reads: ReadSet, entry: Arc<Entry<T>>) {
        let key = (request.view.fingerprint(&reads), request.pins);
        let mut named = self.named.lock();
        if !named.contains_key(name) {
            named.insert(name.into(), Vec::new());
        }
        let Some(groups) = named.get_mut(name) else { return };
        let mut dropped = Vec::new();
        for group in groups.iter_mut() {
            dropped.extend(
                group
                    .entries
                    .extract_if(|_, entry| Arc::strong_count(entry) == 1 && entry.number() < request.published.number),
            );
        }
        groups.retain(|group| !group.entries.is_empty());
        match groups.iter_mut().find(|group| group.reads == reads) {
            Some(group) => _ = group.entries.insert(key, entry),
            None => groups.push(Group { reads, entries: HashMap::from([(key, entry)]) }),
        }
        drop(named);
        // Dropped after the lock is released.
        drop(dropped);
    }

    /// Drops results that no client uses.
    pub(crate) fn free_unused(&self) {
        let mut dropped = Vec::new();
        let mut named = self.named.lock();
        for group in named.values_mut().flatten() {
            dropped.extend(group.entries.extract_if(|_, entry| Arc::strong_count(entry) == 1));
        }
        named.retain(|_, groups| {
            groups.retain(|group| !group.entries.is_empty());
            !groups.is_empty()
        });
        drop(named);
        self.computing.lock().retain(|_, computing| Arc::strong_count(computing) > 1);
    }

    /// Number of results.
    pub(crate) fn len(&self) -> usize {
        self.named.lock().values().flatten().map(|group| group.entries.len()).sum()
    }

    /// Calls a function with every result, for housekeeping.
    pub(crate) fn for_each(&self, mut act: impl FnMut(&T)) {
        let all: Vec<Arc<Entry<T>>> =
            self.named.lock().values().flatten().flat_map(|group| group.entries.values().cloned()).collect();
        all.iter().for_each(|entry| act(&entry.value));
    }
}
