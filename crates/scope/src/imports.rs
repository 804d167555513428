//! The hosts that an egress listener imports: `namespace/host`, where the namespace may be `*`, `.` or `~`.

use std::collections::BTreeMap;

use model::host::is_wildcard;
use model::names::{Hostname, Namespace};

const ANY_NAMESPACE: &str = "*";

/// Imported hosts by namespace; `*` means any namespace.
#[derive(Debug, Default)]
pub(crate) struct Imports(BTreeMap<Namespace, Hosts>);

#[derive(Debug, Default)]
struct Hosts {
    wanted: Vec<Hostname>,
    excluded: Vec<Hostname>,
}

/// How a route's wildcard host is compared with an imported host.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Matching {
    /// The route's host must be within the import, as a service's must.
    Within,
    /// Either may contain the other: the rule of VirtualServices.
    Overlap,
}

impl Imports {
    /// Reads the hosts of one listener. A text that is not `namespace/host` is skipped; validation reports it.
    pub(crate) fn parse(hosts: &[String], own: &Namespace) -> Imports {
        let mut imports = Imports::default();
        for item in hosts {
            let Some((namespace, host)) = item.split_once('/').filter(|(_, host)| !host.contains('/')) else {
                continue;
            };
            let (excluded, namespace) = match namespace.strip_prefix('~') {
                Some("") => (true, ANY_NAMESPACE),
                Some(rest) => (true, rest),
                None => (false, namespace),
            };
            let namespace = if namespace == "." { own.clone() } else { Namespace::from(namespace) };
            let hosts = imports.0.entry(namespace).or_default();
            if excluded { hosts.excluded.push(host.into()) } else { hosts.wanted.push(host.into()) }
        }
        imports
    }

    /// All hosts of all namespaces.
    pub(crate) fn everything() -> Imports {
        Imports::parse(&["*/*".to_owned()], &Namespace::default())
    }

    /// Whether a service of this host and namespace is imported.
    pub(crate) fn admits(&self, namespace: &Namespace, host: &Hostname) -> bool {
        !self.excludes(namespace, host) && self.scopes(namespace).any(|hosts| hosts.covers(host, Matching::Within))
    }

    /// Whether a route with these hosts is imported: one host that is imported and not excluded is enough.
    pub(crate) fn admits_route(&self, namespace: &Namespace, hosts: &[String], matching: Matching) -> bool {
        hosts.iter().map(|h| Hostname::from(h.as_str())).any(|host| {
            !self.excludes(namespace, &host) && self.scopes(namespace).any(|hosts| hosts.covers(&host, matching))
        })
    }

    fn excludes(&self, namespace: &Namespace, host: &Hostname) -> bool {
        self.scopes(namespace).any(|hosts| hosts.excluded.iter().any(|e| host.is_subset_of(e)))
    }

    fn scopes(&self, namespace: &Namespace) -> impl Iterator<Item = &Hosts> {
        [self.0.get(namespace), self.0.get(ANY_NAMESPACE)].into_iter().flatten()
    }
}

impl Hosts {
    fn covers(&self, host: &Hostname, matching: Matching) -> bool {
        self.wanted.iter().any(|wanted| match matching {
            Matching::Overlap if is_wildcard(host) || is_wildcard(wanted) => host.overlaps(wanted),
            _ => host.is_subset_of(wanted),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Hostname, Imports, Matching, Namespace};

    fn imports(hosts: &[&str]) -> Imports {
        let hosts: Vec<String> = hosts.iter().map(|h| (*h).to_owned()).collect();
        Imports::parse(&hosts, &Namespace::from("shop"))
    }

    fn admits(hosts: &[&str], namespace: &str, host: &str) -> bool {
        imports(hosts).admits(&namespace.into(), &Hostname::from(host))
    }

    #[test]
    fn dot_is_the_own_namespace_and_star_is_every_one() {
        assert!(admits(&["./*"], "shop", "cart.shop"));
        assert!(!admits(&["./*"], "bank", "cart.bank"));
        assert!(admits(&["*/cart.bank"], "bank", "cart.bank"));
    }

    #[test]
    fn tilde_takes_hosts_out_again() {
        assert!(!admits(&["*/*", "~/cart.bank"], "bank", "cart.bank"));
        assert!(!admits(&["*/*", "~bank/*"], "bank", "cart.bank"));
        assert!(admits(&["*/*", "~bank/*"], "shop", "cart.shop"));
    }

    #[test]
    fn wildcard_route_is_imported_by_a_host_it_covers_only_the_old_way() {
        let hosts = imports(&["*/a.example.com"]);
        let route = ["*.example.com".to_owned()];
        assert!(hosts.admits_route(&"shop".into(), &route, Matching::Overlap));
        assert!(!hosts.admits_route(&"shop".into(), &route, Matching::Within));
    }
}
