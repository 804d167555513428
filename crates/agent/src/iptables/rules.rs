//! Builds the iptables rules of one IP family. Order matters within a chain: the first match wins. Chain names and rules
//! are upstream's, because other tools (CNI plugins, support scripts) look for them.

use std::net::IpAddr;

use super::options::{DnsCapture, InterceptionMode, IpRange, IptablesOptions, OwnerGroups, Selection};
use super::rule::IptablesRule;

const OUTPUT: &str = "ISTIO_OUTPUT";
const OUTPUT_DNS: &str = "ISTIO_OUTPUT_DNS";
const INBOUND: &str = "ISTIO_INBOUND";
const DIVERT: &str = "ISTIO_DIVERT";
const TPROXY: &str = "ISTIO_TPROXY";
const REDIRECT: &str = "ISTIO_REDIRECT";
const IN_REDIRECT: &str = "ISTIO_IN_REDIRECT";
const DROP: &str = "ISTIO_DROP";

/// In TPROXY mode, marks packets that Envoy sends to the application through the pod's own address.
const OUTBOUND_MARK: &str = "1338";

/// Port of the agent's DNS proxy.
const DNS_PORT: &str = "15053";

/// An IP family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IpFamily {
    V4,
    V6,
}

impl IpFamily {
    fn has(self, address: &IpAddr) -> bool {
        address.is_ipv4() == (self == IpFamily::V4)
    }

    /// Source address of Envoy's inbound connections to the application, which distinguishes them from others.
    fn inbound_source(self) -> &'static str {
        match self {
            IpFamily::V4 => "127.0.0.6/32",
            IpFamily::V6 => "::6/128",
        }
    }
}

/// All rules of one IP family.
pub(super) fn rules(options: &IptablesOptions, family: IpFamily) -> Vec<IptablesRule> {
    let loopback = match family {
        IpFamily::V4 => options.loopback.clone(),
        IpFamily::V6 => "::1/128".to_owned(),
    };
    let mut builder = RulesBuilder { options, family, loopback, rules: Vec::new() };
    builder.excluded_interfaces();
    builder.virtual_interfaces_return();
    builder.invalid_packets();
    builder.redirections();
    builder.inbound();
    builder.outbound();
    if options.mode == InterceptionMode::Tproxy {
        builder.tproxy_marks();
    }
    builder.rules
}

/// The argument of an `owner` match.
#[derive(Clone, Copy)]
enum PacketOwner<'a> {
    User(&'a str),
    Group(&'a str),
}

impl std::fmt::Display for PacketOwner<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PacketOwner::User(uid) => write!(f, "--uid-owner {uid}"),
            PacketOwner::Group(gid) => write!(f, "--gid-owner {gid}"),
        }
    }
}

struct RulesBuilder<'a> {
    options: &'a IptablesOptions,
    family: IpFamily,
    loopback: String,
    rules: Vec<IptablesRule>,
}

impl<'a> RulesBuilder<'a> {
    fn append(&mut self, table: &'static str, chain: &'static str, spec: impl Into<String>) {
        self.rules.push(IptablesRule { table, chain, position: None, spec: spec.into() });
    }

    fn insert(&mut self, table: &'static str, chain: &'static str, position: u8, spec: impl Into<String>) {
        self.rules.push(IptablesRule { table, chain, position: Some(position), spec: spec.into() });
    }

