//! IP addresses at which other machines can reach this one.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;
use tracing::{info, warn};

/// Interval of looking for an address.
const INTERVAL: Duration = Duration::from_millis(100);

/// Addresses of all interfaces that are up, except loopback, link-local addresses and excluded interfaces.
pub fn own(excluded: &BTreeSet<&str>) -> Vec<IpAddr> {
    let interfaces = match getifaddrs() {
        Ok(interfaces) => interfaces,
        Err(error) => {
            warn!(%error, "could not list network interfaces; the proxy's address falls back to $INSTANCE_IP or 127.0.0.1");
            return Vec::new();
        }
    };
    let is_used =
        |flags: InterfaceFlags| flags.contains(InterfaceFlags::IFF_UP) && !flags.contains(InterfaceFlags::IFF_LOOPBACK);
    let used = interfaces.filter(|i| is_used(i.flags) && !excluded.contains(i.interface_name.as_str()));
    used.filter_map(|interface| ip(&interface.address?)).filter(is_reachable).collect()
}

/// The addresses, as soon as there are any: a network may be set up after the agent has started. Empty if there are none
/// within the limit.
pub fn wait_for(limit: Duration, find: impl Fn() -> Vec<IpAddr>) -> Vec<IpAddr> {
    let end = Instant::now() + limit;
    let mut found = find();
    if found.is_empty() {
        info!(?limit, "waiting for a network address");
    }
    while found.is_empty() && Instant::now() < end {
        thread::sleep(INTERVAL.min(end.saturating_duration_since(Instant::now())));
        found = find();
    }
    if found.is_empty() {
        warn!(
            ?limit,
            "found no network address; using 127.0.0.1, which no other machine can reach (--ip sets another)"
        );
    }
    found
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip()).to_canonical()))
}

fn is_reachable(ip: &IpAddr) -> bool {
    let is_link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() || is_link_local)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use super::{is_reachable, own, wait_for};

    #[test]
    fn an_address_is_waited_for_until_the_limit() {
        let looks = Cell::new(0);
        let late = || {
            looks.set(looks.get() + 1);
            if looks.get() > 2 { vec![IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1))] } else { Vec::new() }
        };
        assert_eq!((wait_for(Duration::from_secs(60), late).len(), looks.get()), (1, 3));
        assert!(wait_for(Duration::from_millis(1), Vec::new).is_empty());
    }

    #[test]
    fn unreachable_addresses_are_skipped() {
        for ip in ["127.0.0.1", "::1", "169.254.1.1", "fe80::1", "0.0.0.0", "ff02::1"] {
            assert!(!is_reachable(&ip.parse().unwrap()), "{ip}");
        }
        assert!(is_reachable(&"10.0.0.1".parse().unwrap()) && is_reachable(&"fd00::1".parse().unwrap()));
        assert!(own(&[].into()).iter().all(is_reachable));
    }
}
