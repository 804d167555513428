//! Limits on memory and computation for all clients together and for the clients of one peer address.
//! Limits are in bytes rather than in streams: thousands of Envoys may share one address, and each needs little.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

/// Limits for all clients of a server.
#[derive(Clone, Debug)]
pub struct Allowance {
    /// Bytes held for clients of one address. The default is enough for 8,000 streams with few names.
    pub peer_bytes: usize,
    /// Bytes held for all clients.
    pub total_bytes: usize,
    /// Costly requests and responses that may be processed at the same time.
    pub turns: usize,
    /// How many of those `turns` one address may have.
    pub peer_turns: usize,
}

impl Default for Allowance {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { peer_bytes: 256 << 20, total_bytes: 2 << 30, turns: cores, peer_turns: cores.div_ceil(2) }
    }
}

/// The budget of a server, shared by all its streams.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Whole>);

#[derive(Debug)]
struct Whole {
    allowance: Allowance,
    used: AtomicUsize,
    turns: Arc<Semaphore>,
    peers: Mutex<HashMap<IpAddr, Weak<Part>>>,
}

/// The part of the budget that one address may use.
#[derive(Clone, Debug)]
pub struct Share(Arc<Part>);

#[derive(Debug)]
struct Part {
    whole: Arc<Whole>,
    address: Option<IpAddr>,
    used: AtomicUsize,
    turns: Arc<Semaphore>,
    reported: AtomicBool,
}

/// Bytes taken from a share; returned to it when dropped.
#[derive(Debug)]
pub struct Charge {
    share: Share,
    bytes: usize,
}

/// The limit of one address or of the whole budget was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted {
    /// The limit that was reached.
    limit: usize,
    of_peer: bool,
    /// True for the first time since this address connected, so that it is logged once.
    pub is_first: bool,
}

impl From<Exhausted> for Status {
    fn from(hit: Exhausted) -> Status {
        let whose = if hit.of_peer { "clients of this address" } else { "all clients" };
        Status::resource_exhausted(format!("{whose} use more than {} bytes of this server's memory", hit.limit))
    }
}

impl Default for Budget {
    fn default() -> Self {
        Budget::new(Allowance::default())
    }
}

impl Budget {
    pub fn new(allowance: Allowance) -> Budget {
        let turns = Arc::new(Semaphore::new(allowance.turns.max(1)));
        Budget(Arc::new(Whole { allowance, used: AtomicUsize::new(0), turns, peers: Mutex::default() }))
    }

    /// The share of an address. A client without an address, as on a Unix socket, gets its own share.
    pub fn share(&self, address: Option<IpAddr>) -> Share {
        let Some(address) = address.map(network) else { return self.part(None) };
        let mut peers = self.0.peers.lock();
        if let Some(part) = peers.get(&address).and_then(Weak::upgrade) {
            return Share(part);
        }
        let share = self.part(Some(address));
        peers.insert(address, Arc::downgrade(&share.0));
        share
    }

    /// Bytes held now for all clients.
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    fn part(&self, address: Option<IpAddr>) -> Share {
        let turns = Arc::new(Semaphore::new(self.0.allowance.peer_turns.max(1)));
        let (used, reported) = (AtomicUsize::new(0), AtomicBool::new(false));
        Share(Arc::new(Part { whole: Arc::clone(&self.0), address, used, turns, reported }))
    }
}

/// One IPv6 host can connect from any address of its /64, so the /64 counts as one address.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

impl Share {
    /// Takes bytes from the share until the charge is dropped.
    pub fn charge(&self, bytes: usize) -> Result<Charge, Exhausted> {
        let mut charge = self.nothing();
        charge.set(bytes)?;
        Ok(charge)
    }

    /// A charge of 0 bytes, to be set later.
    pub(crate) fn nothing(&self) -> Charge {
        Charge { share: self.clone(), bytes: 0 }
    }

    /// Waits for a turn to do costly work. One address gets only some of the turns, so that one is left for others.
    pub(crate) async fn turn(&self) -> Turn {
        // Semaphores of a budget are never closed.
        let of_peer = Arc::clone(&self.0.turns).acquire_owned().await.ok();
        let of_all = Arc::clone(&self.0.whole.turns).acquire_owned().await.ok();
        Turn { _of_peer: of_peer, _of_all: of_all }
    }

