//! Streams that the server ended because of their clients, in the log: not more often than a person can read, however
//! often clients try.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tonic::Status;
use tracing::warn;

/// Least time between two lines.
const INTERVAL: Duration = Duration::from_secs(5);
/// Of a status, which repeats what the client sent.
const LONGEST: usize = 512;

/// When the last line was written, and how many were left out since.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<(Option<Instant>, u64)>);

impl Refusals {
    pub(crate) fn report(&self, address: Option<SocketAddr>, status: &Status) {
        let Some(left_out) = self.due(Instant::now()) else { return };
        let peer = address.map(|address| address.to_string()).unwrap_or_default();
        let reason = status.message();
        let reason = reason[..reason.floor_char_boundary(LONGEST)].escape_debug().to_string();
        warn!(peer, code = ?status.code(), reason, left_out, "ended a stream because of its client");
    }

    /// How many were left out before this one; None if it is left out, too.
    fn due(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, left_out) = &mut *state;
        if last.is_some_and(|last| now.duration_since(last) < INTERVAL) {
            *left_out += 1;
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::{INTERVAL, Instant, Refusals};

    #[test]
    fn a_flood_of_refusals_is_a_line_now_and_then() {
        let (refusals, begin) = (Refusals::default(), Instant::now());
        assert_eq!(refusals.due(begin), Some(0));
        for _ in 0..1_000 {
            assert_eq!(refusals.due(begin), None);
        }
        assert_eq!(refusals.due(begin + INTERVAL), Some(1_000));
        assert_eq!(refusals.due(begin + INTERVAL * 2), Some(0));
    }
}
