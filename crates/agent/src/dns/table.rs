//! Lookup table of mesh names: every name form that a client may query, with its addresses. Rebuilt from each name
//! table that the control plane sends.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use api::nds::{NameInfo, NameTable};

/// Hosts of this registry have short names.
const KUBERNETES: &str = "Kubernetes";

/// Namespace and domains of the workload, which determine the meaning of short names.
#[derive(Clone, Debug, Default)]
pub struct ClientDomain {
    namespace: String,
    /// The suffix after `name.namespace.`, such as `svc.cluster.local`.
    domain: String,
    /// The first search domain of resolv.conf, which clients append first.
    search: Option<String>,
}

impl ClientDomain {
    /// The domain may start with the namespace, as a proxy's domain does.
    pub fn new(namespace: &str, domain: &str, search: Option<&str>) -> ClientDomain {
        let rest = match domain.split_once('.') {
            Some((first, rest)) if first == namespace => rest,
            None if domain == namespace => "",
            _ => domain,
        };
        let search = search.map(|domain| domain.trim_end_matches('.').to_lowercase());
        ClientDomain { namespace: namespace.to_owned(), domain: rest.to_owned(), search }
    }

    /// All names of a host, in lower case with a trailing dot.
    fn names(&self, host: &str, info: &NameInfo) -> BTreeSet<String> {
        let full = format!("{}.", host.trim_end_matches('.').to_lowercase());
        let mut names = BTreeSet::from([full]);
        // A host in another domain belongs to another cluster: short names would be ambiguous.
        let is_ours = !self.domain.is_empty() && host.ends_with(&self.domain);
        if info.registry != KUBERNETES || !is_ours {
            return names;
        }
        let (short, namespace) = (info.shortname.to_lowercase(), info.namespace.to_lowercase());
        let first = self.domain.split('.').next().unwrap_or_default();
        names.insert(format!("{short}.{namespace}."));
        names.insert(format!("{short}.{namespace}.{first}."));
        if info.namespace == self.namespace {
            names.insert(format!("{short}."));
        }
        names
    }
}

/// The requested address record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressRecord {
    A,
    Aaaa,
}

/// The addresses of a host.
#[derive(Debug, Default)]
struct HostAddresses {
    v4: Vec<Ipv4Addr>,
    v6: Vec<Ipv6Addr>,
}

/// All mesh names.
#[derive(Debug, Default)]
pub struct DnsTable {
    hosts: HashMap<String, Arc<HostAddresses>>,
    /// Names with the search domain appended, and the names they are aliases of.
    searched: HashMap<String, String>,
}

/// A name that was found. It may have no addresses of the requested type.
#[derive(Debug, PartialEq, Eq)]
pub struct LookupResult {
    /// The canonical name, if the queried one is an alias.
    pub alias: Option<String>,
    pub addresses: Vec<IpAddr>,
}

impl DnsTable {
    pub fn new(names: &NameTable, client_domain: &ClientDomain) -> DnsTable {
        let mut table = DnsTable::default();
        for (host, info) in &names.table {
            let addresses = Arc::new(HostAddresses::parse(&info.ips));
            if !addresses.is_empty() {
                table.add(client_domain.names(host, info), &addresses, client_domain);
            }
        }
        table
    }

    fn add(&mut self, names: BTreeSet<String>, addresses: &Arc<HostAddresses>, client_domain: &ClientDomain) {
        for name in &names {
            self.hosts.insert(name.clone(), Arc::clone(addresses));
            let Some(search) = &client_domain.search else { continue };
            if name.ends_with(&format!("{search}.")) {
                continue;
            }
            let searched = format!("{name}{search}.");
            // `cart` with the search domain is the full name of the host, not an alias.
            if !names.contains(&searched) {
                self.searched.insert(searched, name.clone());
            }
        }
    }

    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Looks up a name in lower case with a trailing dot. A wildcard host matches every name below it that has no entry.
    pub fn find(&self, name: &str, kind: AddressRecord) -> Option<LookupResult> {
        let known = |name: &str| self.searched.contains_key(name) || self.hosts.contains_key(name);
        if known(name) {
            return self.found(name, kind);
        }
        let mut below = name;
        while let Some((_, rest)) = below.split_once('.') {
            let wildcard = format!("*.{rest}");
            if !rest.is_empty() && known(&wildcard) {
                return self.found(&wildcard, kind);
            }
            below = rest;
        }
        None
    }

    fn found(&self, name: &str, kind: AddressRecord) -> Option<LookupResult> {
        let alias = self.searched.get(name);
        let addresses = self.hosts.get(alias.map_or(name, String::as_str))?;
        Some(LookupResult { alias: alias.cloned(), addresses: addresses.of(kind) })
    }
}

impl HostAddresses {
    /// Invalid addresses are skipped.
    fn parse(texts: &[String]) -> HostAddresses {
        let mut addresses = HostAddresses::default();
        for address in texts.iter().filter_map(|text| text.parse::<IpAddr>().ok()) {
            match address {
                IpAddr::V4(v4) => addresses.v4.push(v4),
                IpAddr::V6(v6) => addresses.v6.push(v6),
            }
        }
        addresses
    }

    fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    fn of(&self, kind: AddressRecord) -> Vec<IpAddr> {
        match kind {
            AddressRecord::A => self.v4.iter().copied().map(IpAddr::V4).collect(),
            AddressRecord::Aaaa => self.v6.iter().copied().map(IpAddr::V6).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AddressRecord, ClientDomain, DnsTable, LookupResult, NameInfo, NameTable};

    fn info(ips: &[&str], registry: &str, shortname: &str, namespace: &str) -> NameInfo {
        NameInfo {
            ips: ips.iter().map(ToString::to_string).collect(),
            registry: registry.to_owned(),
            shortname: shortname.to_owned(),
            namespace: namespace.to_owned(),
        }
    }

    fn table() -> DnsTable {
        let names = NameTable {
            table: [
                ("cart.shop.svc.cluster.local", info(&["10.0.0.1", "10.0.0.2"], "Kubernetes", "cart", "shop")),
                ("pay.bank.svc.cluster.local", info(&["10.0.0.3", "2001:db8::3"], "Kubernetes", "pay", "bank")),
                ("far.shop.svc.other.local", info(&["10.0.0.4"], "Kubernetes", "far", "shop")),
                ("Outside.Example.com", info(&["10.0.0.5"], "External", "", "")),
                ("*.wild.example.com", info(&["10.0.0.6"], "External", "", "")),
                ("bad.example.com", info(&["junk"], "External", "", "")),
            ]
            .map(|(host, info)| (host.to_owned(), info))
            .into(),
        };
        DnsTable::new(&names, &ClientDomain::new("shop", "shop.svc.cluster.local", Some("shop.svc.cluster.local")))
    }

    fn addresses(name: &str, kind: AddressRecord) -> Option<(Option<String>, Vec<String>)> {
        let LookupResult { alias, addresses } = table().find(name, kind)?;
        Some((alias, addresses.iter().map(ToString::to_string).collect()))
    }

    fn plain(ips: &[&str]) -> Option<(Option<String>, Vec<String>)> {
        Some((None, ips.iter().map(ToString::to_string).collect()))
    }

    fn alias(of: &str, ips: &[&str]) -> Option<(Option<String>, Vec<String>)> {
        Some((Some(of.to_owned()), ips.iter().map(ToString::to_string).collect()))
    }

    #[test]
    fn short_names_depend_on_the_namespace() {
        let cart = plain(&["10.0.0.1", "10.0.0.2"]);
        for name in ["cart.", "cart.shop.", "cart.shop.svc.", "cart.shop.svc.cluster.local."] {
            assert_eq!(addresses(name, AddressRecord::A), cart, "{name}");
        }
        assert_eq!(addresses("pay.bank.", AddressRecord::A), plain(&["10.0.0.3"]));
        assert_eq!(addresses("pay.", AddressRecord::A), None);
    }

    #[test]
    fn host_in_another_domain_has_only_its_full_name() {
        assert_eq!(addresses("far.shop.svc.other.local.", AddressRecord::A), plain(&["10.0.0.4"]));
        assert_eq!(addresses("far.", AddressRecord::A), None);
        assert_eq!(addresses("far.shop.", AddressRecord::A), None);
    }

    #[test]
    fn name_without_addresses_of_the_type_is_found_empty() {
        assert_eq!(addresses("cart.", AddressRecord::Aaaa), plain(&[]));
        assert_eq!(addresses("pay.bank.", AddressRecord::Aaaa), plain(&["2001:db8::3"]));
        assert_eq!(addresses("bad.example.com.", AddressRecord::A), None);
    }

    #[test]
    fn name_with_search_domain_is_an_alias_unless_it_is_a_full_name() {
        assert_eq!(
            addresses("outside.example.com.shop.svc.cluster.local.", AddressRecord::A),
            alias("outside.example.com.", &["10.0.0.5"])
        );
        assert_eq!(addresses("cart.shop.svc.cluster.local.", AddressRecord::A), plain(&["10.0.0.1", "10.0.0.2"]));
        assert_eq!(
            addresses("cart.shop.svc.shop.svc.cluster.local.", AddressRecord::A),
            alias("cart.shop.svc.", &["10.0.0.1", "10.0.0.2"])
        );
    }

    #[test]
    fn wildcard_matches_names_below_it() {
        assert_eq!(addresses("a.b.wild.example.com.", AddressRecord::A), plain(&["10.0.0.6"]));
        assert_eq!(addresses("wild.example.com.", AddressRecord::A), None);
        assert_eq!(
            addresses("a.wild.example.com.shop.svc.cluster.local.", AddressRecord::A),
            alias("*.wild.example.com.", &["10.0.0.6"])
        );
    }

    #[test]
    fn unknown_names_are_not_found() {
        assert_eq!(addresses("www.example.org.", AddressRecord::A), None);
        assert_eq!(addresses(".", AddressRecord::A), None);
    }
}
