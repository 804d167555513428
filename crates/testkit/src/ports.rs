//! Free loopback ports for what cannot take port 0, such as an address written in a config file.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};

static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A TCP port that nobody listens on, never given twice to the same test program.
pub fn free() -> u16 {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let probe = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
        let port = probe.unwrap_or_else(|e| panic!("could not find a free port: {e}")).port();
        if given.insert(port) {
            return port;
        }
    }
}
