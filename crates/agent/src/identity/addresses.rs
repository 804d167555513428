//! IP addresses at which other machines can reach this one.

use std::collections::BTreeSet;
use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;
use tracing::warn;

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
    use super::{is_reachable, own};

    #[test]
    fn unreachable_addresses_are_skipped() {
        for ip in ["127.0.0.1", "::1", "169.254.1.1", "fe80::1", "0.0.0.0", "ff02::1"] {
            assert!(!is_reachable(&ip.parse().unwrap()), "{ip}");
        }
        assert!(is_reachable(&"10.0.0.1".parse().unwrap()) && is_reachable(&"fd00::1".parse().unwrap()));
        assert!(own(&[].into()).iter().all(is_reachable));
    }
}
