//! The validated options of `istio-iptables`. `flags` parses them.

use std::net::IpAddr;

use anyhow::{Result, bail};

/// Entries of a comma-separated list, without empty ones.
pub(super) type CommaList = Vec<String>;

/// How inbound connections are redirected to Envoy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InterceptionMode {
    Redirect,
    Tproxy,
}

/// All entries, or a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Selection<T> {
    All,
    Only(Vec<T>),
}

impl<T> Selection<T> {
    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Selection::Only(listed) if listed.is_empty())
    }
}

/// An IP range in CIDR notation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IpRange {
    pub(super) address: IpAddr,
    pub(super) bits: u8,
}

impl IpRange {
    pub(super) fn parse(text: &str) -> Result<IpRange> {
        let parsed = text.split_once('/').and_then(|(address, bits)| {
            let range = IpRange { address: address.parse().ok()?, bits: bits.parse().ok()? };
            let most = if range.address.is_ipv4() { 32 } else { 128 };
            (range.bits <= most).then_some(range)
        });
        match parsed {
            Some(range) => Ok(range),
            None => bail!("could not parse {text:?} as an IP range ADDRESS/BITS"),
        }
    }
}

impl std::fmt::Display for IpRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// Groups whose outbound traffic is redirected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OwnerGroups {
    AllBut(CommaList),
    Only(CommaList),
}

/// Which DNS queries are redirected to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DnsCapture {
    Off,
    /// Every query to port 53.
    All,
    /// Queries to the servers in resolv.conf; a resolver in the pod can still query others.
    Servers(Vec<IpAddr>),
}

/// All options.
#[derive(Clone, Debug)]
pub(super) struct IptablesOptions {
    pub(super) envoy_port: String,
    pub(super) inbound_capture_port: String,
    pub(super) inbound_tunnel_port: String,
    pub(super) proxy_uids: CommaList,
    pub(super) proxy_gids: CommaList,
    pub(super) mode: InterceptionMode,
    pub(super) tproxy_mark: String,
    pub(super) tproxy_table: String,
    pub(super) inbound_ports: Selection<String>,
    pub(super) inbound_ports_excluded: CommaList,
    pub(super) groups: OwnerGroups,
    pub(super) outbound_ports: CommaList,
    pub(super) outbound_ports_excluded: CommaList,
    pub(super) ranges: Selection<IpRange>,
    pub(super) ranges_excluded: Vec<IpRange>,
    pub(super) virtual_interfaces: CommaList,
    pub(super) excluded_interfaces: CommaList,
    pub(super) dns: DnsCapture,
    pub(super) drop_invalid: bool,
    pub(super) ipv6: bool,
    /// IPv4 range that is treated as loopback.
    pub(super) loopback: String,
    pub(super) action: ApplyOptions,
}

/// How the rules are applied.
#[derive(Clone, Debug)]
pub(super) struct ApplyOptions {
    pub(super) dry_run: bool,
    pub(super) skip_apply: bool,
    pub(super) reconcile: bool,
    pub(super) cleanup_only: bool,
    pub(super) force_apply: bool,
    pub(super) namespace: Option<String>,
    /// `legacy` or `nft`; `None` to detect it.
    pub(super) binary: Option<String>,
}

/// Each group is a match expression in one rule; kernels accept at least 128.
const MAX_GROUPS: usize = 64;

impl IptablesOptions {
    /// Fails if the options cannot be expressed as rules.
    pub(super) fn check(&self) -> Result<()> {
        if let OwnerGroups::Only(groups) = &self.groups
            && groups.len() > MAX_GROUPS
        {
            bail!("could not use {} owner groups: the maximum is {MAX_GROUPS}", groups.len());
        }
        let loopback = IpRange::parse(&self.loopback)?;
        if !loopback.address.is_ipv4() || !loopback.address.is_loopback() || loopback.bits < 8 {
            bail!("could not use {} as IPv4 loopback range: expected 127.x.y.z/8 to /32", self.loopback);
        }
        if let Some(binary) = &self.action.binary
            && !["legacy", "nft"].contains(&binary.as_str())
        {
            bail!("could not use iptables binary {binary:?}: expected legacy or nft");
        }
        for number in [&self.envoy_port, &self.inbound_capture_port, &self.inbound_tunnel_port] {
            if number.parse::<u16>().is_err() {
                bail!("could not parse {number:?} as a port");
            }
        }
        for number in [&self.tproxy_mark, &self.tproxy_table] {
            if number.parse::<u32>().is_err() {
                bail!("could not parse {number:?} as a mark or routing table");
            }
        }
        // Rules are lines of text: whitespace inside a value would start another argument.
        let words = [&self.proxy_uids, &self.proxy_gids, &self.inbound_ports_excluded, &self.outbound_ports];
        let words = words.into_iter().chain([&self.outbound_ports_excluded, &self.virtual_interfaces]);
        let groups = match &self.groups {
            OwnerGroups::AllBut(groups) | OwnerGroups::Only(groups) => groups,
        };
        let listed = match &self.inbound_ports {
            Selection::Only(ports) => ports.as_slice(),
            Selection::All => &[],
        };
        let words = words.chain([&self.excluded_interfaces, groups]).flatten().chain(listed);
        match words.into_iter().find(|word| word.contains(char::is_whitespace)) {
            Some(word) => bail!("could not use {word:?}: it contains whitespace"),
            None => Ok(()),
        }
    }
}
