//! Rules of names, addresses, ports and durations, for many kinds.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;

use api::Duration;
use ipnet::IpNet;

use super::report::{Report, Rule, Violation};

const LONGEST_LABEL: usize = 63;
/// Prefix of a Unix socket address.
pub(super) const UNIX: &str = "unix://";

/// Whether the text is a DNS label (RFC 1123), ignoring case.
pub(super) fn is_dns_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    text.len() <= LONGEST_LABEL
        && text.bytes().all(inner)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

/// A DNS label, `*`, or a label after `*` or `*-`.
fn is_wildcard_label(text: &str) -> bool {
    if text == "*" {
        return true;
    }
    let rest = text.strip_prefix("*-").or_else(|| text.strip_prefix('*')).unwrap_or(text);
    text.len() <= LONGEST_LABEL && is_dns_label(rest)
}

fn domain_length(name: &str) -> Rule {
    match name.len() {
        0 => Err(Violation::from("empty domain name not allowed".to_owned())),
        1..=255 => Ok(()),
        _ => Err(Violation::from(format!("domain name {:?} too long (max 255)", head(name)))),
    }
}

/// The beginning of a name, for messages.
fn head(name: &str) -> &str {
    let end = name.char_indices().nth(80).map_or(name.len(), |(i, _)| i);
    &name[..end]
}

fn dns_labels(domain: &str) -> Rule {
    let parts: Vec<&str> = domain.split('.').collect();
    let last = parts.len() - 1;
    if parts[last].parse::<i64>().is_ok() {
        let top = parts[last];
        return Err(Violation::from(format!(
            "domain name {domain:?} invalid (top level domain {top:?} cannot be all-numeric)"
        )));
    }
    for (index, label) in parts.iter().enumerate() {
        // The last label may be empty: `istio.io.` is valid.
        if index == last && label.is_empty() {
            return Ok(());
        }
        if !is_dns_label(label) {
            return Err(Violation::from(format!("domain name {domain:?} invalid (label {label:?} invalid)")));
        }
    }
    Ok(())
}

/// A full domain name without wildcard.
pub(super) fn fqdn(name: &str) -> Rule {
    domain_length(name)?;
    dns_labels(name)
}

/// A domain name whose first label may be a wildcard.
pub(super) fn wildcard_domain(name: &str) -> Rule {
    domain_length(name)?;
    let (first, rest) = name.split_once('.').map_or((name, None), |(first, rest)| (first, Some(rest)));
    if !is_wildcard_label(first) {
        return Err(Violation::from(format!("domain name {name:?} invalid (label {first:?} invalid)")));
    }
    rest.map_or(Ok(()), dns_labels)
}

/// A host of a VirtualService on a gateway. With SNI routes also the names that AUTO_PASSTHROUGH generates.
pub(super) fn gateway_domain(sni: bool, name: &str) -> Rule {
    domain_length(name)?;
    if !(sni && name.starts_with("outbound_")) {
        return wildcard_domain(name);
    }
    const FORMAT: &str = "outbound_.<PORT>_._.<HOSTNAME>";
    let parts: Vec<&str> = name.split('_').collect();
    if parts.len() < 4 {
        return Err(Violation::from(format!("domain name {name} invalid, should follow '{FORMAT}' format")));
    }
    let (port, host) = (parts[1].trim_matches('.'), parts[3].trim_matches('.'));
    for (label, fits) in
        [(port, port.contains(|c: char| c.is_ascii_digit())), (host, host.contains(|c: char| c.is_ascii_alphabetic()))]
    {
        if !fits {
            return Err(Violation::from(format!(
                "domain name {name:?} invalid (label {label:?} invalid). should follow {FORMAT} format"
            )));
        }
    }
    Ok(())
}

pub(super) fn no_partial_wildcard(host: &str) -> Rule {
    match host.contains('*') && host.len() != 1 && !host.starts_with("*.") {
        true => Err(Violation::from(format!("partial wildcard {host:?} not allowed"))),
        false => Ok(()),
    }
}

/// The kind whose `namespace/host` entries are checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum HostOf {
    Sidecar,
    Gateway,
}

