//! Limits the time spent on searches for rejected objects: per search, and over time per identity or address. A search
//! computes whole views on trial, and a client may reject again and again.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use xds::Peer;

use crate::serve::caller::Identity;

/// Time for one search.
const AT_ONCE: Duration = Duration::from_secs(2);
/// Time for searches in a row.
const BURST: Duration = Duration::from_secs(6);
/// Part of a second that is refilled each second.
const REFILL: f64 = 0.05;
/// Payers that are tracked; further ones share one account.
const MOST_PAYERS: usize = 1000;

/// The account that a search is charged to. A node id is not proved, so it cannot be one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Payer {
    Proven(Identity),
    Address(IpAddr),
    Others,
}

impl Payer {
    /// The identity that the client proved, else its address.
    pub fn of(identity: Option<&Identity>, peer: &Peer) -> Payer {
        match (identity, peer.address) {
            (Some(identity), _) => Payer::Proven(identity.clone()),
            (None, Some(address)) => Payer::Address(network(address.ip())),
            (None, None) => Payer::Others,
        }
    }
}

/// The address; for IPv6 the /64, because one host may use any address of it.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            [a, b, c, d, 0, 0, 0, 0].into()
        }
    }
}

/// Time left for each payer.
#[derive(Debug, Default)]
pub(super) struct Budgets(Mutex<BTreeMap<Payer, Spent>>);

#[derive(Clone, Copy, Debug)]
struct Spent {
    time: Duration,
    at: Instant,
}

impl Spent {
    fn now(self, now: Instant) -> Duration {
        self.time.saturating_sub(now.saturating_duration_since(self.at).mul_f64(REFILL))
    }
}

impl Budgets {
    /// Time that a search may take now.
    pub(super) fn left(&self, payer: &Payer, now: Instant) -> Duration {
        let spent = self.0.lock();
        let known = spent.get(payer).or_else(|| spent.get(&Payer::Others).filter(|_| spent.len() >= MOST_PAYERS));
        BURST.saturating_sub(known.map_or(Duration::ZERO, |spent| spent.now(now))).min(AT_ONCE)
    }

    /// Charges a search that took this long.
    pub(super) fn spend(&self, payer: &Payer, took: Duration, now: Instant) {
        let mut spent = self.0.lock();
        if spent.len() >= MOST_PAYERS && !spent.contains_key(payer) {
            spent.retain(|_, spent| !spent.now(now).is_zero());
        }
        let payer = if spent.len() < MOST_PAYERS { payer } else { &Payer::Others };
        let before = spent.get(payer).map_or(Duration::ZERO, |spent| spent.now(now));
        spent.insert(payer.clone(), Spent { time: (before + took).min(BURST), at: now });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::{AT_ONCE, BURST, Budgets, MOST_PAYERS, Payer};

    fn payer(address: &str) -> Payer {
        let peer = xds::Peer { address: Some(address.parse().unwrap()), ..xds::Peer::default() };
        Payer::of(None, &peer)
    }

    #[test]
    fn hole_02_a_client_that_refuses_again_and_again_runs_out_of_time() {
        let (budgets, now) = (Budgets::default(), Instant::now());
        let (one, other) = (payer("10.0.0.1:1000"), payer("10.0.0.2:1000"));
        assert_eq!(budgets.left(&one, now), AT_ONCE);
        budgets.spend(&one, BURST, now);
        assert_eq!(budgets.left(&payer("10.0.0.1:2000"), now), Duration::ZERO, "another stream of the same host");
        assert_eq!(budgets.left(&other, now), AT_ONCE, "others have theirs");
        let later = now + Duration::from_secs(10);
        assert_eq!(budgets.left(&one, later), Duration::from_millis(500));
        assert_eq!(budgets.left(&one, now + Duration::from_secs(3600)), AT_ONCE);
    }

    #[test]
    fn addresses_of_one_host_pay_together() {
        assert_eq!(payer("[2001:db8::1]:1"), payer("[2001:db8::2:3]:1"));
        assert_ne!(payer("[2001:db8::1]:1"), payer("[2001:db8:0:1::1]:1"));
    }

    #[test]
    fn payers_are_not_remembered_without_end() {
        let (budgets, now) = (Budgets::default(), Instant::now());
        for number in 0..3 * MOST_PAYERS {
            budgets.spend(&payer(&format!("10.{}.{}.1:1", number / 250, number % 250)), AT_ONCE, now);
        }
        assert!(budgets.0.lock().len() <= MOST_PAYERS + 1);
        assert_eq!(budgets.left(&payer("10.250.0.1:1"), now), Duration::ZERO, "newcomers share what is left");
        let later = now + Duration::from_secs(3600);
        assert_eq!(budgets.left(&payer("10.250.0.1:1"), later), AT_ONCE);
    }
}
