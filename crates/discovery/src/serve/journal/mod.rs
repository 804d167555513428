//! The last changes of the mesh, for people who look back: which objects changed when, from which source and file, what
//! they were before, and which clients acknowledged the change when. At most 1 MB; the oldest changes are dropped.
//! `entry` has the values. Not for quarantine, which needs other versions for another time: see `history`.

mod entry;

pub use entry::{AcknowledgedBy, JournalEntry, ObjectChange};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

use model::change::SourceId;
use model::config::{Key, Object};
use model::names::Str;
use model::snapshot::{Delta, Snapshot};
use parking_lot::Mutex;

/// Bytes of all entries after a change.
const MOST_BYTES: usize = (1 << 20) - UNCOUNTED;
/// Bytes by which acknowledgements may exceed that before old ones are dropped: dropping them searches all entries.
const UNCOUNTED: usize = 64 << 10;
/// Objects of one change that are recorded one by one.
const MOST_OBJECTS: usize = 256;
/// Acknowledgements recorded for one change.
const MOST_ACKNOWLEDGED: usize = 4096;

/// The last changes.
#[derive(Debug, Default)]
pub struct Journal(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    entries: VecDeque<Arc<JournalEntry>>,
    bytes: usize,
    /// Earlier versions of objects are unknown before this snapshot.
    complete_since: u64,
}

/// A change that was applied.
#[derive(Debug)]
pub struct AppliedChange<'a> {
    /// The snapshot that it led to.
    pub number: u64,
    pub before: &'a Snapshot,
    pub after: &'a Snapshot,
    pub delta: &'a Delta,
    pub sources: &'a BTreeSet<SourceId>,
    /// Sources that synced with it.
    pub synced: &'a [SourceId],
}

/// The journal at one moment.
#[derive(Clone, Debug, Default)]
pub struct JournalView {
    /// Oldest first.
    pub entries: Vec<Arc<JournalEntry>>,
    /// Earlier versions of objects are known from this snapshot on.
    pub complete_since: u64,
}

impl Journal {
    /// Adds a change. Changes of endpoints alone that follow each other are one entry.
    pub fn record(&self, change: &AppliedChange<'_>) {
        let AppliedChange { number, delta, .. } = *change;
        let mut journal = self.0.lock();
        let endpoints_only = delta.objects.is_empty() && delta.services.is_empty() && !delta.settings;
        if endpoints_only
            && change.synced.is_empty()
            && let Some(last) = journal.entries.back_mut()
            && last.is_endpoints
        {
            let before = last.bytes();
            let last = Arc::make_mut(last);
            last.merge(number, delta.endpoints.iter().map(|key| &*key.hostname));
            let after = last.bytes();
            journal.bytes = journal.bytes + after - before;
            return;
        }
        let (objects, is_whole) = changed_objects(change);
        if !is_whole {
            journal.complete_since = number;
        }
        let mut entry = JournalEntry {
            number,
            last: number,
            at: SystemTime::now(),
            updated: SystemTime::now(),
            sources: change.sources.iter().map(|source| source.0.clone()).collect(),
            synced: change.synced.iter().map(|source| source.0.clone()).collect(),
            objects,
            changed_objects: delta.objects.len(),
            services: delta.services.len(),
            endpoints: 0,
            steps: 0,
            names: delta.services.iter().map(|key| Str::from(&*key.hostname)).take(entry::MOST_NAMES).collect(),
            is_endpoints: endpoints_only && change.synced.is_empty(),
            has_settings: delta.settings,
            problems: change.after.problems.values().map(Vec::len).sum(),
            acknowledged: Vec::new(),
        };
        entry.merge(number, delta.endpoints.iter().map(|key| &*key.hostname));
        journal.bytes += entry.bytes();
        journal.entries.push_back(Arc::new(entry));
        journal.shorten();
    }

    /// Records that a client has everything of a snapshot, which took a response.
    pub fn acknowledged(&self, number: u64, client: &Str) {
        let mut journal = self.0.lock();
        let Some(entry) = journal.entries.iter_mut().rev().find(|entry| entry.number <= number) else { return };
        if entry.is_endpoints || entry.acknowledged.len() >= MOST_ACKNOWLEDGED {
            return;
        }
        let after = entry.at.elapsed().unwrap_or_default();
        let millis = u32::try_from(after.as_millis()).unwrap_or(u32::MAX);
        Arc::make_mut(entry).acknowledged.push(AcknowledgedBy { client: client.clone(), millis });
        journal.bytes += size_of::<AcknowledgedBy>();
        if journal.bytes > MOST_BYTES + UNCOUNTED {
            journal.shorten();
        }
    }

    /// The entries after a snapshot; all for 0.
    pub fn since(&self, number: u64) -> JournalView {
        let journal = self.0.lock();
        let entries = journal.entries.iter().filter(|entry| entry.last > number).cloned().collect();
        JournalView { entries, complete_since: journal.complete_since }
    }

    /// The number of the last entry.
    pub fn last(&self) -> u64 {
        self.0.lock().entries.back().map_or(0, |entry| entry.last)
    }

    /// Bytes of all entries.
    pub fn bytes(&self) -> usize {
        self.0.lock().bytes
    }
}

impl Entries {
    /// Drops what is above the limit: acknowledgements of old changes first, then old changes.
    fn shorten(&mut self) {
        let newest = self.entries.len().saturating_sub(1);
        for entry in self.entries.iter_mut().take(newest) {
            if self.bytes <= MOST_BYTES {
                return;
            }
            if !entry.acknowledged.is_empty() {
                self.bytes -= size_of_val(&*entry.acknowledged);
                Arc::make_mut(entry).acknowledged = Vec::new();
            }
        }
        while self.bytes > MOST_BYTES {
            let Some(dropped) = self.entries.pop_front() else { return };
            self.bytes -= dropped.bytes();
            self.complete_since = self.complete_since.max(dropped.number);
        }
    }
}

impl JournalView {
    /// Objects that changed after a snapshot, as they were in it; `None` if that is no longer known.
    pub fn earlier(&self, number: u64) -> Option<BTreeMap<Key, Option<Object>>> {
        if number < self.complete_since {
            return None;
        }
        let mut found = BTreeMap::new();
        for change in self.entries.iter().filter(|entry| entry.number > number).flat_map(|entry| &entry.objects) {
            found.entry(change.key.clone()).or_insert_with(|| change.former.object(change.key.kind));
        }
        Some(found)
    }

    /// The last snapshot that was current at this time.
    pub fn number_at(&self, time: SystemTime) -> Option<u64> {
        let before = self.entries.iter().rfind(|entry| entry.at <= time);
        before.map(|entry| entry.last).or_else(|| self.entries.first().map(|first| first.number.saturating_sub(1)))
    }
}

/// The changed objects with their earlier versions. False if there are too many, as in the first list of a source.
fn changed_objects(change: &AppliedChange<'_>) -> (Vec<ObjectChange>, bool) {
    let AppliedChange { before, after, delta, .. } = change;
    if delta.objects.len() > MOST_OBJECTS {
        return (Vec::new(), false);
    }
    let changed = delta.objects.iter().map(|key| ObjectChange::new(key, before, after));
    (changed.collect(), true)
}

#[cfg(test)]
mod tests;
