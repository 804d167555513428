//! Figures of the last hour for the console: CPU, memory, push latency, convergence. One sample in five seconds, in a
//! small ring.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{WeakPages, process};

/// Time between samples.
const INTERVAL: Duration = Duration::from_secs(5);
/// Samples of an hour.
const MOST: usize = 720;

/// The samples of the last hour.
#[derive(Debug, Default)]
pub(super) struct Stats(Mutex<VecDeque<StatSample>>);

/// Figures of one interval.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct StatSample {
    /// Milliseconds since 1970.
    at: u64,
    /// Percent of one core.
    cpu: f32,
    /// Resident memory in bytes.
    memory: u64,
    proxies: u32,
    /// Clients that were sent a change.
    pushes: u32,
    /// Milliseconds from a change until a client was sent it.
    push_mean: f32,
    push_max: f32,
    /// Milliseconds from a change until a client had acknowledged all of it.
    converged_mean: f32,
    converged_max: f32,
}

impl Stats {
    pub(super) fn samples(&self) -> Vec<StatSample> {
        self.0.lock().iter().copied().collect()
    }

    /// The newest sample.
    pub(super) fn last(&self) -> Option<StatSample> {
        self.0.lock().back().copied()
    }

    fn add(&self, sample: StatSample) {
        let mut samples = self.0.lock();
        if samples.len() >= MOST {
            samples.pop_front();
        }
        samples.push_back(sample);
    }
}

/// Takes samples until cancelled.
pub(super) async fn follow(pages: WeakPages, stop: CancellationToken) {
    let mut before = (Instant::now(), process::usage());
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        let Some(pages) = pages.upgrade() else { return };
        let now = (Instant::now(), process::usage());
        let seconds = (now.0 - before.0).as_secs_f64().max(0.001);
        let metrics = pages.pilot().metrics();
        let (pushes, push_mean, push_max) = metrics.recent_sends.take();
        let (_, converged_mean, converged_max) = metrics.recent_acknowledgements.take();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        pages.0.stats.add(StatSample {
            at: u64::try_from(since.as_millis()).unwrap_or_default(),
            cpu: ((now.1.cpu_seconds - before.1.cpu_seconds) / seconds * 100.0) as f32,
            memory: now.1.resident_bytes,
            proxies: u32::try_from(pages.pilot().clients().count()).unwrap_or(u32::MAX),
            pushes: u32::try_from(pushes).unwrap_or(u32::MAX),
            push_mean: push_mean as f32,
            push_max: push_max as f32,
            converged_mean: converged_mean as f32,
            converged_max: converged_max as f32,
        });
        before = now;
    }
}
