//! Waits between failures of one watch: longer each time, never the same for all, and short again after a healthy period.

use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::jittered;

pub(super) const FIRST_WAIT: Duration = Duration::from_millis(100);
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// A failure this long after the wait for the last one is a new one.
const HEALTHY: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    /// When the last wait was over.
    waited_until: Option<Instant>,
}

impl Backoff {
    /// How long to wait after a failure that happened now.
    pub(super) fn next_wait(&mut self) -> Duration {
        let now = Instant::now();
        if self.waited_until.is_none_or(|until| now.saturating_duration_since(until) >= HEALTHY) {
            self.failures = 0;
        }
        let wait = jittered(FIRST_WAIT.saturating_mul(1 << self.failures.min(16)).min(LONGEST_WAIT));
        self.failures += 1;
        self.waited_until = Some(now + wait);
        wait
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::sleep;

    use super::{Backoff, FIRST_WAIT, HEALTHY, LONGEST_WAIT};

    fn is_about(wait: Duration, expected: Duration) -> bool {
        (expected * 3 / 4..=expected * 5 / 4).contains(&wait)
    }

    #[tokio::test(start_paused = true)]
    async fn hole_07_waits_grow_and_are_short_again_after_a_healthy_period() {
        let mut backoff = Backoff::default();
        for expected in [100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            let wait = backoff.next_wait();
            assert!(is_about(wait, Duration::from_millis(expected)), "{wait:?} instead of {expected} ms");
            // What comes between two failures in a row is no healthy period.
            sleep(wait + HEALTHY / 2).await;
        }
        assert!(is_about(backoff.next_wait(), LONGEST_WAIT));
        sleep(LONGEST_WAIT * 2 + HEALTHY).await;
        assert!(is_about(backoff.next_wait(), FIRST_WAIT));
    }
}
