//! The current objects and the last events in memory. All reads are answered from here. A watcher reads the events since
//! the revision it knows; there is no queue per watcher, and one that is too slow gets `Expired`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use imbl::OrdMap;
use parking_lot::RwLock;
use tokio::sync::watch;
use tokio::time::timeout;

use super::{ObjectKey, Revision, StoreEvent, StoredObject};

/// All objects at one revision. Cloning is cheap.
pub type Objects = OrdMap<ObjectKey, Arc<StoredObject>>;

/// Bounds of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryLimits {
    pub events: usize,
    /// Bytes of replaced objects.
    pub bytes: usize,
}

impl Default for HistoryLimits {
    fn default() -> HistoryLimits {
        HistoryLimits { events: 10_000, bytes: 64 << 20 }
    }
}

/// The revision is older than the history, or not reached yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RevisionError {
    #[error("too old resource version: {asked} ({oldest})")]
    Expired { asked: Revision, oldest: Revision },
    #[error("too large resource version: {asked}, current: {current}")]
    Future { asked: Revision, current: Revision },
}

/// The watch cache of a storage.
#[derive(Debug)]
pub struct WatchCache {
    state: RwLock<CacheState>,
    limits: HistoryLimits,
    revision: watch::Sender<Revision>,
}

#[derive(Debug)]
struct CacheState {
    objects: Objects,
    revision: Revision,
    /// Ordered by revision.
    history: VecDeque<StoreEvent>,
    history_bytes: usize,
    /// The oldest revision whose objects can be computed.
    oldest: Revision,
}

impl WatchCache {
    /// A cache with the state of a storage. `history` is ordered and ends at `revision`.
    pub fn new(objects: Objects, revision: Revision, history: Vec<StoreEvent>, limits: HistoryLimits) -> WatchCache {
        let oldest = history.first().map_or(revision, |event| event.revision.saturating_sub(1));
        let history_bytes = history.iter().map(StoreEvent::size).sum();
        let state = CacheState { objects, revision, history: history.into(), history_bytes, oldest };
        WatchCache { state: RwLock::new(state), limits, revision: watch::Sender::new(revision) }
    }

    /// Records writes that are durable. Returns the oldest revision that the history still reaches.
    pub fn record(&self, events: impl IntoIterator<Item = StoreEvent>) -> Revision {
        let mut state = self.state.write();
        for event in events {
            match (&event.before, &event.after) {
                (_, Some(after)) => _ = state.objects.insert(after.key.clone(), after.clone()),
                (Some(before), None) => _ = state.objects.remove(&before.key),
                (None, None) => {}
            }
            state.revision = event.revision;
            state.history_bytes += event.size();
            state.history.push_back(event);
        }
        while state.history.len() > self.limits.events || state.history_bytes > self.limits.bytes {
            let Some(gone) = state.history.pop_front() else { break };
            state.history_bytes -= gone.size();
            state.oldest = gone.revision;
        }
        let (revision, oldest) = (state.revision, state.oldest);
        drop(state);
        self.revision.send_replace(revision);
        oldest
    }

    /// Notes that there were no writes up to this revision since the last recorded one.
    pub fn advance(&self, revision: Revision) {
        let mut state = self.state.write();
        if revision <= state.revision {
            return;
        }
        state.revision = revision;
        drop(state);
        self.revision.send_replace(revision);
    }

    /// Replaces everything after events were missed. Watches from older revisions expire.
    pub fn replace(&self, objects: Objects, revision: Revision) {
        let mut state = self.state.write();
        *state = CacheState { objects, revision, history: VecDeque::new(), history_bytes: 0, oldest: revision };
        drop(state);
        self.revision.send_replace(revision);
    }

    /// Waits until the cache has a revision, or the time is over. Returns whether it has it.
    pub async fn reach(&self, revision: Revision, limit: Duration) -> bool {
        let mut revisions = self.follow();
        // The sender is part of this cache.
        timeout(limit, revisions.wait_for(|current| *current >= revision)).await.is_ok()
    }

    /// The current objects and their revision.
    pub fn current(&self) -> (Objects, Revision) {
        let state = self.state.read();
        (state.objects.clone(), state.revision)
    }

    pub fn get(&self, key: &ObjectKey) -> Option<Arc<StoredObject>> {
        self.state.read().objects.get(key).cloned()
    }

    pub fn revision(&self) -> Revision {
        self.state.read().revision
    }

