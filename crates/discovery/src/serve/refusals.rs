//! Logs streams that the server ended because of their clients, or by an internal error: at a limited rate, however often
//! clients try.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tonic::Status;
use tracing::warn;

/// Minimum time between two lines.
const INTERVAL: Duration = Duration::from_secs(5);
/// Bytes of a status in the log; it may repeat what the client sent.
const LONGEST: usize = 512;

/// Time of the last line, and the number of lines suppressed since.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<(Option<Instant>, u64)>);

impl Refusals {
    pub(crate) fn report(&self, address: Option<SocketAddr>, status: &Status) {
        let Some(suppressed) = self.due(Instant::now()) else { return };
        let peer = address.map(|address| address.to_string()).unwrap_or_default();
        let reason = status.message();
        let reason = reason[..reason.floor_char_boundary(LONGEST)].escape_debug().to_string();
        warn!(peer, code = ?status.code(), reason, suppressed, "stream refused");
    }

    /// Number of lines suppressed before this one; `None` if this one is suppressed too.
    fn due(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        let (last, suppressed) = &mut *state;
        if last.is_some_and(|last| now.duration_since(last) < INTERVAL) {
            *suppressed += 1;
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(suppressed))
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