    fn owners(&self) -> Vec<PacketOwner<'a>> {
        let users = self.options.proxy_uids.iter().map(|uid| PacketOwner::User(uid));
        users.chain(self.options.proxy_gids.iter().map(|gid| PacketOwner::Group(gid))).collect()
    }

    fn ranges(&self, all: &'a [IpRange]) -> impl Iterator<Item = &'a IpRange> + use<'a> {
        let family = self.family;
        all.iter().filter(move |range| family.has(&range.address))
    }

    fn excluded_interfaces(&mut self) {
        let mangle = self.options.mode == InterceptionMode::Tproxy;
        for table in ["nat"].into_iter().chain(mangle.then_some("mangle")) {
            for name in &self.options.excluded_interfaces {
                self.append(table, "PREROUTING", format!("-i {name} -j RETURN"));
                self.append(table, "OUTPUT", format!("-o {name} -j RETURN"));
            }
        }
    }

    fn virtual_interfaces_return(&mut self) {
        for name in &self.options.virtual_interfaces {
            self.insert("nat", "PREROUTING", 1, format!("-i {name} -j RETURN"));
        }
    }

    /// Drops out-of-window packets, which would otherwise make the kernel reset the connection.
    fn invalid_packets(&mut self) {
        if self.options.drop_invalid {
            self.append("mangle", "PREROUTING", format!("-m conntrack --ctstate INVALID -j {DROP}"));
            self.append("mangle", DROP, "-j DROP");
        }
    }

    fn redirections(&mut self) {
        let IptablesOptions { envoy_port, inbound_capture_port, inbound_tunnel_port, .. } = self.options;
        self.append("nat", INBOUND, format!("-p tcp --dport {inbound_tunnel_port} -j RETURN"));
        self.append("nat", REDIRECT, format!("-p tcp -j REDIRECT --to-ports {envoy_port}"));
        self.append("nat", IN_REDIRECT, format!("-p tcp -j REDIRECT --to-ports {inbound_capture_port}"));
    }

    fn inbound(&mut self) {
        let options = self.options;
        if options.inbound_ports.is_empty() {
            return;
        }
        let table = match options.mode {
            InterceptionMode::Redirect => "nat",
            InterceptionMode::Tproxy => {
                let (mark, port) = (&options.tproxy_mark, &options.inbound_capture_port);
                self.append("mangle", DIVERT, format!("-j MARK --set-mark {mark}"));
                self.append("mangle", DIVERT, "-j ACCEPT");
                let target = format!("TPROXY --tproxy-mark {mark}/0xffffffff --on-port {port}");
                self.append("mangle", TPROXY, format!("! -d {} -p tcp -j {target}", self.loopback));
                "mangle"
            }
        };
        self.append(table, "PREROUTING", format!("-p tcp -j {INBOUND}"));
        match &options.inbound_ports {
            Selection::All => {
                for port in &options.inbound_ports_excluded {
                    self.append(table, INBOUND, format!("-p tcp --dport {port} -j RETURN"));
                }
                self.inbound_port("-p tcp");
            }
            Selection::Only(ports) => {
                ports.iter().for_each(|port| self.inbound_port(&format!("-p tcp --dport {port}")));
            }
        }
    }

    fn inbound_port(&mut self, matched: &str) {
        match self.options.mode {
            InterceptionMode::Redirect => self.append("nat", INBOUND, format!("{matched} -j {IN_REDIRECT}")),
            InterceptionMode::Tproxy => {
                let established = format!("{matched} -m conntrack --ctstate RELATED,ESTABLISHED -j {DIVERT}");
                self.append("mangle", INBOUND, established);
                self.append("mangle", INBOUND, format!("{matched} -j {TPROXY}"));
            }
        }
    }

    fn outbound(&mut self) {
        let options = self.options;
        self.append("nat", "OUTPUT", format!("-j {OUTPUT}"));
        for port in &options.outbound_ports_excluded {
            self.append("nat", OUTPUT, format!("-p tcp --dport {port} -j RETURN"));
            self.append("nat", OUTPUT, format!("-p udp --dport {port} -j RETURN"));
        }
        self.append("nat", OUTPUT, format!("-o lo -s {} -j RETURN", self.family.inbound_source()));
        self.owners().into_iter().for_each(|owner| self.own_traffic(owner));
        self.owner_groups();
        self.dns();
        self.append("nat", OUTPUT, format!("-d {} -j RETURN", self.loopback));
        for range in self.ranges(&options.ranges_excluded) {
            self.append("nat", OUTPUT, format!("-d {range} -j RETURN"));
        }
        for port in &options.outbound_ports {
            self.append("nat", OUTPUT, format!("-p tcp --dport {port} -j {REDIRECT}"));
        }
        self.outbound_ranges();
    }

    /// Traffic of Envoy and the agent. Connections of Envoy to the pod's own address are redirected to Envoy's inbound
    /// port. Loopback connections of other users are excluded. All other traffic of Envoy is excluded, to avoid a loop.
    fn own_traffic(&mut self, owner: PacketOwner<'_>) {
        let options = self.options;
        let (loopback, tunnel) = (&self.loopback, &options.inbound_tunnel_port);
        let dns = options.dns != DnsCapture::Off;
        // DNS queries of the agent to a local server are not redirected to Envoy.
        let ports = match owner {
            PacketOwner::User(_) if dns => format!("-m multiport ! --dports 53,{tunnel}"),
            _ => format!("! --dport {tunnel}"),
        };
        let own = format!("-o lo ! -d {loopback} -p tcp {ports} -m owner {owner} -j {IN_REDIRECT}");
        self.append("nat", OUTPUT, own);
        if !self.captures_loopback() {
            // Queries to a DNS server on localhost must still be redirected.
            let other = if dns { "-o lo -p tcp ! --dport 53" } else { "-o lo" };
            self.append("nat", OUTPUT, format!("{other} -m owner ! {owner} -j RETURN"));
        }
        self.append("nat", OUTPUT, format!("-m owner {owner} -j RETURN"));
    }

    /// True if the options include a loopback range.
    fn captures_loopback(&self) -> bool {
        matches!(&self.options.ranges, Selection::Only(ranges) if ranges.iter().any(|r| r.address.is_loopback()))
    }

    fn owner_groups(&mut self) {
        match &self.options.groups {
            OwnerGroups::AllBut(groups) => {
                for group in groups {
                    self.append("nat", OUTPUT, format!("-m owner --gid-owner {group} -j RETURN"));
                }
            }
            OwnerGroups::Only(groups) => {
                let none_of: String = groups.iter().map(|g| format!("-m owner ! --gid-owner {g} ")).collect();
                self.append("nat", OUTPUT, format!("{none_of}-j RETURN"));
            }
        }
    }

    fn outbound_ranges(&mut self) {
        let options = self.options;
        match &options.ranges {
            Selection::All => {
                self.append("nat", OUTPUT, format!("-j {REDIRECT}"));
                for name in &options.virtual_interfaces {
                    self.insert("nat", "PREROUTING", 1, format!("-i {name} -j {REDIRECT}"));
                }
            }
            Selection::Only(ranges) => {
                for range in self.ranges(ranges) {
                    for name in &options.virtual_interfaces {
                        self.insert("nat", "PREROUTING", 1, format!("-i {name} -d {range} -j {REDIRECT}"));
                    }
                    self.append("nat", OUTPUT, format!("-d {range} -j {REDIRECT}"));
                }
            }
        }
    }

    fn dns(&mut self) {
        let options = self.options;
        if options.dns == DnsCapture::Off {
            return;
        }
        self.append("raw", "OUTPUT", format!("-j {OUTPUT_DNS}"));
        let servers = self.dns_servers();
        if !servers.is_empty() {
            self.append("nat", OUTPUT, format!("-j {OUTPUT_DNS}"));
        }
        for (protocol, option) in [("tcp", "--to-ports"), ("udp", "--to-port")] {
            for server in &servers {
                let to = server.after("-d");
                self.append("nat", OUTPUT_DNS, format!("-p {protocol} --dport 53{to} -j REDIRECT {option} {DNS_PORT}"));
            }
        }
        self.dns_zones(&servers);
    }

    /// Conntrack zones: 1 between the agent and DNS servers, 2 between clients and the agent. In a single zone, equal
    /// source ports of a client and the agent would collide.
    fn dns_zones(&mut self, servers: &[DnsDestination]) {
        for owner in self.owners() {
            let query = format!("-p udp --dport 53 -m owner {owner} -j CT --zone 1");
            self.append("raw", OUTPUT_DNS, query);
            let answer = format!("-p udp --sport {DNS_PORT} -m owner {owner} -j CT --zone 2");
            self.append("raw", OUTPUT_DNS, answer);
        }
        if !servers.is_empty() {
            self.append("raw", "PREROUTING", format!("-j {INBOUND}"));
        }
        for server in servers {
            self.append("raw", OUTPUT_DNS, format!("-p udp --dport 53{} -j CT --zone 2", server.after("-d")));
            self.append("raw", INBOUND, format!("-p udp --sport 53{} -j CT --zone 1", server.after("-s")));
        }
    }

    fn dns_servers(&self) -> Vec<DnsDestination> {
        match &self.options.dns {
            DnsCapture::Off => Vec::new(),
            DnsCapture::All => vec![DnsDestination::Any],
            DnsCapture::Servers(all) => all
                .iter()
                .filter(|address| self.family.has(address))
                .map(|address| DnsDestination::At(*address))
                .collect(),
        }
    }

    fn tproxy_marks(&mut self) {
        let mark = &self.options.tproxy_mark;
        self.append("mangle", "PREROUTING", format!("-p tcp -m mark --mark {mark} -j CONNMARK --save-mark"));
        self.append("mangle", "OUTPUT", format!("-p tcp -o lo -m mark --mark {mark} -j RETURN"));
        for owner in self.owners() {
            let own = format!("! -d {} -p tcp -o lo -m owner {owner}", self.loopback);
            self.append("mangle", "OUTPUT", format!("{own} -j MARK --set-mark {OUTBOUND_MARK}"));
        }
        self.append("mangle", "OUTPUT", format!("-p tcp -m connmark --mark {mark} -j CONNMARK --restore-mark"));
        let source = self.family.inbound_source();
        self.insert("mangle", INBOUND, 1, format!("-p tcp -m mark --mark {mark} -j RETURN"));
        self.insert("mangle", INBOUND, 2, format!("-p tcp -s {source} -i lo -j RETURN"));
        self.insert("mangle", INBOUND, 3, format!("-p tcp -i lo -m mark ! --mark {OUTBOUND_MARK} -j RETURN"));
    }
}

/// The destination of redirected DNS queries.
enum DnsDestination {
    Any,
    At(IpAddr),
}

impl DnsDestination {
    /// The match of this address as destination (`-d`) or source (`-s`).
    fn after(&self, flag: &str) -> String {
        match self {
            DnsDestination::Any => String::new(),
            DnsDestination::At(address) => {
                let bits = if address.is_ipv4() { 32 } else { 128 };
                format!(" {flag} {address}/{bits}")
            }
        }
    }
}
