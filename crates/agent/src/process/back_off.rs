//! Delays between restarts of a failed Envoy, and when to give up.

use std::time::Duration;

/// Exponential back-off with a limited number of restarts: 0.2, 0.4 … 102.4 s with upstream's values.
#[derive(Clone, Debug)]
pub struct BackOff {
    first: Duration,
    budget: u32,
    used: u32,
    /// An Envoy that ran this long was healthy: its exit resets the count.
    healthy_after: Duration,
}

impl BackOff {
    /// Pilot 0.8's first delay of 200 ms; Pilot 0.8 restarted ten times.
    pub fn upstream(budget: u32) -> BackOff {
        BackOff::new(Duration::from_millis(200), budget)
    }

    pub fn new(first: Duration, budget: u32) -> BackOff {
        // Longer than the longest delay. Pilot 0.8 never reset the count, so rare crashes added up over months.
        BackOff { first, budget, used: 0, healthy_after: Duration::from_secs(300) }
    }

    /// The delay before the next restart, given how long Envoy ran; `None` when no restarts are left.
    pub fn next(&mut self, lived: Duration) -> Option<Duration> {
        if lived >= self.healthy_after {
            self.reset();
        }
        if self.used >= self.budget {
            return None;
        }
        let delay = self.first.saturating_mul(2u32.saturating_pow(self.used));
        self.used += 1;
        Some(delay)
    }

    /// The longest delay, for restarts that are never given up.
    pub fn longest(&self) -> Duration {
        self.first.saturating_mul(2u32.saturating_pow(self.budget.saturating_sub(1)))
    }

    /// Resets the count, because the configuration changed.
    pub fn reset(&mut self) {
        self.used = 0;
    }

    /// Whether all restarts are left.
    pub fn is_unused(&self) -> bool {
        self.used == 0
    }

    /// Number of restarts left.
    pub fn left(&self) -> u32 {
        self.budget - self.used
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::BackOff;

    #[test]
    fn delays_double_until_the_budget_is_used() {
        let mut back_off = BackOff::upstream(10);
        let delays: Vec<u128> =
            std::iter::from_fn(|| back_off.next(Duration::ZERO)).map(|delay| delay.as_millis()).collect();
        assert_eq!(delays, [200, 400, 800, 1600, 3200, 6400, 12800, 25600, 51200, 102400]);
        assert_eq!(back_off.next(Duration::from_secs(299)), None);
    }

    #[test]
    fn long_run_or_reset_restores_the_budget() {
        let mut back_off = BackOff::new(Duration::from_secs(1), 1);
        assert!(back_off.next(Duration::ZERO).is_some() && back_off.next(Duration::ZERO).is_none());
        assert_eq!(back_off.next(Duration::from_secs(300)), Some(Duration::from_secs(1)));
        back_off.reset();
        assert_eq!(back_off.left(), 1);
    }
}
