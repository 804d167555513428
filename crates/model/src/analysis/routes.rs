//! VirtualServices that refer to missing gateways, hosts, ports or subsets.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::istio::networking::v1alpha3::{Destination, VirtualService};

use super::{Finding, full_name, listed, virtual_services};
use crate::config::{Key, Kind, Object, Spec};
use crate::host::resolve_short_name;
use crate::names::Hostname;
use crate::service::{Service, Visibility};
use crate::snapshot::Snapshot;

const MESH: &str = "mesh";

/// Gateways of a VirtualService must exist and have one of its hosts.
pub(super) fn gateways(snapshot: &Snapshot, found: &mut Vec<Finding>) {
    for (object, spec) in virtual_services(snapshot) {
        for name in spec.gateways.iter().filter(|name| *name != MESH) {
            let own = (object.meta.namespace.as_str(), name.as_str());
            let (namespace, plain) = name.split_once('/').unwrap_or(own);
            let key = Key { kind: Kind::Gateway, namespace: namespace.into(), name: plain.into() };
            let gateway = snapshot.objects.get(&key).or_else(|| snapshot.converted.objects.get(&key));
            let Some(Spec::Gateway(gateway)) = gateway.map(|gateway| &gateway.spec) else {
                found.push(Finding::error("IST0101", object, format!("Referenced gateway not found: {name:?}")));
                continue;
            };
            let hosts = gateway.servers.iter().flat_map(|server| &server.hosts);
            let mut for_us = hosts.filter_map(|host| host_for(host, namespace, &object.meta.namespace));
            let fits = |host: &str| spec.hosts.iter().any(|own| Hostname::from(own.as_str()).overlaps(host));
            if !for_us.any(fits) {
                let (hosts, own) = (listed(&spec.hosts), full_name(&object.meta));
                let message = format!(
                    "one or more host {hosts} defined in VirtualService {own} not found in Gateway {namespace}/{plain}."
                );
                found.push(Finding::warning("IST0132", object, message));
            }
        }
    }
}

/// The host of a server entry, if VirtualServices of this namespace may use it.
fn host_for<'a>(host: &'a str, gateway: &str, route: &str) -> Option<&'a str> {
    match host.split_once('/') {
        None | Some(("*", _)) => Some(host.rsplit('/').next().unwrap_or(host)),
        Some((".", name)) => (gateway == route).then_some(name),
        Some((namespace, name)) => (namespace == route).then_some(name),
    }
}

/// Destination hosts must exist and have the port of the route; without a port, only one port.
pub(super) fn destinations(snapshot: &Snapshot, found: &mut Vec<Finding>) {
    for (object, spec) in virtual_services(snapshot) {
        for (what, destination) in all(spec) {
            let host = &destination.host;
            let Some(service) = service_of(snapshot, object, host) else {
                found.push(Finding::error("IST0101", object, format!("Referenced {what} not found: {host:?}")));
                continue;
            };
            let number = destination.port.as_ref().map_or(0, |port| port.number);
            let is_there = |number: u32| service.ports.iter().any(|port| u32::from(port.number) == number);
            if number == 0 && service.ports.len() > 1 {
                let ports = listed(service.ports.iter().map(|port| port.number));
                let message = format!(
                    "This VirtualService routes to a service {host:?} that exposes multiple ports {ports}. Specifying \
                     a port in the destination is required to disambiguate."
                );
                found.push(Finding::error("IST0112", object, message));
            } else if number != 0 && !is_there(number) {
                let address = format!("{host}:{number}");
                found.push(Finding::error("IST0101", object, format!("Referenced host:port not found: {address:?}")));
            }
        }
    }
}

/// Destination subsets must be defined in a DestinationRule for the host.
pub(super) fn subsets(snapshot: &Snapshot, found: &mut Vec<Finding>) {
    let domain = &snapshot.settings.domain;
    let mut known: BTreeSet<(Hostname, &str)> = BTreeSet::new();
    for object in snapshot.objects.of(Kind::DestinationRule) {
        if let Spec::DestinationRule(rule) = &object.spec {
            let host = resolve_short_name(&rule.host, &object.meta.namespace, domain);
            known.extend(rule.subsets.iter().map(|subset| (host.clone(), subset.name.as_str())));
        }
    }
    for (object, spec) in virtual_services(snapshot) {
        for (what, destination) in all(spec).filter(|(_, destination)| !destination.subset.is_empty()) {
            let host = resolve_short_name(&destination.host, &object.meta.namespace, domain);
            let fits = |(rule, subset): &(Hostname, &str)| *subset == destination.subset && host.is_subset_of(rule);
            if !known.iter().any(fits) {
                let what = if what == "host" { "host+subset" } else { "mirror+subset" };
                let pair = format!("{}+{}", destination.host, destination.subset);
                let message = format!("Referenced {what} in destinationrule not found: {pair:?}");
                found.push(Finding::error("IST0101", object, message));
            }
        }
    }
}

/// All destinations, with upstream's name for their role.
fn all(spec: &VirtualService) -> impl Iterator<Item = (&'static str, &Destination)> {
    let http = spec.http.iter().flat_map(|http| {
        let routed = http.route.iter().filter_map(|route| route.destination.as_ref()).map(|d| ("host", d));
        let mirrors = http.mirrors.iter().filter_map(|mirror| mirror.destination.as_ref());
        routed.chain(http.mirror.iter().chain(mirrors).map(|d| ("mirror host", d)))
    });
    let tcp = spec.tcp.iter().flat_map(|tcp| &tcp.route).filter_map(|route| route.destination.as_ref());
    let tls = spec.tls.iter().flat_map(|tls| &tls.route).filter_map(|route| route.destination.as_ref());
    http.chain(tcp.chain(tls).map(|d| ("host", d)))
}

/// The service of a destination, if the namespace of the object may see it.
fn service_of<'a>(snapshot: &'a Snapshot, object: &Object, host: &str) -> Option<&'a Arc<Service>> {
    let host = resolve_short_name(host, &object.meta.namespace, &snapshot.settings.domain);
    let is_visible = |service: &Service| {
        service.export_to.is_unset()
            || service.export_to.iter().any(|visibility| match visibility {
                Visibility::Public => true,
                Visibility::Private => service.namespace == object.meta.namespace,
                Visibility::None => false,
                Visibility::Namespace(namespace) => *namespace == object.meta.namespace,
            })
    };
    let exact = snapshot.services.owners(&host);
    let wide = snapshot.services.iter().filter(|s| s.hostname.is_wildcard() && host.is_subset_of(&s.hostname));
    exact.chain(wide).find(|service| is_visible(service))
}