    fn exhausted(&self, limit: usize, of_peer: bool) -> Exhausted {
        Exhausted { limit, of_peer, is_first: !self.0.reported.swap(true, Ordering::Relaxed) }
    }
}

/// The right to do costly work.
#[derive(Debug)]
pub(crate) struct Turn {
    _of_peer: Option<OwnedSemaphorePermit>,
    _of_all: Option<OwnedSemaphorePermit>,
}

impl Charge {
    /// Changes the number of bytes. If more are not available, the charge stays as it was.
    pub(crate) fn set(&mut self, bytes: usize) -> Result<(), Exhausted> {
        let (part, whole) = (&*self.share.0, &*self.share.0.whole);
        if bytes <= self.bytes {
            let less = self.bytes - bytes;
            part.used.fetch_sub(less, Ordering::Relaxed);
            whole.used.fetch_sub(less, Ordering::Relaxed);
            self.bytes = bytes;
            return Ok(());
        }
        let more = bytes - self.bytes;
        let Allowance { peer_bytes, total_bytes, .. } = whole.allowance;
        if !take(&part.used, more, peer_bytes) {
            return Err(self.share.exhausted(peer_bytes, true));
        }
        if !take(&whole.used, more, total_bytes) {
            part.used.fetch_sub(more, Ordering::Relaxed);
            return Err(self.share.exhausted(total_bytes, false));
        }
        self.bytes = bytes;
        Ok(())
    }
}

fn take(used: &AtomicUsize, more: usize, limit: usize) -> bool {
    let fits = |used: usize| used.checked_add(more).filter(|sum| *sum <= limit);
    used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
}

impl Drop for Charge {
    fn drop(&mut self) {
        let _ = self.set(0);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let Some(address) = self.address else { return };
        let mut peers = self.whole.peers.lock();
        // The address may have connected again meanwhile.
        if peers.get(&address).is_some_and(|part| part.strong_count() == 0) {
            peers.remove(&address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Allowance, Budget, IpAddr, Status};

    fn budget(peer_bytes: usize, total_bytes: usize) -> Budget {
        Budget::new(Allowance { peer_bytes, total_bytes, turns: 2, peer_turns: 1 })
    }

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn one_address_cannot_use_up_what_others_need() {
        let budget = budget(100, 250);
        let (one, other) = (budget.share(address("10.0.0.1")), budget.share(address("10.0.0.2")));
        let mut held = one.charge(90).unwrap();
        let again = budget.share(address("10.0.0.1"));
        assert!(again.charge(20).unwrap_err().is_first, "streams of one address share");
        assert!(!again.charge(20).unwrap_err().is_first, "reported once");
        let others = other.charge(100).unwrap();
        held.set(50).unwrap();
        again.charge(50).unwrap();
        drop((held, others));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn all_addresses_together_are_bounded_and_a_failed_charge_takes_nothing() {
        let budget = budget(100, 150);
        let held = budget.share(address("10.0.0.1")).charge(100).unwrap();
        let other = budget.share(address("10.0.0.2"));
        let mut charge = other.charge(10).unwrap();
        let status = Status::from(charge.set(60).unwrap_err());
        assert_eq!(status.message(), "all clients use more than 150 bytes of this server's memory");
        assert_eq!(budget.used(), 110);
        drop(held);
        charge.set(60).unwrap();
        assert_eq!(budget.used(), 60);
    }

    #[test]
    fn addresses_of_one_host_count_as_one_and_are_forgotten() {
        let budget = budget(100, 1000);
        let held = budget.share(address("2001:db8::1")).charge(60).unwrap();
        assert!(budget.share(address("2001:db8::2")).charge(60).is_err());
        let mapped = budget.share(address("::ffff:10.0.0.1")).charge(60).unwrap();
        assert!(budget.share(address("10.0.0.1")).charge(60).is_err());
        drop((held, mapped));
        assert!(budget.0.peers.lock().is_empty());
    }

    #[tokio::test]
    async fn one_address_leaves_turns_to_others() {
        let budget = budget(1, 1);
        let (one, other) = (budget.share(address("10.0.0.1")), budget.share(address("10.0.0.2")));
        let _held = one.turn().await;
        assert!(tokio::time::timeout(std::time::Duration::from_millis(10), one.turn()).await.is_err());
        other.turn().await;
    }
}
