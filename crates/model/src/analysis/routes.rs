//! VirtualServices that refer to missing gateways, hosts, ports or subsets.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::istio::networking::v1alpha3::{Destination, RouteDestination, VirtualService};

use super::findings::Findings;
use super::{Finding, full_name, listed, similar_host, virtual_services};
use crate::config::problem::ProblemCode;
use crate::config::{Key, Kind, Object, Spec};
use crate::host::resolve_short_name;
use crate::names::{Hostname, Namespace};
use crate::service::{Service, Visibility};
use crate::snapshot::Snapshot;
use crate::suggest;

const MESH: &str = "mesh";

/// Gateways of a VirtualService must exist and have one of its hosts.
pub(super) fn gateways(snapshot: &Snapshot, found: &mut Findings) {
    for (object, spec) in virtual_services(snapshot) {
        for (index, name) in spec.gateways.iter().enumerate().filter(|(_, name)| *name != MESH) {
            let field = format!("spec.gateways[{index}]");
            let own = (object.meta.namespace.as_str(), name.as_str());
            let (namespace, plain) = name.split_once('/').unwrap_or(own);
            let key = Key { kind: Kind::Gateway, namespace: namespace.into(), name: plain.into() };
            let gateway = snapshot.objects.get(&key).or_else(|| snapshot.converted.objects.get(&key));
            let Some(Spec::Gateway(gateway)) = gateway.map(|gateway| &gateway.spec) else {
                let known: Vec<String> = gateway_names(snapshot, &object.meta.namespace).collect();
                if found.is_full(ProblemCode::MissingReference) {
                    continue;
                }
                if !found.may_compare(known.len()) {
                    return;
                }
                let hint = suggest::hint(name, known.iter().map(String::as_str));
                let message = format!("Referenced gateway not found: {name:?}{hint}");
                found.push(Finding::error(ProblemCode::MissingReference, object, message).at(field));
                continue;
            };
            let hosts = gateway.servers.iter().flat_map(|server| &server.hosts);
            if !found.may_compare(hosts.clone().count().saturating_mul(spec.hosts.len())) {
                return;
            }
            let mut for_us = hosts.filter_map(|host| host_for(host, namespace, &object.meta.namespace));
            let fits = |host: &str| spec.hosts.iter().any(|own| Hostname::from(own.as_str()).overlaps(host));
            if !for_us.any(fits) {
                let (hosts, own) = (listed(&spec.hosts), full_name(&object.meta));
                let message = format!(
                    "one or more host {hosts} defined in VirtualService {own} not found in Gateway {namespace}/{plain}."
                );
                found.push(Finding::warning(ProblemCode::GatewayWithoutHost, object, message).at(field));
            }
        }
    }
}

