//! Waits between failed attempts: longer after each failure, with jitter, so that clients do not retry all at once.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Doubles the wait after each failure.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    /// A failure this long after the last wait counts as the first one.
    reset_after: Duration,
    failures: u32,
    /// When the last wait of `next_wait` ends.
    waited_until: Option<Instant>,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff::new(Duration::from_millis(100), Duration::from_secs(15))
    }
}

impl Backoff {
    pub(crate) const fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { first, longest, reset_after: Duration::MAX, failures: 0, waited_until: None }
    }

    /// Starts again with the first wait if there was no failure for this long.
    pub(crate) const fn resetting_after(self, healthy: Duration) -> Backoff {
        Backoff { reset_after: healthy, ..self }
    }

    /// How long to wait after a failure that happened now.
    pub(crate) fn next_wait(&mut self) -> Duration {
        let now = Instant::now();
        if self.waited_until.is_some_and(|until| now.saturating_duration_since(until) >= self.reset_after) {
            self.failures = 0;
        }
        let wait = self.current_wait();
        self.failures = self.failures.saturating_add(1);
        self.waited_until = Some(now + wait);
        wait
    }

    /// Waits after a failure. A wait that is cancelled does not count.
    pub(crate) async fn wait(&mut self) {
        sleep(self.current_wait()).await;
        self.failures = self.failures.saturating_add(1);
    }

    /// Starts again with the first wait.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    fn current_wait(&self) -> Duration {
        jittered(self.first.saturating_mul(1 << self.failures.min(16)).min(self.longest))
    }
}

/// A random duration within a quarter of `around`.
pub(crate) fn jittered(around: Duration) -> Duration {
    around.mul_f64(0.75 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::sleep;

    use super::{Backoff, jittered};

    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(5);
    const HEALTHY: Duration = Duration::from_secs(10);

    fn is_about(wait: Duration, expected: Duration) -> bool {
        (expected * 3 / 4..=expected * 5 / 4).contains(&wait)
    }

    #[tokio::test(start_paused = true)]
    async fn hole_07_waits_grow_and_are_short_again_after_a_healthy_period() {
        let mut backoff = Backoff::new(FIRST, LONGEST).resetting_after(HEALTHY);
        for expected in [100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            let wait = backoff.next_wait();
            assert!(is_about(wait, Duration::from_millis(expected)), "{wait:?} instead of {expected} ms");
            // Shorter than the healthy period.
            sleep(wait + HEALTHY / 2).await;
        }
        assert!(is_about(backoff.next_wait(), LONGEST));
        sleep(LONGEST * 2 + HEALTHY).await;
        assert!(is_about(backoff.next_wait(), FIRST));
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_makes_the_next_wait_short_again() {
        let mut backoff = Backoff::new(FIRST, LONGEST);
        backoff.wait().await;
        assert!(is_about(backoff.next_wait(), FIRST * 2));
        backoff.reset();
        assert!(is_about(backoff.next_wait(), FIRST));
    }

    #[test]
    fn jitter_stays_within_a_quarter() {
        for _ in 0..100 {
            let found = jittered(Duration::from_secs(1));
            assert!(is_about(found, Duration::from_secs(1)), "{found:?}");
        }
    }
}
