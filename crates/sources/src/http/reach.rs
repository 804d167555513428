//! Where the client may connect to. Names are checked after they are resolved and the checked address is
//! the one dialled, so a name that resolves to an inner address now and then gets nobody in.

use std::fmt;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec;

use hyper_util::client::legacy::connect::dns::Name;
use model::settings::Blocks;
use tower::Service;

/// Which addresses may be connected to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// What an operator wrote down: every address.
    #[default]
    Anywhere,
    /// What a user of the mesh wrote down: not this machine, not the link (where clouds serve their
    /// credentials), not an address that stands for many or for none.
    Remote,
    /// As `Remote`, and no private network either.
    Public,
    /// As `Remote`, with blocks that may be reached all the same, and blocks that may never be.
    Except { allowed: Blocks, blocked: Blocks },
}

impl Reach {
    pub fn admits(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        match self {
            Reach::Anywhere => true,
            Reach::Remote => !is_own(address),
            Reach::Public => !is_own(address) && !is_private(address),
            Reach::Except { allowed, blocked } => {
                !blocked.contains(address) && (allowed.contains(address) || !is_own(address))
            }
        }
    }
}

/// Metadata services that do not stand on a link-local address.
const METADATA: [IpAddr; 3] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

fn is_own(address: IpAddr) -> bool {
    let by_family = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast() || v4.octets()[0] == 0,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    by_family
        || address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast()
        || METADATA.contains(&address)
}

fn is_private(address: IpAddr) -> bool {
    match address {
        // 100.64.0.0/10 is what providers share among customers.
        IpAddr::V4(v4) => v4.is_private() || (v4.octets()[0] == 100 && v4.octets()[1] & 0xc0 == 64),
        IpAddr::V6(v6) => v6.is_unique_local(),
    }
}

/// The address that was found and may not be used.
#[derive(Debug)]
pub(super) struct Refused(pub(super) IpAddr);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connections to {} are not allowed", self.0)
    }
}

impl std::error::Error for Refused {}

/// The system's resolver, with what may not be reached left out.
#[derive(Clone, Debug)]
pub(super) struct Resolver(Reach);

impl Resolver {
    pub(super) fn new(reach: Reach) -> Resolver {
        Resolver(reach)
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Service<Name> for Resolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Failure>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let reach = self.0.clone();
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let (admitted, refused): (Vec<_>, Vec<_>) = found.into_iter().partition(|a| reach.admits(a.ip()));
            match refused.first() {
                Some(first) if admitted.is_empty() => Err(Refused(first.ip()).into()),
                _ => Ok(admitted.into_iter()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use model::settings::Blocks;

    use super::Reach;

    #[test]
    fn exceptions_widen_and_narrow_what_is_remote() {
        let blocks = |texts: &[&str]| Blocks(texts.iter().map(|text| text.parse().unwrap()).collect());
        let reach =
            Reach::Except { allowed: blocks(&["127.0.0.0/8"]), blocked: blocks(&["10.0.0.0/8", "127.0.0.2/32"]) };
        for (address, admitted) in [
            ("127.0.0.1", true),
            ("::ffff:127.0.0.1", true),
            ("192.168.0.1", true),
            ("127.0.0.2", false),
            ("10.1.2.3", false),
            ("::ffff:10.1.2.3", false),
            ("::1", false),
            ("169.254.169.254", false),
        ] {
            assert_eq!(reach.admits(address.parse().unwrap()), admitted, "{address}");
        }
    }

    #[test]
    fn addresses_are_admitted_by_what_they_stand_for() {
        for (address, remote, public) in [
            ("8.8.8.8", true, true),
            ("10.0.0.1", true, false),
            ("100.64.0.1", true, false),
            ("fd12::1", true, false),
            ("2001:4860::1", true, true),
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
            assert_eq!((Reach::Remote.admits(address), Reach::Public.admits(address)), (remote, public), "{address}");
            assert!(Reach::Anywhere.admits(address));
        }
    }
}