    /// The objects as they were at a revision.
    pub fn at(&self, revision: Revision) -> Result<Objects, RevisionError> {
        let (mut objects, newer) = {
            let state = self.state.read();
            state.check(revision)?;
            (state.objects.clone(), state.events_after(revision))
        };
        for event in newer.into_iter().rev() {
            match (event.before, event.after) {
                (Some(before), _) => _ = objects.insert(before.key.clone(), before),
                (None, Some(after)) => _ = objects.remove(&after.key),
                (None, None) => {}
            }
        }
        Ok(objects)
    }

    /// Events after a revision, and the revision of the last one.
    pub fn events_after(&self, revision: Revision) -> Result<(Vec<StoreEvent>, Revision), RevisionError> {
        let state = self.state.read();
        state.check(revision)?;
        Ok((state.events_after(revision), state.revision))
    }

    /// Follows the current revision.
    pub fn follow(&self) -> watch::Receiver<Revision> {
        self.revision.subscribe()
    }
}

impl CacheState {
    fn check(&self, asked: Revision) -> Result<(), RevisionError> {
        if asked < self.oldest {
            return Err(RevisionError::Expired { asked, oldest: self.oldest });
        }
        if asked > self.revision {
            return Err(RevisionError::Future { asked, current: self.revision });
        }
        Ok(())
    }

    fn events_after(&self, revision: Revision) -> Vec<StoreEvent> {
        let start = self.history.partition_point(|event| event.revision <= revision);
        self.history.range(start..).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{HistoryLimits, Objects, RevisionError, WatchCache};
    use crate::store::{ObjectKey, StoreEvent, StoredObject};

    fn object(name: &str, revision: u64) -> Arc<StoredObject> {
        let text = format!("{{\"metadata\":{{\"name\":\"{name}\"}}}}").into();
        Arc::new(StoredObject { key: ObjectKey::new("services", "shop", name), revision, text })
    }

    fn cache(events: usize) -> WatchCache {
        let cache = WatchCache::new(Objects::new(), 1, Vec::new(), HistoryLimits { events, bytes: 1 << 20 });
        let (a2, b3, a4) = (object("a", 2), object("b", 3), object("a", 4));
        cache.record([
            StoreEvent { revision: 2, before: None, after: Some(a2.clone()) },
            StoreEvent { revision: 3, before: None, after: Some(b3.clone()) },
            StoreEvent { revision: 4, before: Some(a2), after: Some(a4) },
            StoreEvent { revision: 5, before: Some(b3), after: None },
        ]);
        cache
    }

    fn at(cache: &WatchCache, revision: u64) -> Vec<(String, u64)> {
        let objects = cache.at(revision).expect("in the history");
        objects.values().map(|object| (object.key.name.to_string(), object.revision)).collect()
    }

    #[test]
    fn objects_are_known_at_every_revision_of_the_history() {
        let cache = cache(100);
        assert_eq!(at(&cache, 1), []);
        assert_eq!(at(&cache, 2), [("a".to_owned(), 2)]);
        assert_eq!(at(&cache, 3), [("a".to_owned(), 2), ("b".to_owned(), 3)]);
        assert_eq!(at(&cache, 4), [("a".to_owned(), 4), ("b".to_owned(), 3)]);
        assert_eq!(at(&cache, 5), [("a".to_owned(), 4)]);
        assert_eq!(cache.at(6), Err(RevisionError::Future { asked: 6, current: 5 }));
    }

    #[test]
    fn revisions_of_other_keys_and_missed_events() {
        let cache = cache(100);
        cache.advance(9);
        cache.advance(7);
        assert_eq!(cache.revision(), 9);
        assert_eq!(cache.events_after(5), Ok((Vec::new(), 9)));
        let b = object("b", 12);
        cache.replace([(b.key.clone(), b)].into_iter().collect(), 12);
        assert_eq!(at(&cache, 12), [("b".to_owned(), 12)]);
        assert_eq!(cache.events_after(9), Err(RevisionError::Expired { asked: 9, oldest: 12 }));
    }

    #[test]
    fn old_events_are_dropped_and_their_revisions_expire() {
        let cache = cache(2);
        assert_eq!(at(&cache, 3), [("a".to_owned(), 2), ("b".to_owned(), 3)]);
        assert_eq!(cache.at(2), Err(RevisionError::Expired { asked: 2, oldest: 3 }));
        assert_eq!(cache.events_after(4).map(|(events, last)| (events.len(), last)), Ok((1, 5)));
    }
}
