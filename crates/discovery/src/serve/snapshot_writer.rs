//! The one task that writes the snapshot. The first change is applied at once; changes that follow closely are
//! gathered for a few milliseconds, so that a burst costs one push, without waiting for a pause.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use model::change::{Batch, SourceId};
use model::problem::{Problem, Severity};
use model::settings::{Knobs, Settings};
use model::snapshot::{Delta, Snapshot};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::metrics::Metrics;
use crate::serve::class::ClassInputs;
use crate::serve::history::History;
use crate::serve::journal::{AppliedChange, Journal};
use crate::serve::offload::offload;
use crate::serve::round::RoundTime;

/// Deltas kept: clients that are at most this many snapshots behind advance by differences.
const REMEMBERED: usize = 64;
/// Keys in all these deltas but the last, about 1 MB: processing more takes as long as computing everything again.
const REMEMBERED_KEYS: usize = 16_384;

/// Changes after the first of a burst are gathered this long, or longer if applying or sending takes longer.
const GATHER: Duration = Duration::from_millis(5);
/// Problems logged per batch; a folder of broken files must not flood the log.
const MOST_LOGGED: usize = 20;
const GATHER_AT_MOST: Duration = Duration::from_millis(200);
/// Changes are gathered this many times as long as the mean client waits for a change. Under steady change, sending
/// then takes about a third of the time: clients are current within two rounds, and the cores are free for others.
const GATHER_ROUNDS: u32 = 5;

/// The snapshot at one moment, and the changes that led to it.
#[derive(Debug)]
pub struct PublishedSnapshot {
    /// Counted from 0, the empty snapshot.
    pub number: u64,
    pub snapshot: Arc<Snapshot>,
    /// The last changes; the last one leads to this snapshot.
    deltas: Arc<VecDeque<Arc<Delta>>>,
    /// Earlier versions of objects, shared by all snapshots.
    pub history: Arc<History>,
    pub at: SystemTime,
    /// The same moment for measuring, which does not jump with the system clock.
    pub(crate) instant: Instant,
    class_inputs: OnceLock<ClassInputs>,
}

impl PublishedSnapshot {
    /// The first one, of an empty mesh.
    pub(crate) fn empty(settings: Settings) -> PublishedSnapshot {
        PublishedSnapshot {
            number: 0,
            snapshot: Arc::new(Snapshot::empty(settings)),
            deltas: Arc::default(),
            history: Arc::default(),
            at: SystemTime::now(),
            instant: Instant::now(),
            class_inputs: OnceLock::new(),
        }
    }

    /// The next snapshot with its delta; `None` if the delta is too large to be processed.
    pub(crate) fn next(&self, snapshot: Snapshot, delta: Option<Delta>) -> PublishedSnapshot {
        let deltas = delta.map_or_else(VecDeque::new, |delta| remembered(&self.deltas, delta));
        PublishedSnapshot {
            number: self.number + 1,
            snapshot: Arc::new(snapshot),
            deltas: Arc::new(deltas),
            history: self.history.clone(),
            at: SystemTime::now(),
            instant: Instant::now(),
            class_inputs: OnceLock::new(),
        }
    }

    /// All changes since an earlier snapshot in one; `None` if they are no longer known.
    pub fn since(&self, earlier: u64) -> Option<Delta> {
        let mut all = Delta::default();
        self.deltas_since(earlier)?.for_each(|delta| all.merge(delta.clone()));
        Some(all)
    }

    /// The changes since an earlier snapshot, the earliest first; `None` if they are no longer known.
    pub(crate) fn deltas_since(&self, earlier: u64) -> Option<impl Iterator<Item = &Delta> + Clone> {
        let steps = usize::try_from(self.number.checked_sub(earlier)?).ok()?;
        let first = self.deltas.len().checked_sub(steps)?;
        Some(self.deltas.range(first..).map(|delta| &**delta))
    }

    /// What classes of clients depend on in this snapshot.
    pub(crate) fn class_inputs(&self) -> ClassInputs {
        *self.class_inputs.get_or_init(|| ClassInputs::of(&self.snapshot))
    }

