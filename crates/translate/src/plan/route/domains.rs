//! Domains of a service: the host names and addresses under which a client may call it.

use std::net::IpAddr;

use model::names::Str;
use model::service::{Service, UNSPECIFIED};

/// How a client may abbreviate host names.
pub(super) struct HostSpelling<'a> {
    /// The client's DNS domain.
    pub(super) domain: &'a str,
    /// Add names with a trailing dot.
    pub(super) absolute: bool,
    /// Add names with this port; `None` if Envoy ignores ports in Host headers.
    pub(super) port: Option<u16>,
}

/// The domains of a virtual host.
pub(super) struct Domains {
    pub(super) all: Vec<Str>,
    pub(super) short: Vec<Str>,
}

/// All domains of a service.
pub(super) fn of_service(service: &Service, host: &str, addresses: &[&Str], spelling: &HostSpelling<'_>) -> Domains {
    let mut all = Vec::with_capacity(8);
    let mut short = Vec::with_capacity(4);
    for name in std::iter::once(host).chain(service.aliases.iter().map(|alias| alias.hostname.as_str())) {
        push(&mut all, name, spelling.port);
        let first = short.len();
        alternatives(&mut short, name, spelling);
        all.extend(short[first..].iter().cloned());
    }
    if service.is_headless() {
        // Pods of a headless service have subdomains.
        let pods: Vec<Str> = all.iter().map(|domain| format!("*.{domain}").into()).collect();
        all.extend(pods);
    }
    for address in addresses.iter().filter(|a| !a.is_empty() && ****a != *UNSPECIFIED) {
        push(&mut all, address, spelling.port);
    }
    Domains { all, short }
}

/// An alias host and its short names for clients of this domain.
pub(in crate::plan) fn of_alias(host: &str, domain: &str, absolute: bool) -> Vec<Str> {
    let mut all = vec![Str::from(host)];
    alternatives(&mut all, host, &HostSpelling { domain, absolute, port: None });
    all
}

/// `host:port`, with brackets around an IPv6 address.
pub(crate) fn with_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The host as in a Host header without a port.
pub(super) fn bracketed(host: &str) -> Str {
    if host.contains(':') { format!("[{host}]").into() } else { host.into() }
}

fn push(domains: &mut Vec<Str>, host: &str, port: Option<u16>) {
    domains.push(bracketed(host));
    if let Some(port) = port {
        domains.push(with_port(host, port).into());
    }
}

/// Other names of a host: absolute, and shortened by the suffix it shares with the client's domain.
fn alternatives(out: &mut Vec<Str>, host: &str, spelling: &HostSpelling<'_>) {
    if spelling.absolute && host.parse::<IpAddr>().is_err() {
        push(out, &format!("{host}."), spelling.port);
    }
    match spelling.domain.find(".svc.") {
        Some(at) => {
            // Only hosts of the same cluster domain are shortened; others could clash with local services.
            if host.ends_with(&spelling.domain[at..]) {
                in_kubernetes(out, host, &spelling.domain[..at], spelling.port);
            }
        }
        None => by_shared_suffix(out, host, spelling),
    }
}

/// `cart`, `cart.shop`, `cart.shop.svc`; the first only for clients in the same namespace.
fn in_kubernetes(out: &mut Vec<Str>, host: &str, client_namespace: &str, port: Option<u16>) {
    let Some(end) = host.find(".svc.").filter(|end| *end > 0) else { return };
    let Some(dot) = host.find('.').filter(|dot| dot + 1 < host.len() && dot < &end) else { return };
    let (named, in_service) = (&host[..end], &host[..end + ".svc".len()]);
    if &host[dot + 1..end] == client_namespace {
        push(out, &host[..dot], port);
        push(out, in_service, port);
        push(out, named, port);
    } else {
        push(out, named, port);
        push(out, in_service, port);
    }
}

fn by_shared_suffix(out: &mut Vec<Str>, host: &str, spelling: &HostSpelling<'_>) {
    let parts: Vec<&str> = host.split('.').collect();
    let shared = parts.iter().rev().zip(spelling.domain.rsplit('.')).take_while(|(a, b)| **a == *b).count();
    let own = &parts[..parts.len() - shared];
    if shared == 0 || own.is_empty() {
        return;
    }
    push(out, &own.join("."), spelling.port);
    if own.len() == 2 {
        push(out, &parts[..3].join("."), spelling.port);
    }
}

#[cfg(test)]
mod tests {
    use super::{HostSpelling, Str, alternatives};

    fn of(host: &str, domain: &str, port: Option<u16>) -> Vec<Str> {
        let mut out = Vec::new();
        alternatives(&mut out, host, &HostSpelling { domain, absolute: false, port });
        out
    }

    fn texts(expected: &[&str]) -> Vec<Str> {
        expected.iter().map(|t| Str::from(*t)).collect()
    }

    #[test]
    fn bare_name_is_for_clients_in_the_same_namespace() {
        let host = "cart.shop.svc.cluster.local";
        assert_eq!(of(host, "shop.svc.cluster.local", None), texts(&["cart", "cart.shop.svc", "cart.shop"]));
        assert_eq!(of(host, "front.svc.cluster.local", None), texts(&["cart.shop", "cart.shop.svc"]));
    }

    #[test]
    fn hosts_of_other_domains_are_not_shortened() {
        assert!(of("www.example.com", "shop.svc.cluster.local", None).is_empty());
        assert!(of("cart.shop.svc.other.local", "shop.svc.cluster.local", None).is_empty());
        assert!(of("www.example.com", "", None).is_empty());
    }

    #[test]
    fn outside_kubernetes_the_shared_suffix_is_cut() {
        let host = "foo.local.campus.net";
        assert_eq!(of(host, "local.campus.net", Some(80)), texts(&["foo", "foo:80"]));
        assert_eq!(
            of(host, "remote.campus.net", Some(80)),
            texts(&["foo.local", "foo.local:80", "foo.local.campus", "foo.local.campus:80"])
        );
    }
}
