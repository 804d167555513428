//! What shall be captured: the finished settings, checked. How they are written as flags and
//! environment stands in `flags`.

use std::net::IpAddr;

use anyhow::{Result, bail};

/// A comma separated list; empty entries do not count.
pub(super) type CommaList = Vec<String>;

/// How inbound connections reach Envoy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InterceptionMode {
    Redirect,
    Tproxy,
}

/// All, or those listed.
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

/// An address range as the user wrote it, its address in canonical form.
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
            None => bail!("could not read {text:?} as an IP range ADDRESS/BITS"),
        }
    }
}

impl std::fmt::Display for IpRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// Groups of users whose calls are captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OwnerGroups {
    AllBut(CommaList),
    Only(CommaList),
}

/// Which DNS queries go to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DnsCapture {
    Off,
    /// Every query to port 53.
    All,
    /// Queries to the servers of resolv.conf: a resolver of the pod's own may still ask others.
    Servers(Vec<IpAddr>),
}

/// What the rules are made of.
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
    /// IPv4 addresses that count as the pod's own loopback.
    pub(super) loopback: String,
    pub(super) action: ApplyOptions,
}

/// What to do with the rules.
#[derive(Clone, Debug)]
pub(super) struct ApplyOptions {
    pub(super) dry_run: bool,
    pub(super) skip_apply: bool,
    pub(super) reconcile: bool,
    pub(super) cleanup_only: bool,
    pub(super) force_apply: bool,
    pub(super) namespace: Option<String>,
    /// `legacy` or `nft`, when the user insists.
    pub(super) binary: Option<String>,
}

/// One match expression a group in a single rule; kernels take 128 and more.
const MAX_GROUPS: usize = 64;

impl IptablesOptions {
    /// An error for what no rule could say.
    pub(super) fn check(&self) -> Result<()> {
        if let OwnerGroups::Only(groups) = &self.groups
            && groups.len() > MAX_GROUPS
        {
            bail!("could not capture for {} owner groups: at most {MAX_GROUPS}", groups.len());
        }
        let loopback = IpRange::parse(&self.loopback)?;
        if !loopback.address.is_ipv4() || !loopback.address.is_loopback() || loopback.bits < 8 {
            bail!("could not use {} as IPv4 loopback range: wanted 127.x.y.z/8 to /32", self.loopback);
        }
        if let Some(binary) = &self.action.binary
            && !["legacy", "nft"].contains(&binary.as_str())
        {
            bail!("could not use iptables binary {binary:?}: wanted legacy or nft");
        }
        for number in [&self.envoy_port, &self.inbound_capture_port, &self.inbound_tunnel_port] {
            if number.parse::<u16>().is_err() {
                bail!("could not read {number:?} as a port");
            }
        }
        for number in [&self.tproxy_mark, &self.tproxy_table] {
            if number.parse::<u32>().is_err() {
                bail!("could not read {number:?} as a mark or routing table");
            }
        }
        // Rules travel as lines of text: a blank inside a word would be another argument.
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
            Some(word) => bail!("could not use {word:?}: it contains a blank"),
            None => Ok(()),
        }
    }
}