    /// Whether all these sources have synced.
    pub fn is_synced(&self, sources: &BTreeSet<SourceId>) -> bool {
        sources.is_subset(&self.snapshot.synced)
    }
}

/// Accepts changes of sources and publishes snapshots.
#[derive(Clone, Debug)]
pub struct SnapshotWriter {
    changes: mpsc::Sender<Batch>,
    snapshots: watch::Receiver<Arc<PublishedSnapshot>>,
    metrics: Arc<Metrics>,
    round: Arc<RoundTime>,
    journal: Arc<Journal>,
}

impl SnapshotWriter {
    /// Starts the writer. It ends when cancelled.
    pub fn start(settings: Settings, metrics: Arc<Metrics>, cancel: CancellationToken) -> SnapshotWriter {
        let first = PublishedSnapshot::empty(settings);
        let (changes, incoming) = mpsc::channel(1024);
        let (publish, snapshots) = watch::channel(Arc::new(first));
        let (round, journal) = (Arc::<RoundTime>::default(), Arc::<Journal>::default());
        let records = Records { metrics: metrics.clone(), round: round.clone(), journal: journal.clone() };
        tokio::spawn(async move {
            tokio::select! {
                () = cancel.cancelled() => {}
                () = write(incoming, publish, records) => {}
            }
        });
        SnapshotWriter { changes, snapshots, metrics, round, journal }
    }

    /// The last changes, and which clients have them.
    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// Records how long it takes to send clients a change.
    pub(crate) fn round(&self) -> &Arc<RoundTime> {
        &self.round
    }

    /// The metrics.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// The channel for batches of sources.
    pub fn changes(&self) -> mpsc::Sender<Batch> {
        self.changes.clone()
    }

    /// The newest snapshot, and a way to wait for the next.
    pub fn snapshots(&self) -> watch::Receiver<Arc<PublishedSnapshot>> {
        self.snapshots.clone()
    }

    /// The newest snapshot.
    pub fn now(&self) -> Arc<PublishedSnapshot> {
        self.snapshots.borrow().clone()
    }
}

/// Where the writer records what it does.
#[derive(Clone)]
struct Records {
    metrics: Arc<Metrics>,
    round: Arc<RoundTime>,
    journal: Arc<Journal>,
}

async fn write(mut incoming: mpsc::Receiver<Batch>, publish: watch::Sender<Arc<PublishedSnapshot>>, records: Records) {
    let publish = Arc::new(publish);
    let mut gathered = None;
    loop {
        let (first, arrived) = match gathered.take() {
            Some(first) => first,
            None => match incoming.recv().await {
                Some(first) => (first, Instant::now()),
                None => return,
            },
        };
        let mut batches = vec![first];
        while let Ok(more) = incoming.try_recv() {
            batches.push(more);
        }
        let begun = Instant::now();
        records.metrics.received(&batches);
        // Large objects take long to join, and the threads that serve connections must not wait for it.
        let (publisher, recorder) = (publish.clone(), records.clone());
        let applied = offload(move || apply(batches, arrived, &publisher, &recorder));
        if let Err(failed) = applied.await {
            match failed.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down.
                Err(_) => return,
            }
        }
        let took = (begun.elapsed() * 2).max(records.round.take() * GATHER_ROUNDS);
        let pause = gathering(took, &publish.borrow().snapshot.settings.knobs);
        gathered = first_of(&mut incoming, pause).await;
    }
}

/// Waits for this time and returns the first batch that arrived in it, and when.
async fn first_of(incoming: &mut mpsc::Receiver<Batch>, pause: Duration) -> Option<(Batch, Instant)> {
    let end = Instant::now() + pause;
    let first = tokio::time::timeout_at(end, incoming.recv()).await.ok()??;
    let arrived = Instant::now();
    tokio::time::sleep_until(end).await;
    Some((first, arrived))
}

/// How long changes are gathered after a batch, given how long applying or sending it took. Upstream's debounce
/// settings, which wait for a pause, are upper bounds here.
fn gathering(took: Duration, knobs: &Knobs) -> Duration {
    let bound = knobs.debounce_after.0.min(knobs.debounce_max.0);
    took.clamp(GATHER, GATHER_AT_MOST).min(Duration::from_millis(bound))
}

