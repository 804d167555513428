//! Config objects in memory, with the interface of upstream's config store: schemas, get, list, create, update, delete,
//! event handlers, run and has-synced. It is also a source.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use model::change::{Change, SourceId};
use model::config::validate::validate;
use model::config::{Key, Kind, Meta, Object};
use model::names::{Namespace, Str};
use model::problem::{Problem, Severity};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tracing::error;

use crate::source::{ChangeSender, Source, SourceError, panic_text};

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryStoreError {
    #[error("the store does not accept kind {0}")]
    UnknownKind(Kind),
    #[error("{0} already exists")]
    AlreadyExists(Key),
    #[error("{0} was not found")]
    NotFound(Key),
    /// It was changed meanwhile: read it and try again.
    #[error("{key} is at resource version {found}, not {expected}")]
    Conflict { key: Key, expected: Str, found: Str },
    #[error("{key} is not valid: {}", .problems.iter().map(|p| &*p.message).collect::<Vec<_>>().join("; "))]
    Invalid { key: Key, problems: Vec<Problem> },
}

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreEvent {
    Add,
    Update,
    Delete,
}

/// Called with the object before (only on update), the object now (on delete: the last one), and what happened.
pub type EventHandler = dyn Fn(Option<&Object>, &Object, StoreEvent) + Send + Sync;

/// A handle on the store; clones share it.
#[derive(Clone)]
pub struct MemoryStore(Arc<MemoryStoreInner>);

struct MemoryStoreInner {
    source: SourceId,
    kinds: BTreeSet<Kind>,
    state: Mutex<MemoryStoreState>,
    wake: Notify,
}

#[derive(Default)]
struct MemoryStoreState {
    objects: BTreeMap<Key, Object>,
    last_version: u64,
    handlers: BTreeMap<Kind, Vec<Arc<EventHandler>>>,
    /// Events not yet passed to handlers.
    events: VecDeque<QueuedEvent>,
    is_dispatching: bool,
    /// Objects as sent to the change channel.
    published: BTreeMap<Key, Object>,
    /// Keys whose object may differ from the published one.
    unpublished: BTreeSet<Key>,
    is_synced: bool,
}

struct QueuedEvent {
    old: Option<Object>,
    object: Object,
    event: StoreEvent,
}

impl MemoryStore {
    /// An empty store for these kinds.
    pub fn new(source: impl Into<Str>, kinds: impl IntoIterator<Item = Kind>) -> MemoryStore {
        MemoryStore(Arc::new(MemoryStoreInner {
            source: SourceId(source.into()),
            kinds: kinds.into_iter().collect(),
            state: Mutex::default(),
            wake: Notify::new(),
        }))
    }

