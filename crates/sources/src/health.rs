//! How a source is doing, for debug pages and metrics. Written by the source and its supervisor,
//! read by anyone at any time; no reader ever waits for the source.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use model::change::{Change, SourceId};

/// Whether what a source told is what is out there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceState {
    /// It has not told everything yet.
    Syncing,
    /// It told everything and follows changes.
    Live,
    /// It told everything once, but cannot see the outside any more: the last good state is served.
    Stale { since: SystemTime, reason: String },
}

/// A source's last failure and when it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFailure {
    pub at: SystemTime,
    pub message: String,
}

/// What a source did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceCounts {
    pub batches: u64,
    /// Objects, services, endpoint lists and settings told, repeats included.
    pub changes: u64,
    /// Problems in the source's input now.
    pub problems: usize,
    /// How often the source failed and was started again.
    pub restarts: u64,
    /// Services and endpoints of a registry that are told now.
    pub services: usize,
    pub endpoints: usize,
    /// Questions to the outside that are waiting for a change now.
    pub watches: usize,
    /// Questions asked so far.
    pub requests: u64,
}

/// A source's health at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceReport {
    pub source: SourceId,
    pub state: SourceState,
    pub last_failure: Option<SourceFailure>,
    /// When the outside was last seen to be as told. Its age is how old the told state may be.
    pub last_seen: Option<SystemTime>,
    pub counts: SourceCounts,
}

/// A shared handle on one source's health.
#[derive(Clone, Debug)]
pub struct SourceHealth(Arc<Mutex<SourceReport>>);

impl SourceHealth {
    pub fn new(source: SourceId) -> SourceHealth {
        let report = SourceReport {
            source,
            state: SourceState::Syncing,
            last_failure: None,
            last_seen: None,
            counts: SourceCounts::default(),
        };
        SourceHealth(Arc::new(Mutex::new(report)))
    }

    pub fn report(&self) -> SourceReport {
        self.lock().clone()
    }

    /// Notes that the outside cannot be seen. A source that never was in sync stays `Syncing`.
    pub fn mark_unreachable(&self, reason: impl Into<String>) {
        let (now, reason) = (SystemTime::now(), reason.into());
        let mut report = self.lock();
        report.last_failure = Some(SourceFailure { at: now, message: reason.clone() });
        report.state = match &report.state {
            SourceState::Syncing => SourceState::Syncing,
            SourceState::Live => SourceState::Stale { since: now, reason },
            SourceState::Stale { since, .. } => SourceState::Stale { since: *since, reason },
        };
    }

    /// Notes that the outside is seen, again or still.
    pub fn mark_reachable(&self) {
        let mut report = self.lock();
        report.last_seen = Some(SystemTime::now());
        if matches!(report.state, SourceState::Stale { .. }) {
            report.state = SourceState::Live;
        }
    }

    /// Waits for work that should be quick, and notes that the outside cannot be seen where it takes longer than this.
    pub(crate) async fn while_waiting<T>(&self, limit: Duration, reason: &str, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep(limit) => {}
        }
        self.mark_unreachable(format!("{reason}: no result after {limit:?}"));
        work.await
    }

    /// Notes how much a registry tells now.
    pub fn set_size(&self, services: usize, endpoints: usize) {
        let mut report = self.lock();
        (report.counts.services, report.counts.endpoints) = (services, endpoints);
    }

    /// Notes how many questions wait for a change.
    pub fn set_watches(&self, watches: usize) {
        self.lock().counts.watches = watches;
    }

    /// Notes a question to the outside.
    pub fn count_request(&self) {
        self.lock().counts.requests += 1;
    }

    pub(crate) fn count_batch(&self, changes: &[Change]) {
        let mut report = self.lock();
        report.counts.batches += 1;
        for change in changes {
            match change {
                Change::Synced => {
                    report.state = SourceState::Live;
                    report.last_seen = Some(SystemTime::now());
                }
                Change::Problems(problems) => report.counts.problems = problems.len(),
                _ => report.counts.changes += 1,
            }
        }
    }

    pub(crate) fn restarted(&self) {
        self.lock().counts.restarts += 1;
    }

    fn lock(&self) -> MutexGuard<'_, SourceReport> {
        // Every write above leaves the report whole, so a poisoned lock still guards a good value.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use model::problem::{Problem, Subject};

    use super::{SourceHealth, SourceState};
    use model::change::{Change, SourceId};

    #[test]
    fn a_source_that_never_was_in_sync_does_not_become_stale() {
        let health = SourceHealth::new(SourceId("files".into()));
        health.mark_unreachable("no folder");
        assert_eq!(health.report().state, SourceState::Syncing);
        assert_eq!(health.report().last_failure.map(|f| f.message).as_deref(), Some("no folder"));
    }

    #[test]
    fn a_stale_source_remembers_since_when() {
        let health = SourceHealth::new(SourceId("files".into()));
        health.count_batch(&[Change::Problems(vec![Problem::error(Subject::Source("a".into()), "b")]), Change::Synced]);
        health.mark_unreachable("first");
        let SourceState::Stale { since: first, .. } = health.report().state else { panic!("not stale") };
        health.mark_unreachable("second");
        assert_eq!(health.report().state, SourceState::Stale { since: first, reason: "second".into() });
        health.mark_reachable();
        assert_eq!(health.report().state, SourceState::Live);
        assert_eq!(health.report().counts.problems, 1);
    }
}
