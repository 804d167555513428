//! The locality of nodes and pods from their labels, and the network of an address.

use std::net::IpAddr;

use api::istio::mesh::v1alpha1::network::network_endpoints::Ne;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use model::endpoint::Locality;
use model::labels::{Label, Labels};
use model::names::{ClusterId, NetworkId, Str};
use model::settings::Networks;

use super::interner::Interner;

pub(super) const NETWORK: &str = "topology.istio.io/network";
const REGION: [&str; 2] = ["topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"];
const ZONE: [&str; 2] = ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"];
const SUB_ZONE: &str = "topology.istio.io/subzone";
const OWN_LOCALITY: [&str; 2] = ["topology.istio.io/locality", "istio-locality"];

/// The locality from a node's labels.
pub(super) fn of_node(meta: &ObjectMeta, interner: &mut Interner) -> Locality {
    let mut first = |keys: &[&str]| -> Option<Str> {
        let labels = meta.labels.as_ref()?;
        let value = keys.iter().find_map(|key| labels.get(*key).filter(|v| !v.is_empty()))?;
        Some(interner.text(value))
    };
    Locality { region: first(&REGION), zone: first(&ZONE), sub_zone: first(&[SUB_ZONE]) }
}

/// The locality from a pod's own label, which wins over its node's.
pub(super) fn of_pod(labels: &Labels) -> Option<Locality> {
    let label = OWN_LOCALITY.iter().find_map(|key| labels.get(key))?;
    if label.is_empty() {
        return None;
    }
    // Label values cannot contain slashes, so dots are used instead.
    Some(if label.contains('/') { Locality::parse(label) } else { Locality::parse(&label.replace('.', "/")) })
}

/// Adds location labels. `label` creates them.
pub(super) fn with_location_labels(
    labels: &Labels,
    location: &WorkloadLocation<'_>,
    label: impl FnMut((&str, &str)) -> Label,
) -> Labels {
    let all = [
        (REGION[0], location.locality.region()),
        (ZONE[0], location.locality.zone()),
        (SUB_ZONE, location.locality.sub_zone()),
        ("topology.istio.io/cluster", location.cluster),
        ("kubernetes.io/hostname", location.node),
    ];
    let network = (labels.get(NETWORK).is_none_or(|n| n.is_empty())).then_some((NETWORK, location.network));
    let known = all.into_iter().chain(network).filter(|(_, value)| !value.is_empty());
    labels.shared().cloned().chain(known.map(label)).collect()
}

/// The location that `with_location_labels` adds.
pub(super) struct WorkloadLocation<'a> {
    pub(super) locality: &'a Locality,
    pub(super) cluster: &'a str,
    pub(super) node: &'a str,
    pub(super) network: &'a str,
}

/// The network that meshNetworks assigns to an address of this cluster: that of the whole cluster (`fromRegistry`), or of
/// the widest CIDR block that contains the address, as in upstream.
pub(super) fn network_of(networks: &Networks, cluster: &ClusterId, address: &str) -> NetworkId {
    let blocks = || networks.networks.iter().flat_map(|(id, n)| n.endpoints.iter().map(move |e| (id, e)));
    let of_cluster = |ne: &Option<Ne>| matches!(ne, Some(Ne::FromRegistry(name)) if *name == **cluster);
    if let Some((id, _)) = blocks().find(|(_, e)| of_cluster(&e.ne)) {
        return id.as_str().into();
    }
    let Ok(ip) = address.parse::<IpAddr>() else { return NetworkId::default() };
    let containing = blocks().filter_map(|(id, e)| match &e.ne {
        Some(Ne::FromCidr(text)) => parse_block(text).filter(|block| contains(*block, ip)).map(|b| (b.1, id)),
        _ => None,
    });
    containing.min_by_key(|(bits, _)| *bits).map(|(_, id)| id.as_str().into()).unwrap_or_default()
}

fn parse_block(text: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = text.split_once('/')?;
    Some((address.parse().ok()?, bits.parse().ok()?))
}

fn contains((base, bits): (IpAddr, u8), ip: IpAddr) -> bool {
    fn same(a: u128, b: u128, width: u32, bits: u8) -> bool {
        let shift = width.saturating_sub(u32::from(bits));
        shift >= width || (a >> shift) == (b >> shift)
    }
    match (base, ip) {
        (IpAddr::V4(a), IpAddr::V4(b)) => same(a.to_bits().into(), b.to_bits().into(), 32, bits),
        (IpAddr::V6(a), IpAddr::V6(b)) => same(a.to_bits(), b.to_bits(), 128, bits),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{contains, of_pod, parse_block};

    #[test]
    fn blocks_contain_their_addresses() {
        let check = |block: &str, ip: &str| contains(parse_block(block).unwrap(), ip.parse().unwrap());
        assert!(check("10.0.0.0/8", "10.200.1.1") && !check("10.0.0.0/8", "11.0.0.1"));
        assert!(check("0.0.0.0/0", "1.2.3.4") && !check("0.0.0.0/0", "::1"));
        assert!(check("fd00::/64", "fd00::7") && check("10.0.0.1/32", "10.0.0.1"));
    }

    #[test]
    fn dots_of_the_label_are_read_as_slashes() {
        let of = |value: &str| of_pod(&[("istio-locality", value)].into_iter().collect()).map(|l| l.to_string());
        assert_eq!(of("r.z.s").as_deref(), Some("r/z/s"));
        assert_eq!(of("r/z").as_deref(), Some("r/z"));
        assert_eq!(of(""), None);
    }
}
