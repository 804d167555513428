//! Host name rules: wildcards, overlap and short names.

use std::net::IpAddr;

use crate::names::Hostname;

impl Hostname {
    /// Whether the name starts with `*`.
    pub fn is_wildcard(&self) -> bool {
        is_wildcard(self)
    }

    /// Whether some host fits both names: equal, or one a wildcard that covers the other.
    pub fn overlaps(&self, other: &str) -> bool {
        match (is_wildcard(self), is_wildcard(other)) {
            (true, true) => {
                let (a, b) = (&self[1..], &other[1..]);
                a.ends_with(b) || b.ends_with(a)
            }
            (true, false) => other.ends_with(&self[1..]),
            (false, true) => self.ends_with(&other[1..]),
            (false, false) => self.as_str() == other,
        }
    }

    /// Whether every host that fits `self` also fits `other`.
    pub fn is_subset_of(&self, other: &str) -> bool {
        match (is_wildcard(self), is_wildcard(other)) {
            (true, true) => self.len() >= other.len() && self[1..].ends_with(&other[1..]),
            (true, false) => false,
            (false, true) => self.ends_with(&other[1..]),
            (false, false) => self.as_str() == other,
        }
    }
}

/// Whether `name` is a wildcard host.
pub fn is_wildcard(name: &str) -> bool {
    name.starts_with('*')
}

/// Resolves a short host name against the namespace and domain of the object that used it.
/// Names with a dot, wildcards and addresses are taken as they are.
pub fn resolve_short_name(host: &str, namespace: &str, domain: &str) -> Hostname {
    if host.contains('.') || is_wildcard(host) || host.is_empty() || host.parse::<IpAddr>().is_ok() {
        return Hostname::from(host);
    }
    if namespace.is_empty() {
        return Hostname::from(format!("{host}.svc.{domain}"));
    }
    Hostname::from(format!("{host}.{namespace}.svc.{domain}"))
}

#[cfg(test)]
mod tests {
    use super::{Hostname, resolve_short_name};

    #[test]
    fn wildcards_overlap_when_one_covers_the_other() {
        assert!(Hostname::from("*.com").overlaps("*.example.com"));
        assert!(Hostname::from("*.example.com").overlaps("a.example.com"));
        assert!(!Hostname::from("*.example.com").overlaps("example.com"));
        assert!(Hostname::from("*").overlaps("anything"));
    }

    #[test]
    fn wider_name_is_not_a_subset() {
        assert!(Hostname::from("a.example.com").is_subset_of("*.example.com"));
        assert!(Hostname::from("*.example.com").is_subset_of("*.com"));
        assert!(!Hostname::from("*.com").is_subset_of("*.example.com"));
        assert!(!Hostname::from("*.com").is_subset_of("a.com"));
    }

    #[test]
    fn only_names_without_a_dot_are_short() {
        assert_eq!(resolve_short_name("cart", "shop", "cluster.local"), "cart.shop.svc.cluster.local");
        assert_eq!(resolve_short_name("cart.shop", "shop", "cluster.local"), "cart.shop");
        assert_eq!(resolve_short_name("*", "shop", "cluster.local"), "*");
        assert_eq!(resolve_short_name("2001:db8::1", "shop", "cluster.local"), "2001:db8::1");
    }
}
