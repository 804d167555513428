//! Arithmetic on lifetimes: when a certificate is renewed, and which share of its life is over.

use std::time::Duration;

/// Shares of a lifetime at which operators are warned, in percent.
pub const WARNINGS: [u8; 3] = [50, 80, 95];

/// The highest warning that is due, in percent of the lifetime; `None` in its first half.
pub fn warning(not_before: i64, not_after: i64, now: i64) -> Option<u8> {
    let life = i128::from(not_after) - i128::from(not_before);
    let over = i128::from(now) - i128::from(not_before);
    WARNINGS.into_iter().rev().find(|percent| over * 100 >= life * i128::from(*percent))
}

/// When a certificate received at `now` is renewed: when `ratio` of the time to its end is left. `random` in 0..1 moves
/// the moment by up to `jitter` of that time in both directions.
pub fn renewal_delay(now: i64, not_after: i64, ratio: f64, jitter: f64, random: f64) -> Duration {
    let left = u64::try_from(not_after.saturating_sub(now)).unwrap_or(0);
    let ratio = (ratio + jitter * (2.0 * random - 1.0)).clamp(0.0, 1.0);
    Duration::from_secs(left).mul_f64(1.0 - ratio)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{renewal_delay, warning};

    #[test]
    fn warnings_follow_the_share_of_life() {
        let at = |now| warning(1000, 2000, now);
        assert_eq!([0, 1000, 1499].map(at), [None; 3]);
        assert_eq!([1500, 1799, 1800, 1949, 1950, 5000].map(at), [50, 50, 80, 80, 95, 95].map(Some));
        assert_eq!(warning(i64::MIN, i64::MAX, i64::MAX), Some(95));
    }

    #[test]
    fn renewal_is_at_the_ratio_and_jitter_is_bounded() {
        let delay = |ratio, jitter, random| renewal_delay(100, 116, ratio, jitter, random);
        assert_eq!(delay(0.5, 0.0, 0.7), Duration::from_secs(8));
        assert_eq!(delay(0.25, 0.0, 0.0), Duration::from_secs(12));
        assert_eq!(delay(0.9, 0.5, 1.0), Duration::ZERO);
        assert_eq!(delay(0.1, 0.5, 0.0), Duration::from_secs(16));
        assert_eq!(renewal_delay(200, 100, 0.5, 0.1, 0.5), Duration::ZERO);
        assert_eq!(renewal_delay(i64::MIN, i64::MAX, 1.0, 0.0, 0.5), Duration::ZERO);
    }
}
