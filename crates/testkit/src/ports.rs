//! Free loopback ports for what cannot take port 0, such as an address written in a config file.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

use parking_lot::Mutex;

/// Below the ports that systems give to outgoing connections. One of those could be taken by any
/// client between the question here and the moment that its listener opens.
const RANGE: Range<u16> = 12_000..32_000;

static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A TCP port that nobody listens on, never given twice to the same test program.
/// Chosen at random, so that test programs side by side seldom ask for the same one.
pub fn free() -> u16 {
    let mut given = GIVEN.lock();
    loop {
        assert!(given.len() < RANGE.len(), "no port of {RANGE:?} is free");
        let port = fastrand::u16(RANGE);
        // Listeners may want all addresses, so all of them are asked.
        if given.insert(port) && TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
}
