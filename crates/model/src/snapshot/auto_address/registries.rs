//! Automatic addresses for services of registries without a virtual address. They use the upper half of the blocks;
//! `entries` fills the same blocks from below. An address of a ServiceEntry is never used here, so no address is shared,
//! and the first 32,767 hosts of entries change no address of a registry service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::host::is_wildcard;
use crate::names::ServiceKey;
use crate::service::{Registry, Resolution, Service, UNSPECIFIED};

/// The lowest third octet.
const FIRST: u32 = 128;
/// No address ends in 0 or 255.
const PER_OCTET: u32 = 254;
const SLOTS: u32 = (256 - FIRST) * PER_OCTET;
/// The largest prime below the number of slots.
const PRIME: u32 = 32_507;
/// After this many collisions, linear search.
const PROBES: u32 = 64;

/// Assigns addresses that none of `others` has. They depend only on names and the addresses of `others`, so they are the
/// same on all replicas and after a restart. When services come or go, only names with colliding hashes may move.
pub(in crate::snapshot) fn allocate<'a>(services: &mut [Arc<Service>], others: impl Iterator<Item = &'a Arc<Service>>) {
    let names: BTreeSet<ServiceKey> = services.iter().filter(|s| needs_address(s)).map(|s| s.key()).collect();
    if names.is_empty() {
        return;
    }
    let mut taken: BTreeSet<u16> = others.flat_map(|other| slots_of(other)).collect();
    let mut slots: BTreeMap<ServiceKey, u16> = BTreeMap::new();
    for name in names {
        if let Some(slot) = free_slot(&name, &taken) {
            taken.insert(slot);
            slots.insert(name, slot);
        }
    }
    for service in services.iter_mut().filter(|s| needs_address(s)) {
        let Some(slot) = slots.get(&service.key()).copied() else { continue };
        let service = Arc::make_mut(service);
        service.auto_ipv4 = Some(ipv4(slot).to_string().into());
        service.auto_ipv6 = Some(ipv6(slot).to_string().into());
    }
}

/// `Passthrough` services get no address: Envoy dials the original destination, which must be a real address.
fn needs_address(service: &Service) -> bool {
    let is_named_only = !matches!(service.registry, Registry::Kubernetes | Registry::External);
    is_named_only
        && *service.address == *UNSPECIFIED
        && service.cluster_addresses.is_empty()
        && !matches!(service.resolution, Resolution::Passthrough | Resolution::Alias)
        && !is_wildcard(&service.hostname)
}

/// Double hashing, as upstream does it.
fn free_slot(name: &ServiceKey, taken: &BTreeSet<u16>) -> Option<u16> {
    let hash = fnv1a(format!("{}/{}", name.namespace, name.hostname).as_bytes());
    let step = u64::from(PRIME - hash % PRIME);
    let probed = (0..PROBES).map(|i| (u64::from(hash) + u64::from(i) * step) % u64::from(SLOTS));
    let next = (0..SLOTS).map(|i| (u64::from(hash) + u64::from(i)) % u64::from(SLOTS));
    probed.chain(next).filter_map(|slot| u16::try_from(slot).ok()).find(|slot| !taken.contains(slot))
}

fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

fn ipv4(slot: u16) -> Ipv4Addr {
    let [third, fourth] = octets(slot);
    Ipv4Addr::new(240, 240, third, fourth)
}

fn ipv6(slot: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0xf0f0, u16::from_be_bytes(octets(slot)))
}

/// Slots of the IPv4 and IPv6 addresses of a service.
fn slots_of(service: &Service) -> impl Iterator<Item = u16> {
    let addresses = service.auto_ipv4.iter().chain(&service.auto_ipv6).chain([&service.address]);
    addresses.filter_map(|address| slot_of(address.parse().ok()?))
}

fn slot_of(address: IpAddr) -> Option<u16> {
    let (is_ours, [third, fourth]) = match address {
        IpAddr::V4(v4) => (v4.octets()[..2] == [240, 240], [v4.octets()[2], v4.octets()[3]]),
        IpAddr::V6(v6) => (v6.segments()[..7] == [0x2001, 2, 0, 0, 0, 0, 0xf0f0], v6.segments()[7].to_be_bytes()),
    };
    let (third, fourth) = (u32::from(third), u32::from(fourth));
    let is_ours = is_ours && third >= FIRST && (1..=PER_OCTET).contains(&fourth);
    is_ours.then(|| u16::try_from((third - FIRST) * PER_OCTET + fourth - 1).ok())?
}

