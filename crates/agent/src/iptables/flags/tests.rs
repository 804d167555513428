//! Options and rules from flags and environment.

use std::net::IpAddr;

use anyhow::Result;

use super::{Machine, help, options};
use crate::iptables::options::{InterceptionMode, IptablesOptions, OwnerGroups, Selection};
use crate::iptables::rule;
use crate::iptables::rules::{IpFamily, rules};

/// A machine without the user `istio-proxy`.
struct FakeMachine {
    addresses: Vec<IpAddr>,
    nameservers: Vec<IpAddr>,
}

impl Machine for FakeMachine {
    fn uid(&self, user: &str) -> Option<u32> {
        (user == "envoy").then_some(101)
    }

    fn addresses(&self) -> Vec<IpAddr> {
        self.addresses.clone()
    }

    fn nameservers(&self) -> Result<Vec<IpAddr>> {
        Ok(self.nameservers.clone())
    }
}

fn addresses(list: &[&str]) -> Vec<IpAddr> {
    list.iter().map(|text| text.parse().unwrap()).collect()
}

fn read(arguments: &str, environment: &[(&str, &str)]) -> Result<IptablesOptions> {
    let machine =
        FakeMachine { addresses: addresses(&["127.0.0.1", "::1", "10.1.2.3"]), nameservers: addresses(&["10.0.0.10"]) };
    read_on(&machine, arguments, environment)
}

fn read_on(machine: &FakeMachine, arguments: &str, environment: &[(&str, &str)]) -> Result<IptablesOptions> {
    let arguments: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
    let environment = |name: &str| environment.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
    options(&arguments, &environment, machine)
}

/// The rules of a chain in the text for these arguments, without `-A CHAIN`.
fn chain(options: &IptablesOptions, family: IpFamily, table: &str, chain: &str) -> Vec<String> {
    let text = rule::restore(&rules(options, family));
    let of_table = text.split("* ").find(|part| part.starts_with(&format!("{table}\n"))).unwrap_or_default();
    let head = format!("-A {chain} ");
    of_table.lines().filter_map(|line| line.strip_prefix(&head)).map(str::to_owned).collect()
}

#[test]
fn arguments_of_an_injected_init_container_are_accepted() {
    let arguments = "-p 15001 -z 15006 -u 1337 -m REDIRECT -i * -b * -d 15090,15021,15020 \
        --log_output_level=default:info --log_as_json --log_target stdout";
    let of = |arguments: &str| rule::restore(&rules(&read(arguments, &[]).unwrap(), IpFamily::V4));
    assert_eq!(of(arguments), of("-p 15001 -z 15006 -u 1337 -i * -b * -d 15090,15021,15020"));
}

#[test]
fn flag_wins_over_environment_and_environment_over_default() {
    let environment = [("INBOUND_CAPTURE_PORT", "16006"), ("ENVOY_PORT", "16001"), ("PROXY_UID", "1,2")];
    let options = read("-z 17006", &environment).unwrap();
    assert_eq!((options.inbound_capture_port.as_str(), options.envoy_port.as_str()), ("17006", "15001"));
    assert_eq!((options.proxy_uids.join("+"), options.proxy_gids.join("+")), ("1+2".into(), "1+2".into()));
    let options = read("", &environment).unwrap();
    assert_eq!(options.inbound_capture_port, "16006");
}

#[test]
fn all_spellings_of_a_flag_mean_the_same() {
    for spelling in ["-b *", "-b=*", "-b*", "--istio-inbound-ports *", "--istio-inbound-ports=*"] {
        assert_eq!(read(spelling, &[]).unwrap().inbound_ports, Selection::All, "{spelling}");
    }
    assert!(read("--dry-run", &[]).unwrap().action.dry_run && read("-n", &[]).unwrap().action.dry_run);
    assert!(!read("--dry-run=false", &[("DRY_RUN", "true")]).unwrap().action.dry_run);
    assert!(read("--cleanup", &[]).unwrap().action.cleanup_only);
}

