//! The health of a source, for debug pages and metrics. The source and its supervisor write it; readers never wait for
//! the source.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use model::change::{Change, SourceId};
use parking_lot::{Mutex, MutexGuard};
use tracing::{info, warn};

/// Whether the published state of a source is current.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceState {
    /// The source has not published its initial state yet.
    Syncing,
    /// The source is in sync and follows changes.
    Live,
    /// The source was in sync and cannot be read now: its last known state is served.
    Stale { since: SystemTime, reason: String },
}

/// A failure of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFailure {
    pub at: SystemTime,
    pub message: String,
}

/// Counters of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceCounts {
    pub batches: u64,
    /// Objects, services, endpoint lists and settings published, repeats included.
    pub changes: u64,
    /// Current problems in the source's input.
    pub problems: usize,
    /// How often the source failed and was restarted.
    pub restarts: u64,
    /// Current services and endpoints of a registry.
    pub services: usize,
    pub endpoints: usize,
    /// Services with endpoints whose pod is not known, and the number of these endpoints.
    pub without_pod: (usize, usize),
    /// Requests that wait for a change now, such as blocking queries.
    pub watches: usize,
    /// Requests made so far.
    pub requests: u64,
    /// Fetches of key sets so far that succeeded, and that failed.
    pub key_fetches: (u64, u64),
    /// Events of an API server so far, by `RegistryKind` and `RegistryEvent`.
    pub registry_events: [[u64; 3]; 4],
}

/// A kind of object that makes services and endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistryKind {
    Service,
    EndpointSlice,
    Pod,
    Node,
}

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistryEvent {
    Add,
    Update,
    Delete,
}

/// A source's health at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceReport {
    pub source: SourceId,
    pub state: SourceState,
    pub last_failure: Option<SourceFailure>,
    /// When the published state was last known to be current.
    pub last_seen: Option<SystemTime>,
    pub counts: SourceCounts,
}

/// A shared handle on the health of one source.
#[derive(Clone, Debug)]
pub struct SourceHealth(Arc<Mutex<SourceReport>>);

impl SourceReport {
    fn recover(&mut self) {
        if let SourceState::Stale { since, .. } = &self.state {
            let seconds = since.elapsed().unwrap_or_default().as_secs();
            info!(source = %self.source.0, seconds, "the source can be read again");
        }
        self.state = SourceState::Live;
    }
}

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

    /// Records that the source cannot be read now. One that was never in sync stays `Syncing`.
    pub fn mark_unreachable(&self, reason: impl Into<String>) {
        let (now, reason) = (SystemTime::now(), reason.into());
        let mut report = self.lock();
        // One line when an outage begins and one when it ends; the debug pages have the failures between.
        match &report.state {
            SourceState::Syncing if report.last_failure.is_none() => {
                warn!(source = %report.source.0, reason, "could not read a source yet; trying again");
            }
            SourceState::Live => {
                warn!(source = %report.source.0, reason, "could not read a source; serving its last known state");
            }
            SourceState::Syncing | SourceState::Stale { .. } => {}
        }
        report.last_failure = Some(SourceFailure { at: now, message: reason.clone() });
        report.state = match &report.state {
            SourceState::Syncing => SourceState::Syncing,
            SourceState::Live => SourceState::Stale { since: now, reason },
            SourceState::Stale { since, .. } => SourceState::Stale { since: *since, reason },
        };
    }

    /// Records that the source was read successfully.
    pub fn mark_reachable(&self) {
        let mut report = self.lock();
        report.last_seen = Some(SystemTime::now());
        if matches!(report.state, SourceState::Stale { .. }) {
            report.recover();
        }
    }

    /// Waits for `work`. Marks the source as unreachable while it takes longer than `limit`.
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

    /// Sets the current services and endpoints of a registry.
    pub fn set_size(&self, services: usize, endpoints: usize) {
        let mut report = self.lock();
        (report.counts.services, report.counts.endpoints) = (services, endpoints);
    }

    /// Sets the services with endpoints whose pod is not known, and the number of these endpoints.
    pub(crate) fn set_without_pod(&self, without_pod: (usize, usize)) {
        self.lock().counts.without_pod = without_pod;
    }

    /// Sets the number of requests that wait for a change.
    pub fn set_watches(&self, watches: usize) {
        self.lock().counts.watches = watches;
    }

    /// Counts a request.
    pub fn count_request(&self) {
        self.lock().counts.requests += 1;
    }

    pub(crate) fn count_event(&self, kind: RegistryKind, event: RegistryEvent) {
        self.lock().counts.registry_events[kind as usize][event as usize] += 1;
    }

    pub(crate) fn count_key_fetch(&self, succeeded: bool) {
        let mut report = self.lock();
        let (successes, failures) = &mut report.counts.key_fetches;
        *(if succeeded { successes } else { failures }) += 1;
    }

    pub(crate) fn count_batch(&self, changes: &[Change]) {
        let mut report = self.lock();
        report.counts.batches += 1;
        for change in changes {
            match change {
                Change::Synced => {
                    report.recover();
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
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use model::problem::{Problem, Subject};

    use super::{SourceHealth, SourceState};
    use model::change::{Change, SourceId};

    #[test]
    fn a_source_that_was_never_in_sync_does_not_become_stale() {
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
