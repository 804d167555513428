//! Maps Eureka instances to services of the mesh. Pure functions.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use model::endpoint::{Endpoint, Health, Locality};
use model::names::{ClusterId, Namespace, Str};
use model::port::{Port, Protocol};
use model::problem::{Problem, Subject};
use model::service::{Registry, Resolution, Service};

use super::options::{EurekaOptions, ServicePer};
use super::schema::{EurekaInstance, PortField};
use crate::registry::diff::ServiceListing;
use crate::registry::normalize;

/// The name and merge rank of the registry.
pub(super) const REGISTRY: Registry = Registry::Adapter { rank: 20, name: "Eureka" };

const NETWORK_LABEL: &str = "topology.istio.io/network";

/// All services of these instances by their name in Eureka, and their problems.
pub(super) fn listings<'a>(
    instances: impl Iterator<Item = &'a EurekaInstance>,
    options: &EurekaOptions,
    cluster: &ClusterId,
) -> (BTreeMap<Str, ServiceListing>, Vec<Problem>) {
    let mut by_name: BTreeMap<Str, Vec<&EurekaInstance>> = BTreeMap::new();
    for instance in instances {
        for name in names(instance, options.service_per) {
            by_name.entry(name).or_default().push(instance);
        }
    }
    let mut problems = Vec::new();
    let listed = by_name.into_iter().filter_map(|(name, instances)| {
        let listing = listing(&name, &instances, options, cluster);
        if listing.is_none() {
            let about = Subject::registry_service(REGISTRY, name.as_str());
            problems.push(Problem::error(about, "the name cannot be used as a host name; the service is left out"));
        }
        Some((name, listing?))
    });
    let listed = listed.collect();
    (listed, problems)
}

fn names(instance: &EurekaInstance, per: ServicePer) -> Vec<Str> {
    let text = match per {
        ServicePer::App => &instance.app,
        ServicePer::VipAddress => &instance.vip_address,
        ServicePer::HostName => &instance.host_name,
    };
    // An instance may have several VIP addresses, some with a port.
    let plain = |name: &str| name.trim().split(':').next().unwrap_or_default().to_ascii_lowercase();
    text.split(',').map(plain).filter(|name| !name.is_empty()).map(Str::from).collect()
}

fn listing(
    name: &str,
    instances: &[&EurekaInstance],
    options: &EurekaOptions,
    cluster: &ClusterId,
) -> Option<ServiceListing> {
    let template = if options.service_per == ServicePer::HostName { "{name}" } else { &options.host };
    let hostname = normalize::hostname(template, &[("name", name)])?;
    let namespace = Namespace::from(options.namespace.as_str());
    let mut ports: BTreeMap<u16, Port> = BTreeMap::new();
    let mut endpoints = Vec::new();
    // Clients call a service on one port, also where its instances listen on several.
    let lowest = |protocol: Protocol| {
        let same = instances.iter().filter(|instance| protocol_of(instance, options) == protocol);
        same.filter_map(|instance| number(&instance.port)).min()
    };
    let mut lowest_ports: BTreeMap<&'static str, Option<u16>> = BTreeMap::new();
    for instance in instances {
        let Some(template) = endpoint(instance, options, &namespace, cluster) else { continue };
        let protocol = protocol_of(instance, options);
        let shared = *lowest_ports.entry(protocol.as_str()).or_insert_with(|| lowest(protocol));
        for (number, target, protocol) in targets(instance, protocol, options.service_port.or(shared)) {
            let port =
                ports.entry(number).or_insert_with(|| Port { name: port_name(protocol, number), number, protocol });
            let (service_port, port) = (port.name.clone(), u32::from(target));
            endpoints.push(Endpoint { service_port, service_port_number: number, port, ..template.clone() });
        }
    }
    let ports = ports.into_values().collect();
    let mut service = Service::new(REGISTRY, hostname, namespace.clone(), name, ports);
    if endpoints.iter().any(|e| e.address().parse::<IpAddr>().is_err()) {
        service.resolution = Resolution::Dns;
    }
    let mut accounts: Vec<Str> = endpoints.iter().map(|e| e.service_account.clone()).collect();
    accounts.sort();
    accounts.dedup();
    accounts.retain(|account| !account.is_empty());
    service.service_accounts = accounts;
    Some(ServiceListing { service: Arc::new(service), endpoints: normalize::in_order(endpoints).into() })
}

/// Service port, instance port and protocol of each enabled port.
fn targets(instance: &EurekaInstance, protocol: Protocol, shared: Option<u16>) -> Vec<(u16, u16, Protocol)> {
    let plain = number(&instance.port).map(|port| (shared.unwrap_or(port), port, protocol));
    let secure = number(&instance.secure_port).map(|port| (port, port, Protocol::Https));
    plain.into_iter().chain(secure).collect()
}

/// The protocol of an instance's port that is not secure.
fn protocol_of(instance: &EurekaInstance, options: &EurekaOptions) -> Protocol {
    let protocol = instance.metadata.get("istio.protocol").or_else(|| instance.metadata.get("protocol"));
    Protocol::parse(protocol.map_or(options.protocol.as_str(), String::as_str))
}

fn number(field: &Option<PortField>) -> Option<u16> {
    field.as_ref().and_then(PortField::number)
}

fn port_name(protocol: Protocol, number: u16) -> Str {
    let word = match protocol {
        Protocol::Unknown => "port".to_owned(),
        known => known.as_str().to_ascii_lowercase(),
    };
    format!("{word}-{number}").into()
}

/// The instance as an endpoint without a port; `None` where it has no address.
fn endpoint(
    instance: &EurekaInstance,
    options: &EurekaOptions,
    namespace: &Namespace,
    cluster: &ClusterId,
) -> Option<Endpoint> {
    let address = [&instance.ip_addr, &instance.host_name].into_iter().find(|address| !address.is_empty())?;
    let locality = locality(instance);
    let labels = normalize::labels(instance.metadata.iter().map(|(k, v)| (k.as_str(), v.as_str())));
    let account = instance.metadata.get("service-account").map(|account| {
        let namespace = instance.metadata.get("namespace").map_or(options.namespace.as_str(), String::as_str);
        format!("spiffe://{}/ns/{namespace}/sa/{account}", options.trust_domain)
    });
    let health = if instance.effective_status() == "UP" { Health::Healthy } else { Health::Unhealthy };
    Some(Endpoint {
        tls: normalize::tls_mode(&labels, account.is_some()),
        network: labels.get(NETWORK_LABEL).map(|n| n.as_str().into()).unwrap_or_default(),
        weight: instance.metadata.get("weight").and_then(|w| w.parse().ok()).filter(|w| *w != 1).unwrap_or(0),
        labels: normalize::topology(labels, &locality, cluster),
        locality,
        service_account: account.unwrap_or_default().into(),
        workload_name: instance.id().into(),
        health,
        ..normalize::endpoint(address, namespace, cluster)
    })
}

/// Region and zone from the instance metadata, else from the Amazon data center info.
fn locality(instance: &EurekaInstance) -> Locality {
    let amazon_zone = instance.data_center_info.metadata.get("availability-zone").map(String::as_str);
    let zone = instance.metadata.get("zone").map(String::as_str).or(amazon_zone).unwrap_or_default();
    // Zone eu-west-1a belongs to region eu-west-1.
    let amazon_region = amazon_zone.map(|zone| zone.trim_end_matches(|c: char| c.is_ascii_lowercase()));
    let region = instance.metadata.get("region").map(String::as_str).or(amazon_region).unwrap_or_default();
    Locality::parse(&format!("{region}/{zone}"))
}

#[cfg(test)]
mod tests;