/// An entry such as `ns/*.example.com`; optional namespace for a Gateway.
pub(super) fn namespaced_host(entry: &str, of: HostOf, report: &mut Report) {
    let Some((namespace, host)) = entry.split_once('/') else {
        match of {
            HostOf::Gateway => return listener_host(entry, of, report),
            HostOf::Sidecar => return report.error("host must be of form namespace/dnsName"),
        }
    };
    report.error_if(
        namespace.is_empty() || host.is_empty(),
        "config namespace and dnsName in host entry cannot be empty",
    );
    match of {
        HostOf::Sidecar => {
            // A leading ~ excludes the namespace.
            let name = namespace.strip_prefix('~').unwrap_or(namespace);
            let fits = matches!(name, "" | "*" | ".") || is_dns_label(name);
            report.error_if(!fits, format_args!("invalid namespace value {namespace:?} in sidecar"));
        }
        HostOf::Gateway => {
            let fits = matches!(namespace, "*" | ".") || is_dns_label(namespace);
            report.error_if(!fits, format_args!("invalid namespace value {namespace:?} in gateway"));
        }
    }
    listener_host(host, of, report);
}

fn listener_host(host: &str, of: HostOf, report: &mut Report) {
    report.error_if(host != "*" && !host.contains('.'), "short names (non FQDN) are not allowed");
    if of == HostOf::Sidecar || !is_ip(host) {
        report.check(wildcard_domain(host));
    }
    report.check(no_partial_wildcard(host));
}

/// An IP address; IPv6 may have a zone.
pub(super) fn is_ip(text: &str) -> bool {
    match text.split_once('%') {
        Some((address, zone)) => !zone.is_empty() && address.contains(':') && IpAddr::from_str(address).is_ok(),
        None => IpAddr::from_str(text).is_ok(),
    }
}

pub(super) fn ip(text: &str) -> Rule {
    if is_ip(text) { Ok(()) } else { Err(Violation::from(format!("{} is not a valid IP", head(text)))) }
}

pub(super) fn is_cidr(text: &str) -> bool {
    IpNet::from_str(text).is_ok()
}

/// An address or a CIDR block.
pub(super) fn subnet(text: &str) -> Rule {
    if text.matches('/').count() != 1 {
        return ip(text);
    }
    if is_cidr(text) { Ok(()) } else { Err(Violation::from(format!("{} is not a valid CIDR block", head(text)))) }
}

/// The path of a Unix socket, or an abstract name.
pub(super) fn unix_path(path: &str) -> Rule {
    if path.is_empty() {
        return Err(Violation::from("unix address must not be empty".to_owned()));
    }
    if path.starts_with('@') || (path.starts_with('/') && !path.ends_with('/')) {
        return Ok(());
    }
    Err(Violation::from(format!("{path} is not an absolute path to a file")))
}

pub(super) fn port(number: impl Into<i64>) -> Rule {
    let number = number.into();
    match number {
        1..=65535 => Ok(()),
        _ => Err(Violation::from(format!("port number {number} must be in the range 1..65535"))),
    }
}

pub(super) fn port_name(name: &str) -> Rule {
    if is_dns_label(name) { Ok(()) } else { Err(Violation::from(format!("invalid port name: {name}"))) }
}

/// `host:port`.
pub(super) fn proxy_address(address: &str) -> Rule {
    let (host, number) = host_and_port(address).ok_or_else(|| format!("unable to split {address:?}"))?;
    let number: i64 = number.parse().map_err(|_| Violation::from(format!("port ({number}) is not a number")))?;
    port(number)?;
    if fqdn(host).is_err() && !is_ip(host) {
        return Err(Violation::from(format!("{host:?} is not a valid hostname or an IP address")));
    }
    Ok(())
}

/// Splits `host:port` or `[v6]:port`.
pub(super) fn host_and_port(address: &str) -> Option<(&str, &str)> {
    if let Some(rest) = address.strip_prefix('[') {
        let (host, port) = rest.split_once("]:")?;
        return Some((host, port));
    }
    let (host, port) = address.rsplit_once(':')?;
    (!host.contains(':')).then_some((host, port))
}

/// A positive duration in whole milliseconds.
pub(super) fn duration(duration: &Duration) -> Rule {
    let nanos = nanoseconds(duration);
    if nanos < 1_000_000 {
        return Err(Violation::from("duration must be greater than 1ms".to_owned()));
    }
    if nanos % 1_000_000 != 0 {
        return Err(Violation::from("only durations to ms precision are supported".to_owned()));
    }
    Ok(())
}

pub(super) fn nanoseconds(duration: &Duration) -> i128 {
    i128::from(duration.seconds) * 1_000_000_000 + i128::from(duration.nanos)
}

