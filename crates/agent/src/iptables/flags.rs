//! The flags of `istio-iptables` and their environment variables as a table, and their conversion to `IptablesOptions`.
//! A flag overrides the environment, the environment overrides the default.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context, Result, bail};

use super::options::{
    ApplyOptions, CommaList, DnsCapture, InterceptionMode, IpRange, IptablesOptions, OwnerGroups, Selection,
};

struct IptablesFlag {
    name: &'static str,
    short: Option<char>,
    default: &'static str,
    /// Further environment variables, in addition to the flag's name in upper case.
    env: &'static [&'static str],
    help: &'static str,
}

const fn flag(name: &'static str, short: Option<char>, default: &'static str, help: &'static str) -> IptablesFlag {
    IptablesFlag { name, short, default, env: &[], help }
}

const fn switch(name: &'static str, help: &'static str) -> IptablesFlag {
    flag(name, None, "false", help)
}

impl IptablesFlag {
    const fn or_env(mut self, env: &'static [&'static str]) -> IptablesFlag {
        self.env = env;
        self
    }

    fn is_switch(&self) -> bool {
        self.default == "false"
    }
}

const FLAGS: &[IptablesFlag] = &[
    flag("envoy-port", Some('p'), "15001", "Envoy's port for outbound connections"),
    flag("inbound-capture-port", Some('z'), "15006", "Envoy's port for inbound connections"),
    flag("inbound-tunnel-port", Some('e'), "15008", "HBONE tunnel port, never redirected"),
    flag(
        "proxy-uid",
        Some('u'),
        "",
        "user ids whose traffic is not redirected; default the user $ENVOY_USER, else 1337",
    ),
    flag("proxy-gid", Some('g'), "", "group ids whose traffic is not redirected; default the value of --proxy-uid"),
    flag(
        "istio-inbound-interception-mode",
        Some('m'),
        "",
        "how inbound connections are redirected: REDIRECT or TPROXY",
    ),
    flag("istio-inbound-ports", Some('b'), "", "inbound ports to redirect, * for all"),
    flag("istio-local-exclude-ports", Some('d'), "", "inbound ports to exclude if all are redirected"),
    flag("istio-exclude-interfaces", Some('c'), "", "interfaces to exclude, inbound and outbound"),
    flag("istio-service-cidr", Some('i'), "", "outbound IP ranges to redirect, * for all"),
    flag("istio-service-exclude-cidr", Some('x'), "", "outbound IP ranges to exclude if all are redirected"),
    flag("istio-outbound-ports", Some('q'), "", "outbound ports that are always redirected"),
    flag("istio-local-outbound-ports-exclude", Some('o'), "", "outbound ports to exclude"),
    flag("kube-virt-interfaces", Some('k'), "", "virtual interfaces whose inbound traffic is treated as outbound"),
    flag("istio-inbound-tproxy-mark", Some('t'), "1337", "mark of TPROXY packets"),
    flag("istio-inbound-tproxy-route-table", Some('r'), "133", "routing table of TPROXY packets"),
    IptablesFlag { short: Some('n'), ..switch("dry-run", "print the rules without installing them") },
    flag("iptables-probe-port", None, "15002", "accepted, without effect"),
    flag("probe-timeout", None, "5s", "accepted, without effect"),
    switch("skip-rule-apply", "do not install rules"),
    switch("run-validation", "not supported"),
    switch("redirect-dns", "redirect DNS queries to the agent").or_env(&["ISTIO_META_DNS_CAPTURE"]),
    switch("drop-invalid", "drop packets in conntrack state INVALID").or_env(&["INVALID_DROP"]),
    switch("dual-stack", "redirect both IPv4 and IPv6").or_env(&["ISTIO_DUAL_STACK"]),
    switch("capture-all-dns", "redirect all DNS queries, not only those to the servers in resolv.conf"),
    flag("network-namespace", None, "", "path of the network namespace to use"),
    switch("cni-mode", "accepted, without effect"),
    switch("reconcile", "replace different rules of an earlier run"),
    switch("cleanup-only", "remove all rules"),
    switch("cleanup", "same as --cleanup-only"),
    switch("force-apply", "install the rules even if they seem to be installed"),
    switch("native-nftables", "not supported; iptables-nft is used where it is the system's variant"),
    flag("force-iptables-binary", None, "", "iptables variant: legacy or nft"),
    // Templates pass the flags of the log to every command.
    flag("log_output_level", None, "", "accepted, without effect: errors are printed"),
    switch("log_as_json", "accepted, without effect"),
    switch("log_caller", "accepted, without effect"),
    flag("log_stacktrace_level", None, "", "accepted, without effect"),
    flag("log_target", None, "", "accepted, without effect"),
];

