//! Free loopback ports, for addresses that cannot use port 0, such as those in a config file.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

use parking_lot::Mutex;

/// Below the ephemeral port range: a port of that range could be taken by an outgoing connection before the listener
/// opens.
const RANGE: Range<u16> = 12_000..32_000;

static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A free TCP port; never the same twice in one test binary. Chosen at random, so that test binaries that run in parallel
/// rarely choose the same one.
pub fn free() -> u16 {
    let mut given = GIVEN.lock();
    loop {
        assert!(given.len() < RANGE.len(), "no port of {RANGE:?} is free");
        let port = fastrand::u16(RANGE);
        // Checks all interfaces, because a listener may bind all of them.
        if given.insert(port) && TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
}