/// The gateways as a VirtualService of this namespace names them.
fn gateway_names<'a>(snapshot: &'a Snapshot, own: &'a Namespace) -> impl Iterator<Item = String> + 'a {
    snapshot.objects.of(Kind::Gateway).map(move |gateway| match gateway.meta.namespace == *own {
        true => gateway.meta.name.to_string(),
        false => full_name(&gateway.meta),
    })
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
pub(super) fn destinations(snapshot: &Snapshot, found: &mut Findings) {
    let wildcards: Vec<&Arc<Service>> = snapshot.services.iter().filter(|s| s.hostname.is_wildcard()).collect();
    for (object, spec) in virtual_services(snapshot) {
        for (what, field, destination) in all(spec) {
            let host = &destination.host;
            if !found.may_compare(wildcards.len()) {
                return;
            }
            let Some(service) = service_of(snapshot, object, host, &wildcards) else {
                let completed = resolve_short_name(host, &object.meta.namespace, &snapshot.settings.domain);
                if found.is_full(ProblemCode::MissingReference) {
                    continue;
                }
                if !found.may_compare(snapshot.services.len()) {
                    return;
                }
                let hint = similar_host(snapshot, host, &completed);
                let message = format!("Referenced {what} not found: {host:?}{hint}");
                let finding = Finding::error(ProblemCode::MissingReference, object, message);
                found.push(finding.at(format!("{field}.host")));
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
                found.push(Finding::error(ProblemCode::PortNeeded, object, message).at(field));
            } else if number != 0 && !is_there(number) {
                let address = format!("{host}:{number}");
                let message = format!("Referenced host:port not found: {address:?}");
                let finding = Finding::error(ProblemCode::MissingReference, object, message);
                found.push(finding.at(format!("{field}.port.number")));
            }
        }
    }
}

/// Destination subsets must be defined in a DestinationRule for the host.
pub(super) fn subsets(snapshot: &Snapshot, found: &mut Findings) {
    let domain = &snapshot.settings.domain;
    let mut known: BTreeSet<(Hostname, &str)> = BTreeSet::new();
    for object in snapshot.objects.of(Kind::DestinationRule) {
        if let Spec::DestinationRule(rule) = &object.spec {
            let host = resolve_short_name(&rule.host, &object.meta.namespace, domain);
            known.extend(rule.subsets.iter().map(|subset| (host.clone(), subset.name.as_str())));
        }
    }
    for (object, spec) in virtual_services(snapshot) {
        for (what, field, destination) in all(spec).filter(|(_, _, destination)| !destination.subset.is_empty()) {
            let host = resolve_short_name(&destination.host, &object.meta.namespace, domain);
            let fits = |(rule, subset): &(Hostname, &str)| *subset == destination.subset && host.is_subset_of(rule);
            if found.is_full(ProblemCode::MissingReference) {
                continue;
            }
            if !found.may_compare(known.len()) {
                return;
            }
            if !known.iter().any(fits) {
                let what = if what == "host" { "host+subset" } else { "mirror+subset" };
                let pair = format!("{}+{}", destination.host, destination.subset);
                let of_host = known.iter().filter(|(rule, _)| host.is_subset_of(rule)).map(|(_, subset)| *subset);
                let hint = suggest::hint(&destination.subset, of_host);
                let message = format!("Referenced {what} in destinationrule not found: {pair:?}{hint}");
                let finding = Finding::error(ProblemCode::MissingReference, object, message);
                found.push(finding.at(format!("{field}.subset")));
            }
        }
    }
}

/// All destinations, with upstream's name for their role and their path.
fn all(spec: &VirtualService) -> impl Iterator<Item = (&'static str, String, &Destination)> {
    let http = spec.http.iter().enumerate().flat_map(|(i, http)| {
        let routed = http.route.iter().enumerate().filter_map(move |(j, route)| {
            Some(("host", format!("spec.http[{i}].route[{j}].destination"), route.destination.as_ref()?))
        });
        let mirror = http.mirror.iter().map(move |mirror| ("mirror host", format!("spec.http[{i}].mirror"), mirror));
        let mirrors = http.mirrors.iter().enumerate().filter_map(move |(j, mirror)| {
            Some(("mirror host", format!("spec.http[{i}].mirrors[{j}].destination"), mirror.destination.as_ref()?))
        });
        routed.chain(mirror).chain(mirrors)
    });
    let tcp = spec.tcp.iter().enumerate().flat_map(|(i, tcp)| streams(format!("spec.tcp[{i}]"), &tcp.route));
    let tls = spec.tls.iter().enumerate().flat_map(|(i, tls)| streams(format!("spec.tls[{i}]"), &tls.route));
    http.chain(tcp).chain(tls)
}

fn streams(place: String, routes: &[RouteDestination]) -> impl Iterator<Item = (&'static str, String, &Destination)> {
    routes.iter().enumerate().filter_map(move |(j, route)| {
        Some(("host", format!("{place}.route[{j}].destination"), route.destination.as_ref()?))
    })
}

/// The service of a destination, if the namespace of the object may see it.
fn service_of<'a>(
    snapshot: &'a Snapshot,
    object: &Object,
    host: &str,
    wildcards: &[&'a Arc<Service>],
) -> Option<&'a Arc<Service>> {
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
    let wide = wildcards.iter().copied().filter(|service| host.is_subset_of(&service.hostname));
    exact.chain(wide).find(|service| is_visible(service))
}
