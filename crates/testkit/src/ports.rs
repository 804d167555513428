//! Free loopback ports for what cannot take port 0, such as an address written in a config file.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Below the ports that systems give to outgoing connections. One of those could be taken by any
/// client between the question here and the moment that its listener opens.
const RANGE: Range<u16> = 12_000..32_000;

static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A TCP port that nobody listens on, never given twice to the same test program.
/// Chosen at random, so that test programs side by side seldom ask for the same one.
pub fn free() -> u16 {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        assert!(given.len() < RANGE.len(), "no port of {RANGE:?} is free");
        let port = random();
        // Listeners may want all addresses, so all of them are asked.
        if given.insert(port) && TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
}

fn random() -> u16 {
    // Every RandomState has keys of its own, which makes its hash of anything a random number.
    let number = RandomState::new().hash_one(()) % RANGE.len() as u64;
    RANGE.start + u16::try_from(number).unwrap_or_default()
}
