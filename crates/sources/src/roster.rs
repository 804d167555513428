//! Who is watched now, for debug pages, metrics and readiness: sources come and go while the process runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use model::change::SourceId;

use crate::health::Health;

/// A shared list of sources.
#[derive(Clone, Debug, Default)]
pub struct Roster(Arc<Mutex<BTreeMap<SourceId, Member>>>);

#[derive(Clone, Debug)]
struct Member {
    health: Health,
    awaited: Awaited,
}

/// Whether anybody is served before a source is in sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    Always,
    /// Until then at most: it need not be there.
    Until(Instant),
    /// It came while others were served already.
    Never,
}

impl Roster {
    /// Lists a source, in place of one with the same name.
    pub fn enter(&self, source: SourceId, health: Health, awaited: Awaited) {
        self.lock().insert(source, Member { health, awaited });
    }

    pub fn leave(&self, source: &SourceId) {
        self.lock().remove(source);
    }

    /// The health of each, by name.
    pub fn healths(&self) -> Vec<Health> {
        self.lock().values().map(|member| member.health.clone()).collect()
    }

    /// Sources that are waited for: they are not among those that have told all they had.
    pub fn missing(&self, synced: &BTreeSet<SourceId>) -> Vec<SourceId> {
        let now = Instant::now();
        let is_awaited = |member: &Member| match member.awaited {
            Awaited::Always => true,
            Awaited::Until(deadline) => deadline > now,
            Awaited::Never => false,
        };
        let all = self.lock();
        let missing = all.iter().filter(|(source, member)| !synced.contains(*source) && is_awaited(member));
        missing.map(|(source, _)| source.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SourceId, Member>> {
        // Every write is one call on the map, which leaves it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::{Duration, Instant};

    use model::change::SourceId;

    use super::{Awaited, Roster};
    use crate::health::Health;

    #[test]
    fn sources_are_waited_for_until_they_are_in_sync_or_late_or_gone() {
        let (roster, now) = (Roster::default(), Instant::now());
        let id = |name: &str| SourceId(name.into());
        for (name, awaited) in [
            ("files", Awaited::Always),
            ("late", Awaited::Until(now)),
            ("slow", Awaited::Until(now + Duration::from_secs(3600))),
            ("new", Awaited::Never),
        ] {
            roster.enter(id(name), Health::new(id(name)), awaited);
        }
        assert_eq!(roster.missing(&BTreeSet::new()), [id("files"), id("slow")]);
        assert_eq!(roster.missing(&BTreeSet::from([id("files")])), [id("slow")]);
        roster.leave(&id("slow"));
        assert_eq!(roster.missing(&BTreeSet::from([id("files")])), []);
        assert_eq!(roster.healths().len(), 3);
    }
}
