//! The sources that run now, for debug pages, metrics and readiness. Sources are added and removed at run time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use model::change::SourceId;
use parking_lot::Mutex;

use crate::health::SourceHealth;

/// A shared list of sources.
#[derive(Clone, Debug, Default)]
pub struct SourceSet(Arc<Mutex<BTreeMap<SourceId, SourceEntry>>>);

#[derive(Clone, Debug)]
struct SourceEntry {
    health: SourceHealth,
    awaited: StartupWait,
    /// Set for the source of a remote cluster.
    remote: Option<RemoteInfo>,
}

/// Where a remote cluster comes from, and when it counts as late.
#[derive(Clone, Debug)]
pub struct RemoteInfo {
    pub cluster: String,
    /// What names the cluster, such as the `namespace/name` of its Secret.
    pub origin: String,
    pub late_after: Instant,
}

/// Whether serving waits for a source to be in sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartupWait {
    Always,
    /// Until this time at the latest.
    Until(Instant),
    /// For sources added after serving began.
    Never,
}

impl SourceSet {
    /// Adds a source, or replaces the one with the same id.
    pub fn insert(&self, source: SourceId, health: SourceHealth, awaited: StartupWait) {
        self.0.lock().insert(source, SourceEntry { health, awaited, remote: None });
    }

    /// Adds the source of a remote cluster. Serving waits for it through the source of the primary cluster.
    pub fn insert_remote(&self, source: SourceId, health: SourceHealth, remote: RemoteInfo) {
        let awaited = StartupWait::Never;
        self.0.lock().insert(source, SourceEntry { health, awaited, remote: Some(remote) });
    }

    /// The remote clusters with their health, ordered by name.
    pub fn remotes(&self) -> Vec<(RemoteInfo, SourceHealth)> {
        let all = self.0.lock();
        all.values().filter_map(|entry| Some((entry.remote.clone()?, entry.health.clone()))).collect()
    }

    pub fn remove(&self, source: &SourceId) {
        self.0.lock().remove(source);
    }

    /// The health of every source, ordered by id.
    pub fn healths(&self) -> Vec<SourceHealth> {
        self.0.lock().values().map(|entry| entry.health.clone()).collect()
    }

    /// Sources that serving still waits for: those not in `synced`.
    pub fn unsynced(&self, synced: &BTreeSet<SourceId>) -> Vec<SourceId> {
        let now = Instant::now();
        let is_awaited = |entry: &SourceEntry| match entry.awaited {
            StartupWait::Always => true,
            StartupWait::Until(deadline) => deadline > now,
            StartupWait::Never => false,
        };
        let all = self.0.lock();
        let missing = all.iter().filter(|(source, entry)| !synced.contains(*source) && is_awaited(entry));
        missing.map(|(source, _)| source.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::{Duration, Instant};

    use model::change::SourceId;

    use super::{SourceSet, StartupWait};
    use crate::health::SourceHealth;

    #[test]
    fn sources_are_waited_for_until_they_are_in_sync_or_late_or_gone() {
        let (source_set, now) = (SourceSet::default(), Instant::now());
        let id = |name: &str| SourceId(name.into());
        for (name, awaited) in [
            ("files", StartupWait::Always),
            ("late", StartupWait::Until(now)),
            ("slow", StartupWait::Until(now + Duration::from_secs(3600))),
            ("new", StartupWait::Never),
        ] {
            source_set.insert(id(name), SourceHealth::new(id(name)), awaited);
        }
        assert_eq!(source_set.unsynced(&BTreeSet::new()), [id("files"), id("slow")]);
        assert_eq!(source_set.unsynced(&BTreeSet::from([id("files")])), [id("slow")]);
        source_set.remove(&id("slow"));
        assert_eq!(source_set.unsynced(&BTreeSet::from([id("files")])), []);
        assert_eq!(source_set.healths().len(), 3);
    }
}
