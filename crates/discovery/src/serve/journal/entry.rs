//! One change in the journal.

use std::time::SystemTime;

use model::config::Key;
use model::names::Str;
use model::problem::FileLocation;
use model::snapshot::Snapshot;

use crate::serve::history::Former;

/// Names of services in one entry.
pub(super) const MOST_NAMES: usize = 8;

/// A change of the mesh.
#[derive(Clone, Debug)]
pub struct JournalEntry {
    /// The snapshot that it led to.
    pub number: u64,
    /// The last snapshot of the entry: changes of endpoints alone are merged.
    pub last: u64,
    pub at: SystemTime,
    /// When the last change was merged.
    pub updated: SystemTime,
    pub sources: Vec<Str>,
    pub synced: Vec<Str>,
    /// Empty if too many objects changed at once.
    pub objects: Vec<ObjectChange>,
    pub changed_objects: usize,
    /// Number of services added, changed or removed.
    pub services: usize,
    /// Number of services whose endpoints changed, counted for each step.
    pub endpoints: usize,
    /// Snapshots in this entry.
    pub steps: usize,
    /// Some of the services.
    pub names: Vec<Str>,
    pub(super) is_endpoints: bool,
    pub has_settings: bool,
    /// Number of all problems afterwards.
    pub problems: usize,
    pub acknowledged: Vec<AcknowledgedBy>,
}

/// A changed object.
#[derive(Clone, Debug)]
pub struct ObjectChange {
    pub key: Key,
    pub exists: bool,
    pub store: Option<Str>,
    /// Where it is, or was before it was deleted.
    pub location: Option<FileLocation>,
    pub(crate) former: Former,
}

/// A client that has a change.
#[derive(Clone, Debug)]
pub struct AcknowledgedBy {
    pub client: Str,
    /// Milliseconds after the change.
    pub millis: u32,
}

impl ObjectChange {
    pub(super) fn new(key: &Key, before: &Snapshot, after: &Snapshot) -> ObjectChange {
        let (old, new) = (before.objects.get(key), after.objects.get(key));
        let holder = if new.is_some() { after } else { before };
        ObjectChange {
            key: key.clone(),
            exists: new.is_some(),
            store: holder.objects.store(key).map(|store| store.0.clone()),
            location: new.or(old).and_then(|object| object.meta.location.clone()),
            former: Former::of(old),
        }
    }

    /// What happened to it: `added`, `changed` or `deleted`.
    pub fn verb(&self) -> &'static str {
        match (&self.former, self.exists) {
            (_, false) => "deleted",
            (Former::Absent, true) => "added",
            _ => "changed",
        }
    }
}

impl JournalEntry {
    /// Adds a snapshot in which endpoints of these services changed.
    pub(super) fn merge<'a>(&mut self, number: u64, hosts: impl Iterator<Item = &'a str>) {
        self.last = number;
        self.steps += 1;
        self.updated = SystemTime::now();
        for host in hosts {
            self.endpoints += 1;
            if self.names.len() < MOST_NAMES && !self.names.iter().any(|known| known == host) {
                self.names.push(host.into());
            }
        }
    }

    /// Approximate bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        let texts = self.names.iter().chain(&self.sources).chain(&self.synced);
        let texts: usize = texts.map(|text| text.len() + 32).sum();
        let objects: usize = self.objects.iter().map(|change| change.former.bytes() + size_of::<ObjectChange>()).sum();
        size_of::<JournalEntry>() + texts + objects + size_of_val(&*self.acknowledged)
    }
}
