//! Users, addresses and name servers of this machine.

use std::net::IpAddr;

use anyhow::{Context, Result};
use nix::ifaddrs::getifaddrs;
use nix::unistd::User;

use super::flags::Machine;

const RESOLV_CONF: &str = "/etc/resolv.conf";

/// The machine that this process runs on.
pub(super) struct LocalMachine;

impl Machine for LocalMachine {
    fn uid(&self, user: &str) -> Option<u32> {
        User::from_name(user).ok().flatten().map(|user| user.uid.as_raw())
    }

    fn addresses(&self) -> Vec<IpAddr> {
        let Ok(interfaces) = getifaddrs() else { return Vec::new() };
        let address = |interface: nix::ifaddrs::InterfaceAddress| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        };
        interfaces.filter_map(address).collect()
    }

    fn nameservers(&self) -> Result<Vec<IpAddr>> {
        let text = std::fs::read_to_string(RESOLV_CONF).with_context(|| format!("could not read {RESOLV_CONF}"))?;
        Ok(crate::dns::resolv_conf::ResolvConf::parse(&text).servers)
    }
}