/// Checks a field that may be absent.
pub(super) fn duration_if_given(given: Option<&Duration>, name: &str, report: &mut Report) {
    report.given(name, given, |report, given| report.check(duration(given)));
}

/// Keys and values as Kubernetes allows them in labels.
pub(super) fn labels(labels: &BTreeMap<String, String>, report: &mut Report) {
    for (key, value) in labels {
        report.check(label_key(key));
        report.error_if(!value.is_empty() && !is_qualified_name(value), format_args!("invalid tag value: {value:?}"));
    }
}

fn label_key(key: &str) -> Rule {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    if prefix.is_some_and(|prefix| !prefix.split('.').all(is_prefix_label)) || !is_qualified_name(name) {
        return Err(Violation::from(format!("invalid tag key: {key:?}")));
    }
    if prefix.is_some_and(|prefix| prefix.len() > 253) {
        return Err(Violation::from(format!("invalid tag key: {key:?} (DNS prefix is too long)")));
    }
    if name.len() > LONGEST_LABEL {
        return Err(Violation::from(format!("invalid tag key: {key:?} (name is too long)")));
    }
    Ok(())
}

/// A DNS label of any length.
fn is_prefix_label(label: &str) -> bool {
    is_bounded_by_alphanumerics(label) && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

fn is_qualified_name(text: &str) -> bool {
    is_bounded_by_alphanumerics(text) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

fn is_bounded_by_alphanumerics(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::{
        fqdn, gateway_domain, host_and_port, is_ip, label_key, proxy_address, subnet, unix_path, wildcard_domain,
    };

    #[test]
    fn domains_are_checked_label_by_label() {
        for good in ["a", "a.b", "istio.io.", "a-b.c1", "1a.b"] {
            assert_eq!(fqdn(good), Ok(()), "{good}");
        }
        for bad in ["", ".", "a..b", "-a.b", "a.1", "a_b.c", "*.a.b", &"a".repeat(64), &"a.".repeat(200)] {
            assert!(fqdn(bad).is_err(), "{bad}");
        }
        for good in ["*", "*.a.b", "*-a.b", "*a.b", "a.b"] {
            assert_eq!(wildcard_domain(good), Ok(()), "{good}");
        }
        for bad in ["a.*.b", "**.a", "*.", "*.1", "a*.b"] {
            assert_eq!(wildcard_domain(bad).is_err(), bad != "*.", "{bad}");
        }
    }

    #[test]
    fn generated_sni_names_are_allowed_on_gateways() {
        assert_eq!(gateway_domain(true, "outbound_.80_._.e2e.foobar.mesh"), Ok(()));
        assert!(gateway_domain(false, "outbound_.80_._.e2e.foobar.mesh").is_err());
        assert!(gateway_domain(true, "outbound_.80").is_err());
        assert!(gateway_domain(true, "outbound_.x_._.a.b").is_err());
    }

    #[test]
    fn addresses_are_checked() {
        assert!(is_ip("10.0.0.1") && is_ip("::1") && is_ip("fe80::1%eth0"));
        assert!(!is_ip("10.0.0.1%eth0") && !is_ip("010.0.0.1") && !is_ip("fe80::1%"));
        assert!(subnet("10.0.0.1/8").is_ok() && subnet("2001:db8::/32").is_ok() && subnet("10.0.0.1").is_ok());
        assert!(subnet("10.0.0.0/33").is_err() && subnet("10.0.0.0/8/8").is_err() && subnet("a/8").is_err());
        assert_eq!(host_and_port("[::1]:80"), Some(("::1", "80")));
        assert_eq!(host_and_port(":80"), Some(("", "80")));
        assert_eq!(host_and_port("::1"), None);
        assert!(proxy_address("istiod.istio-system.svc:15012").is_ok() && proxy_address("a:0").is_err());
        assert!(unix_path("/run/a.sock").is_ok() && unix_path("@a").is_ok() && unix_path("a").is_err());
    }

    #[test]
    fn label_keys_follow_kubernetes() {
        for good in ["app", "app.kubernetes.io/name", "a_b.c-d", "A/b"] {
            assert_eq!(label_key(good), Ok(()), "{good}");
        }
        for bad in ["", "/a", "a/", "a/b/c", "-a", "a b", &"a".repeat(64)] {
            assert!(label_key(bad).is_err(), "{bad}");
        }
    }
}
