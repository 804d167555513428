//! The addresses that the client may connect to. A name is checked after its resolution, and the checked address is
//! the one that is dialled, so DNS rebinding does not get around the policy.

use std::fmt;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec;

use hyper_util::client::legacy::connect::dns::Name;
use model::settings::IpBlocks;
use tower::Service;

/// Addresses that may be connected to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AddressPolicy {
    /// For URLs of an operator: every address.
    #[default]
    Anywhere,
    /// For URLs of a mesh user: neither loopback, link-local (where clouds serve credentials), multicast, broadcast
    /// nor unspecified addresses.
    Remote,
    /// As `Remote`, without private networks.
    Public,
    /// As `Remote`, with blocks that are allowed in addition and blocks that are always forbidden.
    Except { allowed: IpBlocks, blocked: IpBlocks },
}

impl AddressPolicy {
    /// Whether an address may be connected to. An IPv6 address that embeds an IPv4 address must be allowed in both
    /// forms: a translator or a tunnel would deliver its packets to the embedded address.
    pub fn allows(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let embedded = embedded(address).into_iter().flatten().map(IpAddr::V4);
        std::iter::once(address).chain(embedded).all(|form| self.allows_form(address, form))
    }

    /// Checks one form of the address. An operator may allow the written form or the embedded one.
    fn allows_form(&self, address: IpAddr, form: IpAddr) -> bool {
        match self {
            AddressPolicy::Anywhere => true,
            AddressPolicy::Remote => !is_reserved(form),
            AddressPolicy::Public => !is_reserved(form) && !is_private(form),
            AddressPolicy::Except { allowed, blocked } => {
                let is_allowed = allowed.contains(form) || allowed.contains(address);
                !blocked.contains(form) && (is_allowed || !is_reserved(form))
            }
        }
    }
}

/// IPv4 addresses embedded in an IPv6 address by known standards. Blocks in which the embedded address cannot be
/// located reliably are forbidden as a whole by [`is_reserved`].
fn embedded(address: IpAddr) -> [Option<Ipv4Addr>; 2] {
    let IpAddr::V6(v6) = address else { return [None, None] };
    let [a, b, c, d, e, f, g, h] = v6.segments();
    let joined = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    let prefix = match (a, b, c, d, e, f) {
        // IPv4-compatible (RFC 4291), IPv4-translated (RFC 2765) and NAT64 (RFC 6052). The first also matches ::1
        // and ::, which are refused either way.
        (0, 0, 0, 0, 0, 0) | (0, 0, 0, 0, 0xffff, 0) | (0x64, 0xff9b, 0, 0, 0, 0) => Some(joined(g, h)),
        // 6to4 (RFC 3056).
        (0x2002, ..) => Some(joined(b, c)),
        _ => None,
    };
    // ISATAP (RFC 5214) embeds it in the interface identifier, below any prefix.
    let interface = matches!((e, f), (0 | 0x200, 0x5efe)).then(|| joined(g, h));
    [prefix, interface]
}

/// Metadata services of clouds that are not on a link-local address.
const METADATA: [IpAddr; 5] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42)),
];

fn is_reserved(address: IpAddr) -> bool {
    let by_family = match address {
        IpAddr::V4(v4) => {
            // 192.0.0.0/24 is reserved for protocols; a cloud serves its metadata there.
            let is_of_protocols = v4.octets()[..3] == [192, 0, 0];
            v4.is_link_local() || v4.is_broadcast() || v4.octets()[0] == 0 || is_of_protocols
        }
        IpAddr::V6(v6) => v6.is_unicast_link_local() || is_special(v6),
    };
    by_family
        || address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast()
        || METADATA.contains(&address)
}

/// Blocks without servers of mesh users.
fn is_special(address: Ipv6Addr) -> bool {
    match address.segments() {
        // NAT64 with a local prefix: the address does not show which of five layouts is in use.
        [0x64, 0xff9b, 1, ..] => true,
        // Protocol assignments, Teredo tunnels among them.
        [0x2001, second, ..] => second < 0x200,
        // Amazon's services for instances and pods: metadata, credentials, DNS, time.
        [0xfd00, 0xec2, ..] => true,
        _ => false,
    }
}

fn is_private(address: IpAddr) -> bool {
    match address {
        // 100.64.0.0/10 is shared address space (RFC 6598).
        IpAddr::V4(v4) => v4.is_private() || (v4.octets()[0] == 100 && v4.octets()[1] & 0xc0 == 64),
        // fec0::/10 is the deprecated site-local block.
        IpAddr::V6(v6) => v6.is_unique_local() || v6.segments()[0] & 0xffc0 == 0xfec0,
    }
}

/// A name resolved to an address that is not allowed.
#[derive(Debug)]
pub(super) struct ForbiddenAddress(pub(super) IpAddr);

impl fmt::Display for ForbiddenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connections to {} are not allowed", self.0)
    }
}

impl std::error::Error for ForbiddenAddress {}

/// The system's resolver without the addresses that the policy forbids.
#[derive(Clone, Debug)]
pub(super) struct CheckedResolver(AddressPolicy);