fn octets(slot: u16) -> [u8; 2] {
    let (third, fourth) = (FIRST + u32::from(slot) / PER_OCTET, u32::from(slot) % PER_OCTET + 1);
    // Both fit in a byte: there are 128 times 254 slots.
    [third.to_be_bytes()[3], fourth.to_be_bytes()[3]]
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use super::{SLOTS, UNSPECIFIED, fnv1a, free_slot, ipv4, ipv6, slot_of};
    use crate::change::{Batch, Change, SourceId};

    use crate::config::{Meta, Object, Spec};

    use crate::names::ServiceKey;
    use crate::packed::Packed;
    use crate::port::{Port, Protocol};
    use crate::service::{Registry, Service};
    use crate::settings::Settings;
    use crate::snapshot::Snapshot;

    const CONSUL: Registry = Registry::Adapter { rank: 10, name: "Consul" };

    fn name(host: &str) -> ServiceKey {
        ServiceKey { hostname: host.into(), namespace: "default".into() }
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!((fnv1a(b""), fnv1a(b"a"), fnv1a(b"foobar")), (0x811c_9dc5, 0xe40c_292c, 0xbf9c_f968));
    }

    #[test]
    fn addresses_are_in_their_blocks_and_differ() {
        let last = u16::try_from(SLOTS - 1).unwrap();
        assert_eq!((ipv4(0).to_string(), ipv6(0).to_string()), ("240.240.128.1".into(), "2001:2::f0f0:8001".into()));
        assert_eq!(ipv4(last).to_string(), "240.240.255.254");
        assert!((0..=last).all(|slot| slot_of(ipv6(slot).into()) == Some(slot)));
        let all: BTreeSet<_> = (0..=last).map(ipv4).collect();
        assert_eq!(all.len(), SLOTS as usize);
        assert!((0..=last).all(|slot| slot_of(ipv4(slot).into()) == Some(slot)));
    }

    #[test]
    fn a_collision_is_resolved_and_all_slots_can_be_used() {
        let mut taken = BTreeSet::new();
        let first = free_slot(&name("a.mesh"), &taken).unwrap();
        taken.insert(first);
        assert_ne!(free_slot(&name("a.mesh"), &taken), Some(first));
        let last = u16::try_from(SLOTS - 1).unwrap();
        let all_but_one: BTreeSet<u16> = (0..=last).filter(|slot| *slot != 7).collect();
        assert_eq!(free_slot(&name("a.mesh"), &all_but_one), Some(7));
        assert_eq!(free_slot(&name("a.mesh"), &(0..=last).collect()), None);
    }

    fn service(host: &str) -> Service {
        let ports = vec![Port { name: "http".into(), number: 80, protocol: Protocol::Http }];
        Service::new(CONSUL, host.into(), "default".into(), host, ports)
    }

    /// A ServiceEntry from a store with statuses.
    fn entry(name: &str, hosts: Vec<String>, addresses: Vec<String>) -> Change {
        let port = api::istio::networking::v1alpha3::ServicePort {
            number: 80,
            name: "http".into(),
            protocol: "HTTP".into(),
            ..Default::default()
        };
        let resolution = api::istio::networking::v1alpha3::service_entry::Resolution::Dns as i32;
        let spec = api::istio::networking::v1alpha3::ServiceEntry {
            hosts,
            addresses,
            ports: vec![port],
            resolution,
            ..Default::default()
        };
        let meta = Meta { name: name.into(), namespace: "default".into(), keeps_status: true, ..Meta::default() };
        Change::Applied(Object { meta: Arc::new(meta), spec: Spec::ServiceEntry(Packed::from_message(spec)) })
    }

    fn addresses(snapshot: &Snapshot, of: Registry) -> BTreeMap<String, [String; 2]> {
        let of_registry = snapshot.services.iter().filter(|service| service.registry == of);
        let pair = |service: &Arc<Service>| {
            let [v4, v6] =
                [&service.auto_ipv4, &service.auto_ipv6].map(|a| a.as_deref().unwrap_or_default().to_owned());
            let own = if *service.address == *UNSPECIFIED { v4 } else { service.address.to_string() };
            (service.hostname.to_string(), [own, v6])
        };
        of_registry.map(pair).collect()
    }

    #[test]
    fn entries_and_registries_share_no_address() {
        let batch = |source: &str, changes| Batch { source: SourceId(source.into()), changes };
        let registered = (0..2_000).map(|n| Change::ServiceApplied(Arc::new(service(&format!("s{n}.consul")))));
        let (snapshot, _) = Snapshot::empty(Settings::default()).apply(vec![batch("Consul", registered.collect())]);
        let alone = addresses(&snapshot, CONSUL);
        let hosts = (0..2_000).map(|n| format!("h{n}.example")).collect();
        let (snapshot, _) = snapshot.apply(vec![batch("Kubernetes", vec![entry("many", hosts, Vec::new())])]);
        assert_eq!(addresses(&snapshot, CONSUL), alone, "an address moved");
        let entries = addresses(&snapshot, Registry::External);
        let all: BTreeSet<&String> = alone.values().chain(entries.values()).flatten().collect();
        assert_eq!(all.len(), 8_000, "two addresses of each family for each of 4,000 names");

        // An address that a user sets in an entry is taken from the registry service.
        let (moved, had) = alone.first_key_value().unwrap();
        let (snapshot, _) = snapshot
            .apply(vec![batch("Kubernetes", vec![entry("own", vec!["own.example".into()], vec![had[0].clone()])])]);
        let now = addresses(&snapshot, CONSUL);
        assert_ne!(now[moved], alone[moved]);
        let all: BTreeSet<&String> = now.values().map(|pair| &pair[0]).collect();
        assert!(all.len() == 2_000 && !all.contains(&had[0]));
    }
}
