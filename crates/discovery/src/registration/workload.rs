//! Keeps the WorkloadEntry of one workload. One task per entry applies its events in order, so that a reconnect and the
//! end of the earlier stream cannot overtake each other. Annotations say which replica has the workload.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use model::config::timestamp;
use model::proxy::Proxy;
use model::registration::{CONNECTED, CONTROLLER, DISCONNECTED, Registration, entry};
use serde_json::{Value, json};
use sources::kubernetes::trust_objects::{TrustRequestError, WriteResult};
use sources::kubernetes::workload_entries::{HEALTHY, StoredEntry};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{info, warn};

use super::Shared;

/// Delays after a failed write: doubled from the first to the last.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(5);
/// How often an entry is read that another replica claims too.
const CONTESTED: Duration = Duration::from_secs(2);
/// Letters of an agent's error that are kept.
const LONGEST_ERROR: usize = 512;

/// Something that happened to a workload.
#[derive(Debug)]
pub(super) enum WorkloadEvent {
    Connected { number: u64, proxy: Arc<Proxy> },
    Disconnected { number: u64 },
    Health { number: u64, health: Health },
}

/// What an agent reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Healthy,
    Unhealthy(String),
}

impl Health {
    pub(super) fn shortened(text: &str) -> String {
        text.chars().take(LONGEST_ERROR).collect()
    }

    fn is(&self, stored: Option<(bool, &str)>) -> bool {
        match self {
            Health::Healthy => stored.is_some_and(|(is_healthy, _)| is_healthy),
            Health::Unhealthy(error) => stored == Some((false, error)),
        }
    }
}

/// The task of one entry.
pub(super) struct RegisteredWorkload {
    shared: Arc<Shared>,
    registration: Registration,
    /// Open streams of this replica.
    streams: BTreeSet<u64>,
    /// The proxy that connected last, and when.
    proxy: Option<Arc<Proxy>>,
    connected: String,
    /// Set when the last stream ended.
    disconnected: Option<(String, Instant)>,
    health: Option<Health>,
}

/// What is left to do.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Nothing until the next event.
    Wait,
    /// To be looked at again then.
    At(Instant),
    /// The entry is of no concern to this replica any longer.
    End,
}

impl RegisteredWorkload {
    pub(super) fn new(shared: Arc<Shared>, registration: Registration) -> RegisteredWorkload {
        RegisteredWorkload {
            shared,
            registration,
            streams: BTreeSet::new(),
            proxy: None,
            connected: String::new(),
            disconnected: None,
            health: None,
        }
    }

