//! How fast adapters ask: at once while that is rare, less often in a burst, later each time after failures,
//! and never all at the same moment. And how long they wait for an answer: longer after each time-out.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(15);
/// Questions that may follow each other at once.
const BURST: u32 = 2;

/// Waits between failures, longer each time.
#[derive(Debug)]
pub struct Retry {
    next: Duration,
}

impl Default for Retry {
    fn default() -> Retry {
        Retry { next: FIRST_RETRY }
    }
}

impl Retry {
    pub async fn wait(&mut self) {
        tokio::time::sleep(jittered(self.next)).await;
        self.next = (self.next * 2).min(LAST_RETRY);
    }

    pub fn succeeded(&mut self) {
        self.next = FIRST_RETRY;
    }
}

/// How often a time-out is doubled at most: a server that is alive and gives no answer for so long will give none.
const MOST_DOUBLINGS: u32 = 5;

/// How long one answer is waited for. A time-out is doubled when it was hit, and after an answer it is at least twice
/// what the answer took: a registry so large or a machine so busy that a whole list takes longer than the first time-out
/// is read in the end, and a dead server is still noticed soon.
#[derive(Debug)]
pub struct Patience {
    least: Duration,
    now: Mutex<Duration>,
}

impl Patience {
    pub fn new(least: Duration) -> Patience {
        Patience { least, now: Mutex::new(least) }
    }

    /// The time-out of the next question.
    pub fn now(&self) -> Duration {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an answer that took this long.
    pub fn answered(&self, took: Duration) {
        self.set(took.saturating_mul(2).max(self.least));
    }

    /// Notes that a question with this time-out got no answer. Several that were asked together count once.
    pub fn timed_out(&self, limit: Duration) {
        self.set(limit.saturating_mul(2).max(self.now()));
    }

    fn set(&self, to: Duration) {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) =
            to.min(self.least.saturating_mul(1 << MOST_DOUBLINGS));
    }
}

/// Lets a few questions pass at once and then one in every interval.
#[derive(Debug)]
pub struct Pace {
    interval: Duration,
    /// When the next question would be allowed if there were no burst.
    due: Instant,
}

impl Pace {
    pub fn new(interval: Duration) -> Pace {
        Pace { interval, due: Instant::now() }
    }

    pub async fn turn(&mut self) {
        let now = Instant::now();
        self.due = self.due.max(now) + self.interval;
        // The last of a burst has the whole burst's intervals before it.
        let allowed = self.due.checked_sub(self.interval * BURST).unwrap_or(now);
        if allowed > now {
            tokio::time::sleep_until(allowed).await;
        }
    }
}

/// A duration within a quarter of the one given.
pub fn jittered(around: Duration) -> Duration {
    // Every RandomState has keys of its own, which makes its hash of anything a random number.
    let thousandths = RandomState::new().hash_one(()) % 500;
    around * (750 + u32::try_from(thousandths).unwrap_or_default()) / 1000
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::{Pace, Patience, jittered};

    #[test]
    fn hole_13_patience_grows_with_time_outs_and_follows_answers() {
        let seconds = Duration::from_secs;
        let patience = Patience::new(seconds(30));
        patience.timed_out(seconds(30));
        patience.timed_out(seconds(30));
        assert_eq!(patience.now(), seconds(60), "two questions of one time");
        for _ in 0..10 {
            patience.timed_out(patience.now());
        }
        assert_eq!(patience.now(), seconds(30 * 32));
        patience.answered(seconds(50));
        assert_eq!(patience.now(), seconds(100));
        patience.answered(seconds(1));
        assert_eq!(patience.now(), seconds(30));
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_then_one_in_every_interval() {
        let mut pace = Pace::new(Duration::from_secs(1));
        let begun = Instant::now();
        let mut moments = Vec::new();
        for _ in 0..5 {
            pace.turn().await;
            moments.push(begun.elapsed().as_secs());
        }
        assert_eq!(moments, [0, 0, 1, 2, 3]);
        tokio::time::sleep(Duration::from_secs(10)).await;
        let rested = Instant::now();
        pace.turn().await;
        assert_eq!(rested.elapsed(), Duration::ZERO);
    }

    #[test]
    fn jitter_stays_near() {
        for _ in 0..100 {
            let found = jittered(Duration::from_secs(1));
            assert!((Duration::from_millis(750)..=Duration::from_millis(1250)).contains(&found), "{found:?}");
        }
    }
}