#[test]
fn additional_environment_variables_are_read() {
    let options = read("", &[("ISTIO_META_DNS_CAPTURE", "true"), ("INVALID_DROP", "1")]).unwrap();
    assert!(options.drop_invalid);
    assert!(!chain(&options, IpFamily::V4, "nat", "ISTIO_OUTPUT_DNS").is_empty());
}

#[test]
fn errors_name_the_invalid_value() {
    let error = |arguments: &str, environment: &[(&str, &str)]| {
        read(arguments, environment).err().map(|e| format!("{e:#}")).unwrap_or_default()
    };
    for (arguments, named) in [
        ("--no-such-flag", "no-such-flag"),
        ("-i 10.0.0.0", "10.0.0.0"),
        ("-i 10.0.0.0/33", "10.0.0.0/33"),
        ("-x *", "all IP ranges"),
        ("-p http", "http"),
        ("-m NAT", "NAT"),
        ("--redirect-dns=maybe", "maybe"),
        ("--istio-inbound-ports", "no value"),
        ("--force-iptables-binary=bsd", "bsd"),
        ("--run-validation", "not supported"),
    ] {
        assert!(error(arguments, &[]).contains(named), "{arguments}: {}", error(arguments, &[]));
    }
    let many: Vec<String> = (0..65).map(|n| n.to_string()).collect();
    assert!(error("", &[("ISTIO_OUTBOUND_OWNER_GROUPS", &many.join(","))]).contains("65"));
    assert!(error("", &[("ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", "10.0.0.1/32")]).contains("10.0.0.1/32"));
    assert!(error("", &[("PROXY_UID", "1 -j ACCEPT")]).contains("whitespace"));
}

#[test]
fn envoy_user_is_looked_up() {
    assert_eq!(read("", &[("ENVOY_USER", "envoy")]).unwrap().proxy_uids, ["101"]);
    assert_eq!(read("", &[]).unwrap().proxy_uids, ["1337"]);
}

#[test]
fn first_reachable_address_decides_on_ipv6() {
    let on = |list: &[&str], arguments: &str| {
        let machine = FakeMachine { addresses: addresses(list), nameservers: Vec::new() };
        read_on(&machine, arguments, &[]).unwrap().ipv6
    };
    assert!(!on(&["127.0.0.1", "10.0.0.1", "2001:db8::1"], ""));
    assert!(on(&["127.0.0.1", "10.0.0.1", "2001:db8::1"], "--dual-stack"));
    assert!(on(&["::1", "fe80::1", "2001:db8::1"], ""));
    assert!(!on(&["127.0.0.1", "::1", "fe80::1"], "--dual-stack"));
}

#[test]
fn outbound_rules_are_in_the_order_that_excludes_envoy() {
    let options = read("-i * -x 10.9.0.0/16 -o 9000 -q 80", &[]).unwrap();
    assert_eq!(
        chain(&options, IpFamily::V4, "nat", "ISTIO_OUTPUT"),
        [
            "-p tcp --dport 9000 -j RETURN",
            "-p udp --dport 9000 -j RETURN",
            "-o lo -s 127.0.0.6/32 -j RETURN",
            "-o lo ! -d 127.0.0.1/32 -p tcp ! --dport 15008 -m owner --uid-owner 1337 -j ISTIO_IN_REDIRECT",
            "-o lo -m owner ! --uid-owner 1337 -j RETURN",
            "-m owner --uid-owner 1337 -j RETURN",
            "-o lo ! -d 127.0.0.1/32 -p tcp ! --dport 15008 -m owner --gid-owner 1337 -j ISTIO_IN_REDIRECT",
            "-o lo -m owner ! --gid-owner 1337 -j RETURN",
            "-m owner --gid-owner 1337 -j RETURN",
            "-d 127.0.0.1/32 -j RETURN",
            "-d 10.9.0.0/16 -j RETURN",
            "-p tcp --dport 80 -j ISTIO_REDIRECT",
            "-j ISTIO_REDIRECT",
        ]
    );
    assert_eq!(chain(&options, IpFamily::V4, "nat", "OUTPUT"), ["-j ISTIO_OUTPUT"]);
    assert_eq!(chain(&options, IpFamily::V4, "nat", "PREROUTING"), Vec::<String>::new());
}

