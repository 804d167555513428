//! The checker: replays a history and reports every broken promise. Pure; `timeline.rs` has what was true at which time,
//! `replay.rs` what each proxy had.

mod replay;
mod timeline;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::Promise;
use super::content::Marker;
use super::history::{ProxyName, TimedEvent};
use replay::Replay;
use timeline::Timeline;

/// A broken promise.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    pub promise: Promise,
    pub at: Duration,
    pub proxy: ProxyName,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} s, {}: {} broken: {}", self.at.as_secs_f64(), self.proxy, self.promise, self.what)
    }
}

/// The result of a check.
#[derive(Debug, Default)]
pub struct Checked {
    pub violations: Vec<Violation>,
    /// How often each promise was examined: none broken means little if none was tried.
    pub examined: BTreeMap<Promise, usize>,
}

impl Checked {
    fn examine(&mut self, promise: Promise) {
        *self.examined.entry(promise).or_default() += 1;
    }

    /// Counts an examination, and a violation unless the promise holds.
    fn require(&mut self, promise: Promise, holds: bool, at: Duration, proxy: &ProxyName, what: impl Fn() -> String) {
        self.examine(promise);
        if !holds {
            self.violations.push(Violation { promise, at, proxy: proxy.clone(), what: what() });
        }
    }

    /// The violations, one in a line.
    pub fn report(&self) -> String {
        self.violations.iter().map(|violation| format!("{violation}\n")).collect()
    }
}

/// Checks all promises. `window` is how long a proxy may work with endpoints that have changed, not counting times in
/// which a fault touched it, its replica or the source.
pub fn check(events: &[TimedEvent], markers: &[Marker], window: Duration) -> Checked {
    let timeline = Timeline::of(events, window);
    let mut replay = Replay::new(&timeline, markers);
    for timed in events {
        replay.apply(timed);
    }
    replay.finish(events.last().map(|timed| timed.at).unwrap_or_default())
}
