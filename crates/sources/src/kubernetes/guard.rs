//! Holds back a list that lacks most known objects of a collection: one wrong response of an API server, or of a proxy in
//! front of it, must not empty the mesh. The collection is listed again, and the loss is accepted when it lasts.
//! Deletions that a watch reports are always accepted at once.

use std::collections::BTreeMap;
use std::time::Duration;

use model::problem::{Problem, ProblemCode, Subject};
use tokio::time::Instant;

use super::collection::Collection;

/// A list that lacks this share of the known objects is held back, as for registries.
const LOST_PERCENT: usize = 90;
/// With fewer known objects, the second list decides.
const MANY: usize = 10;
/// The delay of that second list.
const SHORT_HOLD: Duration = Duration::from_secs(2);
/// How often a held back collection is listed.
const RELIST: Duration = Duration::from_secs(5);

/// The lists of one cluster that are held back.
#[derive(Debug)]
pub(super) struct ListGuard {
    /// How long a loss must last to be accepted; zero accepts every list.
    hold_for: Duration,
    held: BTreeMap<Collection, HeldList>,
}

#[derive(Debug)]
struct HeldList {
    since: Instant,
    until: Instant,
    relist_at: Instant,
    known: usize,
    lost: usize,
}

impl ListGuard {
    pub(super) fn new(hold_for: Duration) -> ListGuard {
        ListGuard { hold_for, held: BTreeMap::new() }
    }

    /// Whether a complete list that lacks `lost` of `known` objects is accepted.
    pub(super) fn accepts(&mut self, collection: &Collection, known: usize, lost: usize) -> bool {
        let now = Instant::now();
        let hold_for = self.hold_for(collection, known);
        let is_sudden = lost > 0 && lost * 100 >= known * LOST_PERCENT;
        let since = self.held.get(collection).map_or(now, |held| held.since);
        if !is_sudden || now.saturating_duration_since(since) >= hold_for {
            self.held.remove(collection);
            return true;
        }
        let until = since + hold_for;
        let relist_at = until.min(now + RELIST);
        self.held.insert(collection.clone(), HeldList { since, until, relist_at, known, lost });
        false
    }

    /// How long a loss must last. Objects that name clusters always get the full time: with one, a cluster is lost.
    fn hold_for(&self, collection: &Collection, known: usize) -> Duration {
        let names_clusters = matches!(collection, Collection::Remote | Collection::Registry);
        if known >= MANY || names_clusters { self.hold_for } else { self.hold_for.min(SHORT_HOLD) }
    }

    /// Drops the held list of a collection that is no longer watched.
    pub(super) fn forget(&mut self, collection: &Collection) {
        self.held.remove(collection);
    }

    pub(super) fn holds_any(&self) -> bool {
        !self.held.is_empty()
    }

    /// When the next held back collection must be listed again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.held.values().map(|held| held.relist_at).min()
    }

    /// Held back collections that must be listed now.
    pub(super) fn take_due(&mut self) -> Vec<Collection> {
        let now = Instant::now();
        let due = self.held.iter_mut().filter(|(_, held)| held.relist_at <= now);
        let due = due.map(|(collection, held)| {
            // Due again in case this list fails.
            held.relist_at = now + RELIST;
            collection.clone()
        });
        due.collect()
    }

    pub(super) fn problems(&self, cluster: &str) -> impl Iterator<Item = Problem> {
        self.held.iter().map(move |(collection, held)| {
            let HeldList { since, until, known, lost, .. } = held;
            let hold_for = until.duration_since(*since);
            let message = format!(
                "a list of {collection} lacks {lost} of {known} known objects: all are kept until the loss has lasted \
                 for {hold_for:?} (PILOTAGE_KUBERNETES_HOLD_LOSSES)"
            );
            Problem::warning(Subject::Cluster(cluster.into()), message).coded(ProblemCode::HeldLoss)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::sleep;

    use super::{ListGuard, RELIST, SHORT_HOLD};
    use crate::kubernetes::collection::Collection::{EndpointSlice, Pod, Remote, Service};

    const HOLD: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn hole_07_one_empty_list_is_held_back_and_a_lasting_one_is_accepted() {
        let mut guard = ListGuard::new(HOLD);
        assert!(guard.accepts(&Service, 100, 89) && guard.accepts(&Service, 0, 0) && guard.due().is_none());
        assert!(!guard.accepts(&Service, 100, 90));
        assert!(guard.accepts(&Service, 100, 0), "the next list was right");
        assert!(!guard.holds_any() && guard.problems("east").next().is_none());
        assert!(!guard.accepts(&Service, 100, 100) && guard.accepts(&EndpointSlice, 100, 1));
        let problems: Vec<String> = guard.problems("east").map(|problem| problem.to_string()).collect();
        assert_eq!(
            problems,
            ["cluster east: a list of Service lacks 100 of 100 known objects: all are kept until the loss has lasted \
                 for 60s (PILOTAGE_KUBERNETES_HOLD_LOSSES)"]
        );
        let mut lists = 0;
        loop {
            tokio::time::sleep_until(guard.due().unwrap()).await;
            assert_eq!(guard.take_due(), [Service]);
            assert!(guard.take_due().is_empty(), "each list is due once");
            lists += 1;
            if guard.accepts(&Service, 100, 100) {
                break;
            }
        }
        assert_eq!(lists, HOLD.as_secs() / RELIST.as_secs());
        assert!(!guard.holds_any());
    }

    #[tokio::test(start_paused = true)]
    async fn hole_07_few_objects_need_a_second_list_and_clusters_the_full_time() {
        let mut guard = ListGuard::new(HOLD);
        assert!(!guard.accepts(&Pod, 2, 2) && !guard.accepts(&Remote, 1, 1));
        sleep(SHORT_HOLD).await;
        assert_eq!(guard.take_due(), [Pod]);
        assert!(guard.accepts(&Pod, 2, 2) && !guard.accepts(&Remote, 1, 1));
        sleep(HOLD).await;
        assert!(guard.accepts(&Remote, 1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn hole_07_zero_time_accepts_every_list() {
        assert!(ListGuard::new(Duration::ZERO).accepts(&Service, 100, 100));
    }
}