    /// The kinds that the store accepts.
    pub fn schemas(&self) -> impl Iterator<Item = Kind> + '_ {
        self.0.kinds.iter().copied()
    }

    pub fn get(&self, key: &Key) -> Option<Object> {
        self.state().objects.get(key).cloned()
    }

    /// Objects of one kind by namespace and name; of all namespaces where none is given.
    pub fn list(&self, kind: Kind, namespace: Option<&Namespace>) -> Vec<Object> {
        let first = Key { kind, namespace: namespace.cloned().unwrap_or_default(), name: "".into() };
        let state = self.state();
        let from_first = state.objects.range(first..);
        let wanted = |key: &Key| key.kind == kind && namespace.is_none_or(|n| key.namespace == *n);
        from_first.take_while(|(key, _)| wanted(key)).map(|(_, object)| object.clone()).collect()
    }

    /// Adds an object. Gives its resource version: its own, or a new one where it has none.
    pub fn create(&self, object: Object) -> Result<Str, MemoryStoreError> {
        let key = self.acceptable(&object)?;
        let mut state = self.state();
        if state.objects.contains_key(&key) {
            return Err(MemoryStoreError::AlreadyExists(key));
        }
        let version = match &object.meta.resource_version {
            given if !given.is_empty() => given.clone(),
            _ => state.next_version(),
        };
        let created = if object.meta.created == 0 { seconds_since_1970() } else { object.meta.created };
        let object = stamped(object, &version, created);
        state.store(key, object, StoreEvent::Add);
        self.published(state);
        Ok(version)
    }

    /// Replaces an object; with a resource version, only if the stored one has it. Returns the new version.
    pub fn update(&self, object: Object) -> Result<Str, MemoryStoreError> {
        let key = self.acceptable(&object)?;
        let mut state = self.state();
        let created = state.expect_version(&key, &object.meta.resource_version)?.created;
        let created = if object.meta.created == 0 { created } else { object.meta.created };
        let version = state.next_version();
        let object = stamped(object, &version, created);
        state.store(key, object, StoreEvent::Update);
        self.published(state);
        Ok(version)
    }

    /// Removes an object; with a resource version, only if the stored one has it.
    pub fn delete(&self, key: &Key, resource_version: Option<&str>) -> Result<(), MemoryStoreError> {
        self.taken(key.kind)?;
        let mut state = self.state();
        state.expect_version(key, resource_version.unwrap_or_default())?;
        if let Some(object) = state.objects.remove(key) {
            state.unpublished.insert(key.clone());
            state.events.push_back(QueuedEvent { old: None, object, event: StoreEvent::Delete });
        }
        self.published(state);
        Ok(())
    }

    /// Registers a handler that is called for every later event of a kind, in order.
    /// It runs on the thread that changed the store, and may itself change the store.
    pub fn register_event_handler(
        &self,
        kind: Kind,
        handler: impl Fn(Option<&Object>, &Object, StoreEvent) + Send + Sync + 'static,
    ) -> Result<(), MemoryStoreError> {
        self.taken(kind)?;
        self.state().handlers.entry(kind).or_default().push(Arc::new(handler));
        Ok(())
    }

    /// Whether the initial objects have been sent.
    pub fn has_synced(&self) -> bool {
        self.state().is_synced
    }

    fn taken(&self, kind: Kind) -> Result<(), MemoryStoreError> {
        if self.0.kinds.contains(&kind) { Ok(()) } else { Err(MemoryStoreError::UnknownKind(kind)) }
    }

    fn acceptable(&self, object: &Object) -> Result<Key, MemoryStoreError> {
        let key = object.key();
        self.taken(key.kind)?;
        let problems: Vec<Problem> = validate(object).into_iter().filter(|p| p.severity == Severity::Error).collect();
        if problems.is_empty() { Ok(key) } else { Err(MemoryStoreError::Invalid { key, problems }) }
    }

    fn state(&self) -> MutexGuard<'_, MemoryStoreState> {
        self.0.state.lock()
    }

    /// Releases the lock, wakes the source and calls the handlers.
    fn published(&self, state: MutexGuard<'_, MemoryStoreState>) {
        drop(state);
        self.0.wake.notify_one();
        self.dispatch();
    }

    /// Calls the handlers for each event. Only one thread does at a time, so the order is kept; a handler that changes
    /// the store adds to the queue.
    fn dispatch(&self) {
        if std::mem::replace(&mut self.state().is_dispatching, true) {
            return;
        }
        loop {
            // A separate statement: in a `while let` the lock would be held during the loop body.
            let next = self.state().next_event();
            let Some((occurrence, handlers)) = next else { return };
            let QueuedEvent { old, object, event } = &occurrence;
            for handler in handlers {
                let call = AssertUnwindSafe(|| handler(old.as_ref(), object, *event));
                if let Err(panic) = catch_unwind(call) {
                    error!(source = %self.0.source.0, object = %object.key(), error = panic_text(&*panic), "handler panicked");
                }
            }
        }
    }
}

impl MemoryStoreState {
    fn next_version(&mut self) -> Str {
        self.last_version += 1;
        self.last_version.to_string().into()
    }

    /// The stored object if it has this version; an empty version matches any.
    fn expect_version(&self, key: &Key, version: &str) -> Result<&Meta, MemoryStoreError> {
        let stored = self.objects.get(key).ok_or_else(|| MemoryStoreError::NotFound(key.clone()))?;
        let found = &stored.meta.resource_version;
        if version.is_empty() || **found == *version {
            return Ok(&stored.meta);
        }
        Err(MemoryStoreError::Conflict { key: key.clone(), expected: version.into(), found: found.clone() })
    }

    fn store(&mut self, key: Key, object: Object, event: StoreEvent) {
        let old = self.objects.insert(key.clone(), object.clone());
        self.unpublished.insert(key);
        self.events.push_back(QueuedEvent { old, object, event });
    }

    /// The next event and its handlers. Without one, dispatching ends.
    fn next_event(&mut self) -> Option<(QueuedEvent, Vec<Arc<EventHandler>>)> {
        let Some(occurrence) = self.events.pop_front() else {
            self.is_dispatching = false;
            return None;
        };
        let handlers = self.handlers.get(&occurrence.object.spec.kind()).cloned().unwrap_or_default();
        Some((occurrence, handlers))
    }

    fn changes(&mut self) -> Vec<Change> {
        let unpublished = std::mem::take(&mut self.unpublished);
        unpublished.into_iter().filter_map(|key| self.change(key)).collect()
    }

    fn change(&mut self, key: Key) -> Option<Change> {
        let Some(object) = self.objects.get(&key) else {
            return self.published.remove(&key).map(|_| Change::Deleted(key));
        };
        let before = self.published.insert(key, object.clone());
        let is_news = before.is_none_or(|before| !before.means_the_same_as(object));
        is_news.then(|| Change::Applied(object.clone()))
    }
}

impl Source for MemoryStore {
    fn id(&self) -> SourceId {
        self.0.source.clone()
    }

    async fn run(&mut self, sender: ChangeSender) -> Result<(), SourceError> {
        let mut changes = self.state().changes();
        changes.push(Change::Synced);
        sender.send(changes).await?;
        self.state().is_synced = true;
        loop {
            self.0.wake.notified().await;
            let changes = self.state().changes();
            sender.send(changes).await?;
        }
    }
}

fn stamped(object: Object, version: &Str, created: i64) -> Object {
    let meta = Meta { resource_version: version.clone(), created, ..Meta::clone(&object.meta) };
    Object { meta: Arc::new(meta), spec: object.spec }
}

fn seconds_since_1970() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