fn apply(batches: Vec<Batch>, arrived: Instant, publish: &watch::Sender<Arc<PublishedSnapshot>>, records: &Records) {
    let begun = Instant::now();
    let before = publish.borrow().clone();
    let metrics = &records.metrics;
    let sources: BTreeSet<SourceId> = batches.iter().map(|batch| batch.source.clone()).collect();
    let (snapshot, delta) = before.snapshot.apply(batches);
    metrics.applied(&before.snapshot, &snapshot, &delta, begun.elapsed(), arrived.elapsed());
    let newly_synced: Vec<_> = snapshot.synced.difference(&before.snapshot.synced).cloned().collect();
    for source in &newly_synced {
        info!(
            source = &*source.0,
            objects = snapshot.objects.len(),
            services = snapshot.services.len(),
            "source synced"
        );
    }
    log_new_problems(&before.snapshot, &snapshot, metrics);
    if delta.is_empty() && newly_synced.is_empty() && Arc::ptr_eq(&before.snapshot.converted, &snapshot.converted) {
        // At most problems differ: debug pages show them, and no client has to wake.
        return publish_unnoticed(publish, &before, snapshot);
    }
    debug!(
        snapshot = before.number + 1,
        objects = delta.objects.len(),
        endpoints = delta.endpoints.len(),
        "changes applied"
    );
    if !delta.objects.is_empty() {
        let replaced = delta.objects.iter().map(|key| (key, before.snapshot.objects.get(key)));
        before.history.record(before.number + 1, replaced);
    }
    records.journal.record(&AppliedChange {
        number: before.number + 1,
        before: &before.snapshot,
        after: &snapshot,
        delta: &delta,
        sources: &sources,
        synced: &newly_synced,
    });
    publish.send_replace(Arc::new(before.next(snapshot, newly_synced.is_empty().then_some(delta))));
}

/// Publishes a snapshot that is the same for every client.
fn publish_unnoticed(publish: &watch::Sender<Arc<PublishedSnapshot>>, before: &PublishedSnapshot, snapshot: Snapshot) {
    let PublishedSnapshot { number, deltas, history, at, instant, .. } = before;
    let same = PublishedSnapshot {
        number: *number,
        snapshot: Arc::new(snapshot),
        deltas: deltas.clone(),
        history: history.clone(),
        at: *at,
        instant: *instant,
        class_inputs: OnceLock::new(),
    };
    publish.send_if_modified(|published| {
        *published = Arc::new(same);
        false
    });
}

/// The last deltas. One with which a source synced is not kept, nor any before it: it has nearly all objects of the
/// source, so processing it takes as long as computing everything, and it would use memory until the next change.
fn remembered(before: &VecDeque<Arc<Delta>>, last: Delta) -> VecDeque<Arc<Delta>> {
    let mut keys = 0;
    let fits = |delta: &&Arc<Delta>| {
        keys += delta.len();
        keys <= REMEMBERED_KEYS
    };
    let kept = before.iter().rev().take(REMEMBERED - 1).take_while(fits).count();
    before.iter().skip(before.len() - kept).cloned().chain([Arc::new(last)]).collect()
}

/// Logs and counts new problems. The debug page lists all.
fn log_new_problems(before: &Snapshot, now: &Snapshot, metrics: &Metrics) {
    if Arc::ptr_eq(&before.problems, &now.problems) {
        return;
    }
    for (source, problems) in now.problems.iter() {
        let fresh = new_problems(before.problems.get(source).map_or(&[][..], |list| list), problems);
        // Objects of findings are used; only those that sources leave out count as rejected.
        if &*source.0 != model::analysis::SOURCE {
            fresh.iter().for_each(|problem| metrics.rejected(problem));
        }
        for problem in fresh.iter().take(MOST_LOGGED) {
            let code = problem.code.as_str();
            match problem.severity {
                Severity::Info => info!(source = &*source.0, code, "{problem}"),
                Severity::Warning | Severity::Error => warn!(source = &*source.0, code, "{problem}"),
            }
        }
        if fresh.len() > MOST_LOGGED {
            warn!(
                source = &*source.0,
                more = fresh.len() - MOST_LOGGED,
                "further problems are listed at /debug/problems"
            );
        }
    }
}

