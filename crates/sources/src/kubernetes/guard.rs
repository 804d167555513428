//! Holds back a list that would take most of a collection away: an API server, or a proxy before it, that answers wrongly
//! once must not empty the mesh. The list is asked for again, and believed when it still says the same after a while.
//! Deletions that a watch reports are believed at once, however many they are.

use std::collections::BTreeMap;
use std::time::Duration;

use model::problem::{Problem, Subject};
use tokio::time::Instant;

use super::join::Collection;

/// A list that lacks this share of what is known is held back, as for registries.
const LOST_PERCENT: usize = 90;
/// Fewer objects than these are not worth a long wait: one more list decides.
const MANY: usize = 10;
/// How soon that list is taken.
const SHORT_HOLD: Duration = Duration::from_secs(2);
/// How often the collection is listed while a long wait lasts.
const RELIST: Duration = Duration::from_secs(5);

/// The lists of one cluster that are held back.
#[derive(Debug)]
pub(super) struct ListGuard {
    /// How long a list must say the same; zero believes every list.
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

    /// Whether a complete list is believed that lacks `lost` of `known` objects.
    pub(super) fn believes(&mut self, collection: &Collection, known: usize, lost: usize) -> bool {
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

    /// How long a list must say the same. With objects that name clusters, whole clusters would go.
    fn hold_for(&self, collection: &Collection, known: usize) -> Duration {
        let names_clusters = matches!(collection, Collection::Remote | Collection::Registry);
        if known >= MANY || names_clusters { self.hold_for } else { self.hold_for.min(SHORT_HOLD) }
    }

    /// Waits for nothing of a collection that is watched no more.
    pub(super) fn forget(&mut self, collection: &Collection) {
        self.held.remove(collection);
    }

    pub(super) fn holds_something(&self) -> bool {
        !self.held.is_empty()
    }

    /// When a collection must be listed again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.held.values().map(|held| held.relist_at).min()
    }

    /// Collections that must be listed again now.
    pub(super) fn take_due(&mut self) -> Vec<Collection> {
        let now = Instant::now();
        let due = self.held.iter_mut().filter(|(_, held)| held.relist_at <= now);
        let due = due.map(|(collection, held)| {
            // If the list fails, it is asked for again.
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
                "a list of {collection} lacks {lost} of {known} known objects: all are kept until the API server has \
                 said the same for {hold_for:?} (PILOTAGE_KUBERNETES_HOLD_LOSSES)"
            );
            Problem::warning(Subject::Cluster(cluster.into()), message)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::sleep;

    use super::{ListGuard, RELIST, SHORT_HOLD};
    use crate::kubernetes::join::Collection::{EndpointSlice, Pod, Remote, Service};

    const HOLD: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn hole_07_one_empty_list_is_held_back_and_a_lasting_one_is_believed() {
        let mut guard = ListGuard::new(HOLD);
        assert!(guard.believes(&Service, 100, 89) && guard.believes(&Service, 0, 0) && guard.due().is_none());
        assert!(!guard.believes(&Service, 100, 90));
        assert!(guard.believes(&Service, 100, 0), "the next list was right");
        assert!(!guard.holds_something() && guard.problems("east").next().is_none());
        assert!(!guard.believes(&Service, 100, 100) && guard.believes(&EndpointSlice, 100, 1));
        let problems: Vec<String> = guard.problems("east").map(|problem| problem.to_string()).collect();
        assert_eq!(
            problems,
            [
                "cluster east: a list of Service lacks 100 of 100 known objects: all are kept until the API server has said \
              the same for 60s (PILOTAGE_KUBERNETES_HOLD_LOSSES)"
            ]
        );
        let mut lists = 0;
        loop {
            tokio::time::sleep_until(guard.due().unwrap()).await;
            assert_eq!(guard.take_due(), [Service]);
            assert!(guard.take_due().is_empty(), "once is enough");
            lists += 1;
            if guard.believes(&Service, 100, 100) {
                break;
            }
        }
        assert_eq!(lists, HOLD.as_secs() / RELIST.as_secs());
        assert!(!guard.holds_something());
    }

    #[tokio::test(start_paused = true)]
    async fn hole_07_a_few_objects_wait_for_one_more_list_and_clusters_for_long() {
        let mut guard = ListGuard::new(HOLD);
        assert!(!guard.believes(&Pod, 2, 2) && !guard.believes(&Remote, 1, 1));
        sleep(SHORT_HOLD).await;
        assert_eq!(guard.take_due(), [Pod]);
        assert!(guard.believes(&Pod, 2, 2) && !guard.believes(&Remote, 1, 1));
        sleep(HOLD).await;
        assert!(guard.believes(&Remote, 1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn hole_07_no_time_believes_every_list() {
        assert!(ListGuard::new(Duration::ZERO).believes(&Service, 100, 100));
    }
}