/// Properties of the machine that the options depend on.
pub(super) trait Machine {
    /// The id of a user; `None` if it does not exist.
    fn uid(&self, user: &str) -> Option<u32>;
    /// Addresses of all interfaces, in the kernel's order.
    fn addresses(&self) -> Vec<IpAddr>;
    /// The name servers in resolv.conf.
    fn nameservers(&self) -> Result<Vec<IpAddr>>;
}

/// The text of `--help`.
pub(super) fn help() -> String {
    let line = |flag: &IptablesFlag| {
        let short = flag.short.map_or("    ".to_owned(), |short| format!("-{short}, "));
        let default = if flag.is_switch() || flag.default.is_empty() {
            String::new()
        } else {
            format!(" (default {})", flag.default)
        };
        format!("  {short}--{:38} {}{default}\n", flag.name, flag.help)
    };
    let lines: String = FLAGS.iter().map(line).collect();
    format!(
        "Installs iptables rules that redirect a pod's traffic to Envoy.\n\nusage: pilot-agent istio-iptables [flags]\n\n{lines}"
    )
}

/// Builds the options from arguments and environment.
pub(super) fn options(
    arguments: &[String],
    environment: &dyn Fn(&str) -> Option<String>,
    machine: &dyn Machine,
) -> Result<IptablesOptions> {
    let given = parse(arguments)?;
    let text = |name: &'static str| value(name, &given, environment);
    let list = |name: &'static str| listed(&text(name));
    let on = |name: &'static str| truth(name, &text(name));
    if on("native-nftables")? {
        bail!("--native-nftables is not supported; omit it to use iptables");
    }
    if on("run-validation")? {
        bail!("--run-validation is not supported");
    }
    let env_or = |name: &str, default: &str| environment(name).unwrap_or_else(|| default.to_owned());
    let mut proxy_uids = list("proxy-uid");
    if proxy_uids.is_empty() {
        let user = env_or("ENVOY_USER", "istio-proxy");
        proxy_uids = vec![machine.uid(&user).map_or("1337".to_owned(), |uid| uid.to_string())];
    }
    let mut proxy_gids = list("proxy-gid");
    if proxy_gids.is_empty() {
        proxy_gids = proxy_uids.clone();
    }
    let options = IptablesOptions {
        envoy_port: text("envoy-port"),
        inbound_capture_port: text("inbound-capture-port"),
        inbound_tunnel_port: text("inbound-tunnel-port"),
        proxy_uids,
        proxy_gids,
        mode: mode(&text("istio-inbound-interception-mode"))?,
        tproxy_mark: text("istio-inbound-tproxy-mark"),
        tproxy_table: text("istio-inbound-tproxy-route-table"),
        inbound_ports: selection(&text("istio-inbound-ports"), |port| Ok(port.to_owned()))?,
        inbound_ports_excluded: list("istio-local-exclude-ports"),
        groups: groups(&env_or("ISTIO_OUTBOUND_OWNER_GROUPS", "*"), &env_or("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "")),
        outbound_ports: list("istio-outbound-ports"),
        outbound_ports_excluded: list("istio-local-outbound-ports-exclude"),
        ranges: selection(&text("istio-service-cidr"), IpRange::parse)?,
        ranges_excluded: excluded_ranges(&text("istio-service-exclude-cidr"))?,
        virtual_interfaces: list("kube-virt-interfaces"),
        excluded_interfaces: list("istio-exclude-interfaces"),
        dns: dns(on("redirect-dns")?, on("capture-all-dns")?, machine)?,
        drop_invalid: on("drop-invalid")?,
        ipv6: has_ipv6(&machine.addresses(), on("dual-stack")?),
        loopback: env_or("ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", "127.0.0.1/32"),
        action: ApplyOptions {
            dry_run: on("dry-run")?,
            skip_apply: on("skip-rule-apply")?,
            reconcile: on("reconcile")?,
            cleanup_only: on("cleanup-only")? || on("cleanup")?,
            force_apply: on("force-apply")?,
            namespace: Some(text("network-namespace")).filter(|path| !path.is_empty()),
            binary: Some(text("force-iptables-binary")).filter(|binary| !binary.is_empty()),
        },
    };
    options.check()?;
    Ok(options)
}

type FlagValues = BTreeMap<&'static str, String>;

/// `--name value`, `--name=value`, `-x value`, `-xvalue`; a switch needs no value.
fn parse(arguments: &[String]) -> Result<FlagValues> {
    let mut given = FlagValues::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let (name, attached) = split(argument);
        let found = FLAGS.iter().find(|flag| name == format!("--{}", flag.name) || is_short(flag, name));
        let Some(flag) = found else { bail!("unknown flag {argument:?}") };
        let value = match attached {
            Some(value) => value.to_owned(),
            None if flag.is_switch() => "true".to_owned(),
            None => rest.next().with_context(|| format!("flag {argument} has no value"))?.clone(),
        };
        given.insert(flag.name, value);
    }
    Ok(given)
}

fn is_short(flag: &IptablesFlag, name: &str) -> bool {
    flag.short.is_some_and(|short| name == format!("-{short}"))
}

fn split(argument: &str) -> (&str, Option<&str>) {
    if argument.starts_with("--") {
        return match argument.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (argument, None),
        };
    }
    match argument.char_indices().nth(2) {
        Some((at, _)) if argument.starts_with('-') => {
            let value = &argument[at..];
            (&argument[..at], Some(value.strip_prefix('=').unwrap_or(value)))
        }
        _ => (argument, None),
    }
}