/// Problems that did not exist before, in their order. A source may have tens of thousands of problems and replaces
/// its list on every change, so they are looked up by hash.
fn new_problems<'a>(before: &[Problem], now: &'a [Problem]) -> Vec<&'a Problem> {
    let known: HashSet<&Problem> = before.iter().collect();
    now.iter().filter(|problem| !known.contains(problem)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use model::change::{Batch, Change, SourceId};
    use model::problem::{Problem, Subject};
    use model::settings::{Knobs, Milliseconds, Settings};
    use tokio_util::sync::CancellationToken;

    use model::names::ServiceKey;
    use model::snapshot::Delta;

    use super::{REMEMBERED, REMEMBERED_KEYS, SnapshotWriter, gathering, new_problems, remembered};

    #[test]
    fn hole_03_steps_are_bounded_by_number_and_keys() {
        let delta = |keys: usize| {
            let key = |n: usize| ServiceKey { hostname: format!("s{n}.shop").into(), namespace: "shop".into() };
            Delta { services: (0..keys).map(key).collect(), ..Delta::default() }
        };
        let mut steps = std::collections::VecDeque::new();
        for _ in 0..2 * REMEMBERED {
            steps = remembered(&steps, delta(1));
        }
        assert_eq!(steps.len(), REMEMBERED);
        steps = remembered(&steps, delta(REMEMBERED_KEYS - 10));
        assert_eq!(steps.len(), REMEMBERED, "the last step does not count");
        steps = remembered(&steps, delta(1));
        assert_eq!(steps.len(), 12);
        steps = remembered(&steps, delta(REMEMBERED_KEYS + 1));
        steps = remembered(&steps, delta(1));
        assert_eq!(steps.iter().map(|delta| delta.len()).collect::<Vec<_>>(), [1]);
    }

    #[tokio::test]
    async fn steps_are_remembered_from_the_sync_of_a_source_on() {
        let world = SnapshotWriter::start(Settings::default(), Arc::default(), CancellationToken::new());
        let mut snapshots = world.snapshots();
        for change in [Change::Renew, Change::Synced, Change::Renew] {
            let batch = Batch { source: SourceId("files".into()), changes: vec![change] };
            world.changes().send(batch).await.unwrap();
            snapshots.changed().await.unwrap();
        }
        let now = world.now();
        assert_eq!(
            [0, 1, 2, 3].map(|published| now.since(published).map(|delta| delta.settings)),
            [None, None, Some(true), Some(false)]
        );
    }

    #[test]
    fn hole_15_new_problems_are_found_among_forty_thousand() {
        let problem = |n: usize| {
            Problem::warning(Subject::Setting(format!("VirtualService shop/v{n}").into()), "unknown field \"spec.htp\"")
        };
        let before: Vec<Problem> = (0..40_000).map(problem).collect();
        let now: Vec<Problem> = (1..40_001).map(problem).collect();
        let begun = Instant::now();
        assert_eq!(new_problems(&before, &now), [&now[39_999]]);
        eprintln!("one new problem among 40,000 found in {:?}", begun.elapsed());
        // Comparing all pairs takes a debug build more than ten times as long.
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    }

    #[test]
    fn gathering_is_short_and_bounded_by_upstreams_settings() {
        let millis = |applied, knobs: &Knobs| gathering(Duration::from_millis(applied), knobs).as_millis();
        let knobs = Knobs::default();
        assert_eq!([millis(0, &knobs), millis(20, &knobs), millis(1000, &knobs)], [5, 20, 100]);
        let eager = Knobs { debounce_after: Milliseconds(2), ..Knobs::default() };
        assert_eq!([millis(0, &eager), millis(1000, &eager)], [2, 2]);
        let none = Knobs { debounce_max: Milliseconds(0), ..Knobs::default() };
        assert_eq!(millis(10, &none), 0);
    }
}