#[test]
fn inbound_ports_are_redirected_except_excluded_ones() {
    let options = read("-b * -d 22,15020", &[]).unwrap();
    let inbound = chain(&options, IpFamily::V4, "nat", "ISTIO_INBOUND");
    let expected =
        ["--dport 15008 -j RETURN", "--dport 22 -j RETURN", "--dport 15020 -j RETURN", "-j ISTIO_IN_REDIRECT"];
    assert_eq!(inbound, expected.map(|rest| format!("-p tcp {rest}")));
    let listed = read("-b 80,443", &[]).unwrap();
    assert_eq!(chain(&listed, IpFamily::V6, "nat", "ISTIO_INBOUND").len(), 3);
}

#[test]
fn tproxy_marks_packets_and_excludes_marked_ones() {
    let options = read("-b * -m TPROXY -c eth9", &[]).unwrap();
    assert_eq!(options.mode, InterceptionMode::Tproxy);
    let text = rule::restore(&rules(&options, IpFamily::V6));
    let expected = [
        "-A ISTIO_TPROXY ! -d ::1/128 -p tcp -j TPROXY --tproxy-mark 1337/0xffffffff --on-port 15006",
        "-A ISTIO_INBOUND -p tcp -m conntrack --ctstate RELATED,ESTABLISHED -j ISTIO_DIVERT",
        "-I ISTIO_INBOUND 2 -p tcp -s ::6/128 -i lo -j RETURN",
        "-A OUTPUT -o eth9 -j RETURN",
    ];
    for line in expected {
        assert!(text.lines().any(|l| l == line), "no {line} in\n{text}");
    }
    let nat = chain(&options, IpFamily::V6, "nat", "ISTIO_INBOUND");
    assert_eq!(nat, ["-p tcp --dport 15008 -j RETURN"]);
}

#[test]
fn dns_is_redirected_for_servers_of_the_ip_family() {
    let options = read("--redirect-dns", &[]).unwrap();
    let dns = chain(&options, IpFamily::V4, "nat", "ISTIO_OUTPUT_DNS");
    let expected = [
        "-p tcp --dport 53 -d 10.0.0.10/32 -j REDIRECT --to-ports 15053",
        "-p udp --dport 53 -d 10.0.0.10/32 -j REDIRECT --to-port 15053",
    ];
    assert_eq!(dns, expected);
    assert!(chain(&options, IpFamily::V6, "nat", "ISTIO_OUTPUT_DNS").is_empty());
    let all = read("--redirect-dns --capture-all-dns", &[]).unwrap();
    assert_eq!(chain(&all, IpFamily::V6, "nat", "ISTIO_OUTPUT_DNS").len(), 2);
    let none = FakeMachine { addresses: Vec::new(), nameservers: Vec::new() };
    let none = read_on(&none, "--redirect-dns", &[]).unwrap();
    assert!(!rule::restore(&rules(&none, IpFamily::V4)).contains("53"));
}

#[test]
fn listed_owner_groups_are_one_rule() {
    let only = read("", &[("ISTIO_OUTBOUND_OWNER_GROUPS", "java,202")]).unwrap();
    assert_eq!(only.groups, OwnerGroups::Only(vec!["java".into(), "202".into()]));
    let output = chain(&only, IpFamily::V4, "nat", "ISTIO_OUTPUT");
    assert!(output.contains(&"-m owner ! --gid-owner java -m owner ! --gid-owner 202 -j RETURN".to_owned()));
    let but = read("", &[("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "888")]).unwrap();
    let output = chain(&but, IpFamily::V4, "nat", "ISTIO_OUTPUT");
    assert!(output.contains(&"-m owner --gid-owner 888 -j RETURN".to_owned()));
}

#[test]
fn help_lists_every_flag() {
    assert!(help().contains("--istio-inbound-interception-mode") && help().contains("(default 15001)"));
}