fn value(name: &'static str, given: &FlagValues, environment: &dyn Fn(&str) -> Option<String>) -> String {
    if let Some(value) = given.get(name) {
        return value.clone();
    }
    let own = name.to_uppercase().replace('-', "_");
    let flag = FLAGS.iter().find(|flag| flag.name == name);
    let more = flag.map_or(&[][..], |flag| flag.env);
    // The last variable wins, as in upstream.
    let set = more.iter().rev().find_map(|name| environment(name));
    // Upstream does not read --envoy-port from the environment.
    let set = set.or_else(|| (name != "envoy-port").then(|| environment(&own)).flatten());
    set.unwrap_or_else(|| flag.map_or("", |flag| flag.default).to_owned())
}

/// Parses a boolean as Go's `strconv.ParseBool` does.
fn truth(name: &str, text: &str) -> Result<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" | "" => Ok(false),
        _ => bail!("could not parse --{name}={text:?}: expected true or false"),
    }
}

fn listed(text: &str) -> CommaList {
    text.split(',').filter(|entry| !entry.is_empty()).map(str::to_owned).collect()
}

fn selection<T>(text: &str, parse: impl Fn(&str) -> Result<T>) -> Result<Selection<T>> {
    if text == "*" {
        return Ok(Selection::All);
    }
    Ok(Selection::Only(listed(text).iter().map(|entry| parse(entry)).collect::<Result<_>>()?))
}

fn excluded_ranges(text: &str) -> Result<Vec<IpRange>> {
    match selection(text, IpRange::parse)? {
        Selection::Only(ranges) => Ok(ranges),
        Selection::All => bail!("could not exclude all IP ranges: omit --istio-service-cidr instead"),
    }
}

fn mode(text: &str) -> Result<InterceptionMode> {
    match text {
        "" | "REDIRECT" => Ok(InterceptionMode::Redirect),
        "TPROXY" => Ok(InterceptionMode::Tproxy),
        _ => bail!("could not use interception mode {text:?}: expected REDIRECT or TPROXY"),
    }
}

fn groups(include: &str, exclude: &str) -> OwnerGroups {
    if include == "*" { OwnerGroups::AllBut(listed(exclude)) } else { OwnerGroups::Only(listed(include)) }
}

fn dns(redirect: bool, all: bool, machine: &dyn Machine) -> Result<DnsCapture> {
    match (redirect, all) {
        (false, _) => Ok(DnsCapture::Off),
        (true, true) => Ok(DnsCapture::All),
        (true, false) => match machine.nameservers()? {
            none if none.is_empty() => {
                tracing::warn!("DNS queries are not redirected: resolv.conf has no name server");
                Ok(DnsCapture::Off)
            }
            servers => Ok(DnsCapture::Servers(servers)),
        },
    }
}

/// True if the first non-local address is IPv6; with dual stack, if any is.
fn has_ipv6(addresses: &[IpAddr], dual_stack: bool) -> bool {
    let mut reachable = addresses.iter().map(IpAddr::to_canonical).filter(|address| !is_local(address));
    if dual_stack { reachable.any(|address| address.is_ipv6()) } else { reachable.next().is_some_and(|a| a.is_ipv6()) }
}

fn is_local(address: &IpAddr) -> bool {
    address.is_loopback()
        || match address {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        }
}

#[cfg(test)]
mod tests;
