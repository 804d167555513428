//! Staleness: how long proxies work with endpoints that have changed. Every change of a service has a number, which is in
//! the address of its first endpoint; a proxy that receives a number is up to date with all earlier changes of the service.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::RwLock;

/// Later arrivals count as this late.
const LONGEST_MS: usize = 20_000;

/// Changes, and a histogram of how long each proxy took to receive each of them.
pub struct Staleness {
    /// For each change its service and its time. Numbers start at 1.
    changes: RwLock<Vec<(usize, Instant)>>,
    millis: Vec<AtomicU32>,
}

impl Default for Staleness {
    fn default() -> Self {
        let millis = (0..=LONGEST_MS).map(|_| AtomicU32::new(0)).collect();
        Staleness { changes: RwLock::default(), millis }
    }
}

impl Staleness {
    /// Notes a change of a service that is made now, and returns its number.
    pub fn change(&self, service: usize) -> u32 {
        let mut changes = self.changes.write();
        changes.push((service, Instant::now()));
        changes.len() as u32
    }

    /// Notes that a proxy which had change `before` of a service now has change `now`.
    pub(crate) fn arrived(&self, service: usize, before: u32, now: u32) {
        let at = Instant::now();
        let changes = self.changes.read();
        let first = (before as usize).min(changes.len());
        let last = (now as usize).clamp(first, changes.len());
        for (_, begun) in changes[first..last].iter().filter(|(of, _)| *of == service) {
            let millis = at.saturating_duration_since(*begun).as_millis() as usize;
            self.millis[millis.min(LONGEST_MS)].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// All arrivals so far.
    pub fn arrivals(&self) -> Arrivals {
        Arrivals { millis: self.millis.iter().map(|count| count.load(Ordering::Relaxed)).collect() }
    }

    /// Forgets arrivals, but not changes, whose numbers go on.
    pub fn clear(&self) {
        self.millis.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

/// How many arrivals there were, by how late they were.
#[derive(Clone, Debug)]
pub struct Arrivals {
    millis: Vec<u32>,
}

impl Arrivals {
    /// The arrivals since an earlier time.
    #[must_use]
    pub fn since(&self, earlier: &Arrivals) -> Arrivals {
        let pairs = self.millis.iter().zip(&earlier.millis);
        Arrivals { millis: pairs.map(|(now, before)| now.saturating_sub(*before)).collect() }
    }

    pub fn count(&self) -> u64 {
        self.millis.iter().map(|count| u64::from(*count)).sum()
    }

    /// The time within which this share of changes arrived, rounded up to milliseconds; `None` without arrivals.
    pub fn percentile(&self, share: f64) -> Option<Duration> {
        let wanted = ((self.count() as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let at = self.millis.iter().position(|count| {
            seen += u64::from(*count);
            seen >= wanted
        });
        at.map(|at| Duration::from_millis(at as u64 + 1))
    }
}

/// The address that carries the number of a change. Networks 11 to 14 are used for nothing else in a simulated mesh.
pub(crate) fn address_of(change: u32) -> Ipv4Addr {
    Ipv4Addr::from((11 << 24) + change)
}

/// The number of a change in an address, if it has one.
pub(crate) fn change_in(address: &str) -> Option<u32> {
    let bits = u32::from(address.parse::<Ipv4Addr>().ok()?);
    bits.checked_sub(11 << 24).filter(|change| *change < 4 << 24)
}

#[cfg(test)]
mod tests {
    use super::{Duration, Staleness, address_of, change_in};

    #[test]
    fn change_number_is_in_the_address() {
        assert_eq!(address_of(66_051).to_string(), "11.1.2.3");
        assert_eq!(change_in("11.1.2.3"), Some(66_051));
        assert_eq!([change_in("10.1.2.3"), change_in("15.0.0.0"), change_in("a")], [None, None, None]);
    }

    #[test]
    fn skipped_changes_of_the_service_arrive_with_a_later_one() {
        let staleness = Staleness::default();
        let numbers: Vec<u32> = [7, 8, 7, 7].map(|service| staleness.change(service)).into();
        assert_eq!(numbers, [1, 2, 3, 4]);
        staleness.arrived(7, 0, 4);
        let first = staleness.arrivals();
        assert_eq!(first.count(), 3);
        staleness.arrived(8, 0, 2);
        staleness.arrived(7, 4, 4);
        let all = staleness.arrivals();
        assert_eq!((all.count(), all.since(&first).count()), (4, 1));
        assert!(all.percentile(0.99).is_some_and(|late| late < Duration::from_secs(10)));
        assert_eq!(first.since(&first).percentile(0.99), None);
    }
}
