//! The virtual addresses under which one client calls a service: those in the client's cluster and of its address
//! families, or those allocated by the mesh for services without an address.

use std::net::IpAddr;

use model::names::Str;
use model::proxy::ProxyKind;
use model::service::{Service, UNSPECIFIED};
use model::settings::Knobs;

use crate::client::ReadProxy;

/// The first address for this client; `UNSPECIFIED` if the service has none.
pub fn address<'a>(service: &'a Service, proxy: &ReadProxy, knobs: &Knobs) -> &'a Str {
    if let Some(own) = of_cluster(service, proxy).iter().find(|a| speaks(proxy, a)) {
        return own;
    }
    if uses_allocated(proxy, knobs) && *service.address == *UNSPECIFIED {
        let v4 = service.auto_ipv4.as_ref().filter(|_| proxy.has_ipv4());
        if let Some(allocated) = v4.or(service.auto_ipv6.as_ref().filter(|_| proxy.has_ipv6())) {
            return allocated;
        }
    }
    &service.address
}

/// Every address for this client.
pub fn addresses<'a>(service: &'a Service, proxy: &ReadProxy, knobs: &Knobs) -> Vec<&'a Str> {
    let mut found: Vec<&Str> = of_cluster(service, proxy).iter().collect();
    if found.is_empty() && uses_allocated(proxy, knobs) {
        found.extend(service.auto_ipv4.iter().chain(&service.auto_ipv6));
    }
    keep_dialled(&mut found, proxy, knobs);
    if !found.is_empty() {
        return found;
    }
    // An address of another cluster may be of a family that this client does not have. Addresses written in a
    // ServiceEntry are used whatever their family.
    let usable = service.cluster_addresses.is_empty() || speaks(proxy, &service.address);
    Some(&service.address).filter(|a| usable && !a.is_empty()).into_iter().collect()
}

/// Keeps addresses of the client's families. If it has both and dual stack is off, only those of the family
/// of the first address in the list.
pub fn keep_dialled(addresses: &mut Vec<&Str>, proxy: &ReadProxy, knobs: &Knobs) {
    if knobs.dual_stack && proxy.is_dual_stack() {
        return;
    }
    let first = addresses.first().and_then(|a| ip(a)).map(|ip| ip.is_ipv4());
    let both = proxy.has_ipv4() && proxy.has_ipv6();
    addresses.retain(|a| speaks(proxy, a) && (!both || ip(a).map(|ip| ip.is_ipv4()) == first));
}

fn of_cluster<'a>(service: &'a Service, proxy: &ReadProxy) -> &'a [Str] {
    if proxy.cluster.is_empty() {
        return &[];
    }
    service.cluster_addresses.iter().find(|(cluster, _)| *cluster == *proxy.cluster).map_or(&[], |(_, list)| list)
}

fn uses_allocated(proxy: &ReadProxy, knobs: &Knobs) -> bool {
    let allocated = proxy.flag("DNS_AUTO_ALLOCATE") || knobs.ip_auto_allocate;
    allocated && (proxy.flag("DNS_CAPTURE") || proxy.kind == ProxyKind::Waypoint)
}

/// Whether the client has an address of the same family. A CIDR block counts by its first address.
fn speaks(proxy: &ReadProxy, address: &str) -> bool {
    match ip(address) {
        Some(IpAddr::V4(_)) => proxy.has_ipv4(),
        Some(IpAddr::V6(_)) => proxy.has_ipv6(),
        None => false,
    }
}

fn ip(address: &str) -> Option<IpAddr> {
    address.split('/').next().unwrap_or(address).parse().ok()
}