    /// Applies events until the entry is deleted or belongs to another replica.
    pub(super) async fn run(mut self, mut events: mpsc::Receiver<WorkloadEvent>) {
        let stop = self.shared.stop.clone();
        let mut retry = FIRST_RETRY;
        let mut next = Next::Wait;
        loop {
            let due = async {
                match &next {
                    Next::At(time) => tokio::time::sleep_until(*time).await,
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                event = events.recv() => match event {
                    Some(event) => self.apply(event),
                    None => return,
                },
                () = due => {}
            }
            while let Ok(event) = events.try_recv() {
                self.apply(event);
            }
            next = match self.reconcile().await {
                Ok(next) => {
                    retry = FIRST_RETRY;
                    next
                }
                Err(error) => {
                    self.shared.metrics.failed.add(1);
                    warn!(entry = %self.registration.entry, %error, "could not write a WorkloadEntry; retrying");
                    retry = (retry * 2).min(LAST_RETRY);
                    Next::At(Instant::now() + retry)
                }
            };
            if next == Next::End && self.shared.forget(&self.registration.entry, &events) {
                return;
            }
        }
    }

    fn apply(&mut self, event: WorkloadEvent) {
        match event {
            WorkloadEvent::Connected { number, proxy } => {
                if self.streams.is_empty() {
                    self.connected = now();
                    self.health = None;
                }
                self.streams.insert(number);
                self.proxy = Some(proxy);
                self.disconnected = None;
            }
            WorkloadEvent::Disconnected { number } => {
                let was_connected = self.streams.remove(&number);
                if was_connected && self.streams.is_empty() {
                    self.disconnected = Some((now(), Instant::now()));
                }
            }
            WorkloadEvent::Health { number, health } if self.streams.contains(&number) => self.health = Some(health),
            WorkloadEvent::Health { .. } => {}
        }
    }

    /// Makes the stored entry what it should be.
    async fn reconcile(&self) -> Result<Next, TrustRequestError> {
        let stored = self.shared.store.get(&self.registration.entry).await?;
        match (&self.registration.group, &self.disconnected) {
            (Some(_), None) => self.keep(stored).await,
            (Some(_), Some((at, since))) => self.leave(stored, at, *since).await,
            (None, None) => self.report(stored).await,
            (None, Some(_)) => self.withdraw(stored).await,
        }
    }

    /// The workload is connected: the entry exists, is ours, and has the reported health.
    async fn keep(&self, stored: Option<StoredEntry>) -> Result<Next, TrustRequestError> {
        let Some(stored) = stored else { return self.create().await };
        let is_ours = stored.annotation(CONTROLLER) == Some(&self.shared.controller)
            && stored.annotation(CONNECTED) == Some(&self.connected);
        if is_ours {
            return self.report(Some(stored)).await;
        }
        if stored.annotation(CONNECTED).is_some_and(|other| is_later(other, &self.connected)) {
            // The workload has connected to another replica since, or the clock of that replica is ahead: then its stream
            // ends, and this replica takes over.
            return Ok(Next::At(Instant::now() + CONTESTED));
        }
        let annotations =
            [(CONTROLLER, Some(&*self.shared.controller)), (CONNECTED, Some(&*self.connected)), (DISCONNECTED, None)];
        let written = self.shared.store.annotate(&self.registration.entry, &stored.version, &annotations).await?;
        if written == WriteResult::Written {
            self.shared.metrics.updated.add(1);
            info!(entry = %self.registration.entry, "registered workload connected again");
        }
        Ok(Next::At(Instant::now()))
    }

    async fn create(&self) -> Result<Next, TrustRequestError> {
        let (Some(group), Some(proxy)) = (&self.registration.group, &self.proxy) else { return Ok(Next::Wait) };
        let snapshot = (self.shared.snapshot)();
        let document = snapshot.objects.get(group).and_then(|group| entry(group, &self.registration, proxy));
        let Some(mut document) = document else {
            return Err(TrustRequestError::Failed(format!("{group} was deleted")));
        };
        let annotations = &mut document["metadata"]["annotations"];
        annotations[CONTROLLER] = json!(self.shared.controller);
        annotations[CONNECTED] = json!(self.connected);
        if self.shared.store.create(&self.registration.entry, group, document).await? == WriteResult::Written {
            self.shared.metrics.created.add(1);
            info!(entry = %self.registration.entry, "registered workload");
        }
        Ok(Next::At(Instant::now()))
    }

    /// Writes the reported health.
    async fn report(&self, stored: Option<StoredEntry>) -> Result<Next, TrustRequestError> {
        let (Some(stored), Some(health)) = (stored, &self.health) else { return Ok(Next::Wait) };
        if !self.shared.has_health || health.is(stored.health()) {
            return Ok(Next::Wait);
        }
        let (status, message) = match health {
            Health::Healthy => ("True", ""),
            Health::Unhealthy(error) => ("False", &**error),
        };
        let time = now();
        let condition = json!({"type": HEALTHY, "status": status, "message": message,
            "lastProbeTime": time, "lastTransitionTime": time});
        let written = self.write_health(&stored, Some(condition)).await?;
        if written == WriteResult::Written {
            info!(entry = %self.registration.entry, status, message, "workload reported its health");
        }
        Ok(Next::At(Instant::now()))
    }

    /// An entry that was not made here has no health while its workload is disconnected.
    async fn withdraw(&self, stored: Option<StoredEntry>) -> Result<Next, TrustRequestError> {
        let Some(stored) = stored.filter(|stored| stored.health().is_some()) else { return Ok(Next::End) };
        self.write_health(&stored, None).await?;
        Ok(Next::At(Instant::now()))
    }

    async fn write_health(
        &self,
        stored: &StoredEntry,
        condition: Option<Value>,
    ) -> Result<WriteResult, TrustRequestError> {
        let others = stored.conditions.iter().filter(|condition| condition["type"] != HEALTHY).cloned();
        let conditions: Vec<Value> = others.chain(condition).collect();
        self.shared.store.write_conditions(&self.registration.entry, &stored.version, &conditions).await
    }

    /// The workload is disconnected: the entry is marked, and deleted after the grace period.
    async fn leave(&self, stored: Option<StoredEntry>, at: &str, since: Instant) -> Result<Next, TrustRequestError> {
        let key = &self.registration.entry;
        let is_ours = |stored: &StoredEntry| stored.annotation(CONTROLLER) == Some(self.shared.controller.as_str());
        let Some(stored) = stored.filter(is_ours) else { return Ok(Next::End) };
        match (stored.annotation(CONNECTED), stored.annotation(DISCONNECTED)) {
            (Some(connected), _) if connected == self.connected => {
                let annotations = [(CONNECTED, None), (DISCONNECTED, Some(at))];
                let written = self.shared.store.annotate(key, &stored.version, &annotations).await?;
                if written == WriteResult::Written {
                    self.shared.metrics.disconnected.add(1);
                    info!(entry = %key, grace = ?self.shared.grace, "registered workload disconnected");
                }
                Ok(Next::At(Instant::now()))
            }
            (None, Some(disconnected)) if disconnected == at => {
                let end = since + self.shared.grace;
                if Instant::now() < end {
                    return Ok(Next::At(end));
                }
                if self.shared.store.delete(key, &stored.version).await? == WriteResult::Written {
                    self.shared.metrics.deleted.add(1);
                    info!(entry = %key, "deleted the WorkloadEntry of a workload that is gone");
                }
                Ok(Next::At(Instant::now()))
            }
            // Another process of the same name has it.
            _ => Ok(Next::End),
        }
    }
}

/// Whether one timestamp is later than another; false if one cannot be parsed.
pub(super) fn is_later(one: &str, other: &str) -> bool {
    matches!((timestamp::parse(one), timestamp::parse(other)), (Some(one), Some(other)) if one > other)
}

/// Now as RFC 3339 with nanoseconds.
fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = timestamp::format(i64::try_from(since.as_secs()).unwrap_or(i64::MAX));
    format!("{}.{:09}Z", seconds.trim_end_matches('Z'), since.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use super::{Health, is_later, now};

    #[test]
    fn timestamps_are_compared_by_time() {
        assert!(is_later("2026-01-01T00:00:00.5Z", "2026-01-01T00:00:00.25Z"));
        assert!(!is_later("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"));
        assert!(!is_later("tomorrow", "2026-01-01T00:00:00Z"));
        let first = now();
        assert!(model::config::timestamp::parse(&first).is_some() && !is_later(&first, &now()), "{first}");
    }

    #[test]
    fn health_is_written_only_if_it_differs() {
        assert!(Health::Healthy.is(Some((true, ""))) && !Health::Healthy.is(None));
        let ill = Health::Unhealthy("no response".to_owned());
        assert!(ill.is(Some((false, "no response"))) && !ill.is(Some((false, "other"))) && !ill.is(Some((true, ""))));
    }
}
