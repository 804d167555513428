//! Waits between failed attempts: longer after each failure, and never the same for all clients of a server.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(15);

/// Doubles the wait after each failure, from 100 ms to 15 s, with jitter.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff { next: FIRST_WAIT }
    }
}

impl Backoff {
    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(jittered(self.next)).await;
        self.next = (self.next * 2).min(LONGEST_WAIT);
    }

    /// Starts again with the first wait.
    pub(crate) fn reset(&mut self) {
        self.next = FIRST_WAIT;
    }
}

/// A random duration within a quarter of `around`.
pub(crate) fn jittered(around: Duration) -> Duration {
    // Each RandomState has its own random keys, so its hash of anything is a random number.
    let thousandths = RandomState::new().hash_one(()) % 500;
    around * (750 + u32::try_from(thousandths).unwrap_or_default()) / 1000
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::jittered;

    #[test]
    fn jitter_stays_within_a_quarter() {
        for _ in 0..100 {
            let found = jittered(Duration::from_secs(1));
            assert!((Duration::from_millis(750)..=Duration::from_millis(1250)).contains(&found), "{found:?}");
        }
    }
}
