//! Automatic addresses for hosts of ServiceEntries. Only objects in a store with statuses get one: the address is
//! written to the status, and read from it after a restart and by other replicas.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use api::istio::networking::v1alpha3::ServiceEntry;
use api::istio::networking::v1alpha3::service_entry::Resolution;
use serde_json::{Value, json};

use crate::config::{Key, Meta};
use crate::host::is_wildcard;
use crate::names::Str;

const FIRST_V4: Ipv4Addr = Ipv4Addr::new(240, 240, 0, 0);
const FIRST_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 0);
const MOST: u32 = 0xFFFE;
const SWITCH: &str = "networking.istio.io/enable-autoallocate-ip";

/// Pairs of host and address, as in the status of a ServiceEntry.
pub type HostAddresses = Vec<(Str, Str)>;

/// All automatic addresses.
#[derive(Clone, Debug, Default)]
pub struct AutoAddresses {
    by_entry: BTreeMap<Key, HostAddresses>,
}

impl AutoAddresses {
    pub(in crate::snapshot) fn has(&self, entry: &Key) -> bool {
        self.by_entry.contains_key(entry)
    }

    /// The first address of each family for a host of this entry.
    pub(in crate::snapshot) fn of(&self, entry: &Key, host: &str) -> (Option<Str>, Option<Str>) {
        let given = self.by_entry.get(entry).map_or(&[][..], |list| list);
        let first = |is_v6: bool| {
            let mut own = given.iter().filter(|(of, _)| **of == *host).map(|(_, address)| address);
            own.find(|address| address.contains(':') == is_v6).cloned()
        };
        (first(false), first(true))
    }

    /// The statuses with these addresses.
    pub(in crate::snapshot) fn statuses(&self) -> impl Iterator<Item = (Key, Arc<Value>)> {
        self.by_entry.iter().map(|(key, given)| {
            let address = |(host, value): &(Str, Str)| json!({"host": **host, "value": **value});
            (key.clone(), Arc::new(json!({"addresses": given.iter().map(address).collect::<Vec<_>>()})))
        })
    }

    /// Updates changed entries, oldest first. Addresses in a status are kept. False if nothing changed.
    pub(in crate::snapshot) fn settle(&mut self, changed: &[(Key, Option<(&Meta, &ServiceEntry)>)]) -> bool {
        let before = self.by_entry.clone();
        let mut wanting = Vec::new();
        for (key, entry) in changed {
            let known = self.by_entry.remove(key).unwrap_or_default();
            let Some((meta, spec)) = entry.filter(|(meta, spec)| wants(meta, spec)) else { continue };
            let previous = if meta.auto_addresses.is_empty() { &known } else { &meta.auto_addresses };
            let kept: HostAddresses =
                previous.iter().filter(|(host, _)| hosts(spec).any(|h| *h == **host)).cloned().collect();
            self.by_entry.insert(key.clone(), kept);
            wanting.push((meta.created, key, spec));
        }
        wanting.sort_by_key(|(created, key, _)| (*created, &key.name, &key.namespace));
        let mut used: BTreeSet<Str> = self.by_entry.values().flatten().map(|(_, address)| address.clone()).collect();
        let mut next = 1;
        for (_, key, spec) in wanting {
            let given = self.by_entry.entry(key.clone()).or_default();
            for host in hosts(spec) {
                if given.iter().any(|(known, _)| **known == **host) {
                    continue;
                }
                let Some(pair) = free(&mut used, &mut next) else { break };
                given.extend(pair.map(|address| (Str::from(host.as_str()), address)));
            }
        }
        self.by_entry.retain(|_, given| !given.is_empty());
        self.by_entry != before
    }
}

/// Whether the entry gets automatic addresses.
fn wants(meta: &Meta, spec: &ServiceEntry) -> bool {
    let is_off = meta.labels.get(SWITCH).is_some_and(|value| value.eq_ignore_ascii_case("false"));
    meta.keeps_status && !is_off && spec.resolution() != Resolution::None && spec.addresses.is_empty()
}

fn hosts(spec: &ServiceEntry) -> impl Iterator<Item = &String> {
    let any = spec.resolution() == Resolution::DynamicDns;
    spec.hosts.iter().filter(move |host| any || !is_wildcard(host))
}

/// The next unused pair of addresses.
fn free(used: &mut BTreeSet<Str>, next: &mut u32) -> Option<[Str; 2]> {
    while *next <= MOST {
        let number = *next;
        *next += 1;
        let v4 = Ipv4Addr::from_bits(FIRST_V4.to_bits() + number).to_string();
        let v6 = Ipv6Addr::from_bits(FIRST_V6.to_bits() + u128::from(number)).to_string();
        let pair = [Str::from(v4), Str::from(v6)];
        if !pair.iter().any(|address| used.contains(address)) {
            used.extend(pair.iter().cloned());
            return Some(pair);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{AutoAddresses, Key, Meta, Resolution, ServiceEntry};
    use crate::config::Kind;

    fn entry(hosts: &[&str]) -> ServiceEntry {
        ServiceEntry {
            hosts: hosts.iter().map(|h| (*h).to_owned()).collect(),
            resolution: Resolution::Dns as i32,
            ..ServiceEntry::default()
        }
    }

    fn meta(name: &str, addresses: &[(&str, &str)]) -> Meta {
        Meta {
            name: name.into(),
            keeps_status: true,
            auto_addresses: addresses.iter().map(|(h, a)| ((*h).into(), (*a).into())).collect(),
            ..Meta::default()
        }
    }

    fn key(name: &str) -> Key {
        Key { kind: Kind::ServiceEntry, namespace: "shop".into(), name: name.into() }
    }

    fn v4(allocated: &AutoAddresses, name: &str, host: &str) -> Option<String> {
        allocated.of(&key(name), host).0.map(|address| address.to_string())
    }

    #[test]
    fn addresses_of_a_status_are_kept_and_others_get_the_next_free_ones() {
        let mut allocated = AutoAddresses::default();
        let (a, b) = (entry(&["a.example", "*.example"]), entry(&["b.example"]));
        let with_status = meta("a", &[("a.example", "240.240.0.1"), ("a.example", "2001:2::1")]);
        let plain = meta("b", &[]);
        assert!(allocated.settle(&[(key("b"), Some((&plain, &b))), (key("a"), Some((&with_status, &a)))]));
        assert_eq!(v4(&allocated, "a", "a.example").as_deref(), Some("240.240.0.1"));
        assert_eq!(v4(&allocated, "b", "b.example").as_deref(), Some("240.240.0.2"));
        assert_eq!(v4(&allocated, "a", "*.example"), None);
        assert!(!allocated.settle(&[(key("b"), Some((&plain, &b)))]), "a second update changed something");
        assert!(allocated.settle(&[(key("a"), None)]));
        assert_eq!(v4(&allocated, "a", "a.example"), None);
    }

    #[test]
    fn entries_of_stores_without_statuses_get_no_address() {
        let mut allocated = AutoAddresses::default();
        let plain = Meta { keeps_status: false, ..meta("a", &[]) };
        assert!(!allocated.settle(&[(key("a"), Some((&plain, &entry(&["a.example"]))))]));
    }
}
