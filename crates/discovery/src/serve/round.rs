//! Measures push rounds: the time from the publication of a snapshot until a client has been sent the changes. The
//! writer gathers changes for a multiple of it, so that under load it does not publish faster than clients follow.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Maximum counted for one client: one that reads slowly must not delay the others.
const LONGEST: Duration = Duration::from_millis(200);

/// Sum and number of the times since the last read.
#[derive(Debug, Default)]
pub(crate) struct RoundTime {
    micros: AtomicU64,
    clients: AtomicU64,
}

impl RoundTime {
    /// Records that a client was sent all of a change this long after its publication.
    pub(crate) fn note(&self, took: Duration) {
        let micros = u64::try_from(took.min(LONGEST).as_micros()).unwrap_or_default();
        self.micros.fetch_add(micros, Ordering::Relaxed);
        self.clients.fetch_add(1, Ordering::Relaxed);
    }

    /// The mean since the last call; zero if no client was sent a change.
    pub(crate) fn take(&self) -> Duration {
        let (micros, clients) = (self.micros.swap(0, Ordering::Relaxed), self.clients.swap(0, Ordering::Relaxed));
        Duration::from_micros(micros.checked_div(clients).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, RoundTime};

    #[test]
    fn slow_readers_count_little() {
        let round = RoundTime::default();
        for _ in 0..19 {
            round.note(Duration::from_millis(10));
        }
        round.note(Duration::from_secs(60));
        assert_eq!(round.take(), Duration::from_micros(19_500));
        assert_eq!(round.take(), Duration::ZERO);
    }
}
