//! Loopback and wildcard addresses by the IP families of the proxy.

use std::net::IpAddr;

/// Addresses to listen on, and the DNS lookup family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Families {
    pub localhost: &'static str,
    pub wildcard: &'static str,
    pub dns_lookup: &'static str,
    /// Loopback and wildcard of the second family with dual stack.
    pub additional: Option<(&'static str, &'static str)>,
}

const V4: (&str, &str) = ("127.0.0.1", "0.0.0.0");
const V6: (&str, &str) = ("::1", "::");

impl Families {
    pub(super) fn of(ips: &[IpAddr], dual_stack: bool) -> Families {
        let (has_v4, has_v6) = (ips.iter().any(IpAddr::is_ipv4), ips.iter().any(IpAddr::is_ipv6));
        let first_is_v6 = ips.first().is_some_and(IpAddr::is_ipv6);
        let ((localhost, wildcard), dns_lookup, additional) = match (has_v4, has_v6) {
            (false, true) => (V6, "V6_ONLY", None),
            (true, true) if dual_stack && first_is_v6 => (V6, "ALL", Some(V4)),
            (true, true) if dual_stack => (V4, "ALL", Some(V6)),
            _ => (V4, "V4_ONLY", None),
        };
        Families { localhost, wildcard, dns_lookup, additional }
    }
}

#[cfg(test)]
mod tests {
    use super::Families;

    #[test]
    fn families_depend_on_the_proxys_addresses() {
        let of = |ips: &[&str], dual| {
            let ips: Vec<_> = ips.iter().map(|ip| ip.parse().unwrap()).collect();
            let families = Families::of(&ips, dual);
            (families.wildcard, families.dns_lookup, families.additional.is_some())
        };
        assert_eq!(of(&["10.0.0.1"], true), ("0.0.0.0", "V4_ONLY", false));
        assert_eq!(of(&["fd00::1"], false), ("::", "V6_ONLY", false));
        assert_eq!(of(&["fd00::1", "10.0.0.1"], false), ("0.0.0.0", "V4_ONLY", false));
        assert_eq!(of(&["fd00::1", "10.0.0.1"], true), ("::", "ALL", true));
        assert_eq!(of(&["10.0.0.1", "fd00::1"], true), ("0.0.0.0", "ALL", true));
    }
}