impl CheckedResolver {
    pub(super) fn new(policy: AddressPolicy) -> CheckedResolver {
        CheckedResolver(policy)
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Service<Name> for CheckedResolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let policy = self.0.clone();
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let (allowed, forbidden): (Vec<_>, Vec<_>) = found.into_iter().partition(|a| policy.allows(a.ip()));
            match forbidden.first() {
                Some(first) if allowed.is_empty() => Err(ForbiddenAddress(first.ip()).into()),
                _ => Ok(allowed.into_iter()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use model::settings::IpBlocks;

    use super::AddressPolicy;

    #[test]
    fn exceptions_widen_and_narrow_what_is_remote() {
        let blocks = |texts: &[&str]| IpBlocks(texts.iter().map(|text| text.parse().unwrap()).collect());
        let policy = AddressPolicy::Except {
            allowed: blocks(&["127.0.0.0/8"]),
            blocked: blocks(&["10.0.0.0/8", "127.0.0.2/32"]),
        };
        for (address, is_allowed) in [
            ("127.0.0.1", true),
            ("::ffff:127.0.0.1", true),
            ("192.168.0.1", true),
            ("127.0.0.2", false),
            ("10.1.2.3", false),
            ("::ffff:10.1.2.3", false),
            ("::1", false),
            ("169.254.169.254", false),
        ] {
            assert_eq!(policy.allows(address.parse().unwrap()), is_allowed, "{address}");
        }
    }

    #[test]
    fn addresses_are_allowed_by_their_kind() {
        for (address, remote, public) in [
            ("8.8.8.8", true, true),
            ("10.0.0.1", true, false),
            ("100.64.0.1", true, false),
            ("fd12::1", true, false),
            ("2001:4860::1", true, true),
            ("2002:808:808::1", true, true),
            ("64:ff9b::808:808", true, true),
            ("127.0.0.2", false, false),
            ("169.254.169.254", false, false),
            ("100.100.100.200", false, false),
            ("fd00:ec2::254", false, false),
            ("fe80::1", false, false),
            ("::", false, false),
            ("0.0.0.0", false, false),
            ("::ffff:127.0.0.1", false, false),
            ("224.0.0.1", false, false),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(
                (AddressPolicy::Remote.allows(address), AddressPolicy::Public.allows(address)),
                (remote, public),
                "{address}"
            );
            assert!(AddressPolicy::Anywhere.allows(address));
        }
    }

    /// All IPv6 forms of an IPv4 address that the kernel or a translator understands.
    fn forms(v4: &str) -> Vec<String> {
        let [a, b, c, d] = v4.parse::<std::net::Ipv4Addr>().unwrap().octets();
        let (high, low) = (format!("{a:02x}{b:02x}"), format!("{c:02x}{d:02x}"));
        vec![
            format!("::ffff:{high}:{low}"),
            format!("::{high}:{low}"),
            format!("::ffff:0:{high}:{low}"),
            format!("64:ff9b::{high}:{low}"),
            format!("64:ff9b:1::{high}:{low}"),
            format!("64:ff9b:1:{high}:{:02x}:{:02x}00::", c, d),
            format!("2002:{high}:{low}::1"),
            format!("2001:0:{high}:{low}:0:ffff:f7f7:f7f7"),
            format!("2001:0:808:808:0:ffff:{:02x}{:02x}:{:02x}{:02x}", !a, !b, !c, !d),
            format!("2a00:1450::5efe:{high}:{low}"),
            format!("2a00:1450::200:5efe:{high}:{low}"),
        ]
    }

    #[test]
    fn hole_15_forbidden_addresses_are_refused_in_every_form() {
        let own = ["127.0.0.1", "169.254.169.254", "192.0.0.192", "168.63.129.16", "100.100.100.200", "0.0.0.0"];
        for v4 in own.into_iter().chain(["255.255.255.255", "224.0.0.1", "0.1.2.3"]) {
            for form in [v4.to_owned()].into_iter().chain(forms(v4)) {
                assert!(!AddressPolicy::Remote.allows(form.parse().unwrap()), "{form} leads to {v4}");
            }
        }
        for form in forms("10.1.2.3") {
            assert!(!AddressPolicy::Public.allows(form.parse().unwrap()), "{form} leads to 10.1.2.3");
        }
        for own in ["fd00:ec2::23", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "ff02::1", "2001:20::1", "fe80::a9fe:a9fe"] {
            assert!(!AddressPolicy::Remote.allows(own.parse().unwrap()), "{own}");
        }
    }

    #[test]
    fn hole_15_blocks_of_the_operator_apply_to_embedded_addresses() {
        let blocks = |texts: &[&str]| IpBlocks(texts.iter().map(|text| text.parse().unwrap()).collect());
        let policy = AddressPolicy::Except { allowed: blocks(&["64:ff9b:1::/48"]), blocked: blocks(&["10.0.0.0/8"]) };
        for (address, is_allowed) in [
            ("64:ff9b::a01:203", false),
            ("2002:a01:203::1", false),
            ("2a00:1450::5efe:a01:203", false),
            ("64:ff9b::c0a8:1", true),
            ("64:ff9b:1::808:808", true),
        ] {
            assert_eq!(policy.allows(address.parse().unwrap()), is_allowed, "{address}");
        }
    }
}
