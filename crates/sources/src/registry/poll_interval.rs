//! The minimum interval between requests for one list while it keeps changing.

use std::time::Duration;

use tokio::time::Instant;

/// Requests that may follow each other without a wait.
const BURST: u32 = 2;

/// Lets a burst of two requests pass at once, then one in each interval.
#[derive(Debug)]
pub struct PollInterval {
    interval: Duration,
    /// When the next request would be allowed if there were no burst.
    due: Instant,
}

impl PollInterval {
    pub fn new(interval: Duration) -> PollInterval {
        PollInterval { interval, due: Instant::now() }
    }

    /// Waits until the next request is allowed.
    pub async fn ready(&mut self) {
        let now = Instant::now();
        self.due = self.due.max(now) + self.interval;
        // The last request of a burst has the intervals of the whole burst before it.
        let allowed = self.due.checked_sub(self.interval * BURST).unwrap_or(now);
        if allowed > now {
            tokio::time::sleep_until(allowed).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::PollInterval;

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_then_one_in_every_interval() {
        let mut poll = PollInterval::new(Duration::from_secs(1));
        let started = Instant::now();
        let mut moments = Vec::new();
        for _ in 0..5 {
            poll.ready().await;
            moments.push(started.elapsed().as_secs());
        }
        assert_eq!(moments, [0, 0, 1, 2, 3]);
        tokio::time::sleep(Duration::from_secs(10)).await;
        let rested = Instant::now();
        poll.ready().await;
        assert_eq!(rested.elapsed(), Duration::ZERO);
    }
}
