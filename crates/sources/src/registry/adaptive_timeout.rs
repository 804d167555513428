//! Timeouts that follow how long a server takes, so that a large registry on a busy machine is read in the end and a
//! dead server is still noticed soon.

use std::time::Duration;

use parking_lot::Mutex;

/// A timeout grows to at most 2^5 times its minimum: a server that needs longer is taken for dead.
const MOST_DOUBLINGS: u32 = 5;

/// The timeout of requests to one server: doubled after each timeout, and at least twice the duration of the last
/// successful request.
#[derive(Debug)]
pub struct AdaptiveTimeout {
    least: Duration,
    current: Mutex<Duration>,
}

impl AdaptiveTimeout {
    pub fn new(least: Duration) -> AdaptiveTimeout {
        AdaptiveTimeout { least, current: Mutex::new(least) }
    }

    /// The timeout of the next request.
    pub fn current(&self) -> Duration {
        *self.current.lock()
    }

    /// Records a request that was answered after `took`.
    pub fn answered(&self, took: Duration) {
        self.set(took.saturating_mul(2).max(self.least));
    }

    /// Records that a request with this timeout got no response. Concurrent requests with one timeout count once.
    pub fn timed_out(&self, limit: Duration) {
        self.set(limit.saturating_mul(2).max(self.current()));
    }

    fn set(&self, to: Duration) {
        *self.current.lock() = to.min(self.least.saturating_mul(1 << MOST_DOUBLINGS));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::AdaptiveTimeout;

    #[test]
    fn hole_13_timeouts_grow_when_hit_and_follow_responses() {
        let seconds = Duration::from_secs;
        let timeout = AdaptiveTimeout::new(seconds(30));
        timeout.timed_out(seconds(30));
        timeout.timed_out(seconds(30));
        assert_eq!(timeout.current(), seconds(60), "two concurrent requests");
        for _ in 0..10 {
            timeout.timed_out(timeout.current());
        }
        assert_eq!(timeout.current(), seconds(30 * 32));
        timeout.answered(seconds(50));
        assert_eq!(timeout.current(), seconds(100));
        timeout.answered(seconds(1));
        assert_eq!(timeout.current(), seconds(30));
    }
}
