//! The virtual host of a request: the most specific domain, as in Envoy.

use api::envoy::config::route::v3::virtual_host::TlsRequirementType;
use api::envoy::config::route::v3::{RouteConfiguration, VirtualHost};

use crate::explanation::{HostStep, Rejected};
use crate::request::split_port;

/// The virtual host found, and by which domain.
pub(crate) struct FoundHost<'a> {
    pub(crate) host: &'a VirtualHost,
    domain: &'a str,
    /// Other domains that match but are less specific, with their virtual hosts.
    others: Vec<(&'a str, &'a str)>,
}

/// Classes of domains, most specific first. Within a class the longest wins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Specificity {
    Any,
    Prefix(usize),
    Suffix(usize),
    Exact,
}

/// The virtual host with the most specific domain for a `Host` header.
pub(crate) fn find<'a>(table: &'a RouteConfiguration, authority: &str) -> Option<FoundHost<'a>> {
    let name = authority.to_ascii_lowercase();
    let name = if table.ignore_port_in_host_matching { split_port(&name).0 } else { &name };
    let domains = table.virtual_hosts.iter().flat_map(|host| host.domains.iter().map(move |domain| (host, &**domain)));
    let mut matching: Vec<(Specificity, &VirtualHost, &str)> = domains
        .filter_map(|(host, domain)| specificity(&domain.to_ascii_lowercase(), name).map(|of| (of, host, domain)))
        .collect();
    // The first of equal ones: Envoy rejects tables with equal domains.
    matching.sort_by_key(|(of, _, _)| std::cmp::Reverse(*of));
    let ((_, host, domain), rest) = matching.split_first()?;
    let others = rest.iter().map(|(_, host, domain)| (*domain, &*host.name)).collect();
    Some(FoundHost { host, domain, others })
}

fn specificity(domain: &str, name: &str) -> Option<Specificity> {
    if domain == "*" {
        return Some(Specificity::Any);
    }
    if domain == name {
        return Some(Specificity::Exact);
    }
    // A wildcard matches at least one letter.
    let longer = |fixed: &str| name.len() > fixed.len();
    if let Some(suffix) = domain.strip_prefix('*') {
        return (longer(suffix) && name.ends_with(suffix)).then_some(Specificity::Suffix(suffix.len()));
    }
    let prefix = domain.strip_suffix('*')?;
    (longer(prefix) && name.starts_with(prefix)).then_some(Specificity::Prefix(prefix.len()))
}

/// Whether plain HTTP is redirected to HTTPS.
pub(crate) fn requires_tls(host: &VirtualHost) -> bool {
    host.require_tls == TlsRequirementType::All as i32
}

impl FoundHost<'_> {
    pub(crate) fn step(&self, authority: &str) -> HostStep {
        let reason = |domain: &str| format!("domain {domain} is less specific than {}", self.domain);
        HostStep {
            name: self.host.name.clone(),
            domain: self.domain.to_owned(),
            authority: authority.to_owned(),
            passed_over: self
                .others
                .iter()
                .map(|(domain, name)| Rejected { what: format!("virtual host {name}"), reason: reason(domain) })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{RouteConfiguration, VirtualHost, find};

    fn table(domains: &[&str]) -> RouteConfiguration {
        let host = |domain: &&str| VirtualHost {
            name: (*domain).to_owned(),
            domains: vec![(*domain).to_owned()],
            ..VirtualHost::default()
        };
        RouteConfiguration { virtual_hosts: domains.iter().map(host).collect(), ..RouteConfiguration::default() }
    }

    #[test]
    fn the_most_specific_domain_wins() {
        let table = table(&["*", "a*", "a.b*", "*.com", "*.shop.com", "cart.shop.com", "a.b.c"]);
        for (authority, expected) in [
            ("cart.shop.com", "cart.shop.com"),
            ("CART.shop.com", "cart.shop.com"),
            ("pay.shop.com", "*.shop.com"),
            ("a.b.com", "*.com"),
            ("a.b.d", "a.b*"),
            ("ab", "a*"),
            ("a", "*"),
            (".com", "*"),
        ] {
            assert_eq!(find(&table, authority).unwrap().host.name, expected, "{authority}");
        }
        let found = find(&table, "cart.shop.com").unwrap();
        assert_eq!(found.others.iter().map(|(domain, _)| *domain).collect::<Vec<_>>(), ["*.shop.com", "*.com", "*"]);
    }

    #[test]
    fn ports_count_unless_the_table_ignores_them() {
        let mut table = table(&["a.b"]);
        assert!(find(&table, "a.b:80").is_none());
        table.ignore_port_in_host_matching = true;
        assert!(find(&table, "a.b:80").is_some());
    }
}
