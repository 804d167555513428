//! Maps the instances of a Consul service to a service of the mesh with its endpoints. Pure functions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use model::endpoint::{Endpoint, Health, Locality};
use model::names::{ClusterId, Namespace, Str};
use model::port::{Port, Protocol};
use model::problem::{Problem, Subject};
use model::service::{Registry, Resolution, Service};

use super::options::{ConsulOptions, Profile};
use super::schema::{ConsulInstance, HealthCheck};
use crate::registry::diff::ServiceListing;
use crate::registry::normalize;

/// The name and merge rank of the registry.
pub(super) const REGISTRY: Registry = Registry::Adapter { rank: 10, name: "Consul" };

/// The service of the Consul servers themselves.
pub(super) const OWN_SERVICE: &str = "consul";
const MAINTENANCE: [&str; 2] = ["_node_maintenance", "_service_maintenance"];
const NETWORK_LABEL: &str = "topology.istio.io/network";

/// The service with its endpoints, and a problem with it. `None` where no instance is selected or the name cannot be
/// used.
pub(super) fn listing(
    name: &str,
    mut instances: Vec<ConsulInstance>,
    options: &ConsulOptions,
    cluster: &ClusterId,
) -> (Option<ServiceListing>, Option<Problem>) {
    instances.retain(|i| is_selected(i, options));
    instances.sort_by(|a, b| (&a.node.node, &a.service.id).cmp(&(&b.node.node, &b.service.id)));
    let Some(first) = instances.first() else { return (None, None) };
    let values = [
        ("service", name),
        ("datacenter", &first.node.datacenter),
        ("namespace", &first.service.namespace),
        ("partition", &first.service.partition),
    ];
    let Some(hostname) = normalize::hostname(&options.host, &values) else {
        let problem = Problem::error(
            Subject::registry_service(REGISTRY, name),
            "the name cannot be used as a host name; the service is left out",
        );
        return (None, Some(problem));
    };
    let namespace = Namespace::from(options.namespace.as_str());
    let mut ports = ServicePorts::of(&instances, options);
    let mut endpoints = Vec::new();
    for instance in &instances {
        let Some(template) = endpoint(instance, options, &namespace, cluster) else { continue };
        for target in targets(instance, options) {
            let (service_port, number) = ports.add(&target, options);
            let port = u32::from(target.port);
            endpoints.push(Endpoint { service_port, service_port_number: number, port, ..template.clone() });
        }
    }
    let mut service = Service::new(REGISTRY, hostname, namespace.clone(), name, ports.list());
    service.mesh_external = instances.iter().any(|i| i.service.meta.contains_key("external"));
    if endpoints.iter().any(|e| e.address().parse::<IpAddr>().is_err()) {
        service.resolution = Resolution::Dns;
    }
    let accounts: BTreeSet<Str> = endpoints.iter().map(|e| e.service_account.clone()).collect();
    service.service_accounts = accounts.into_iter().filter(|account| !account.is_empty()).collect();
    let problem = ports.clash.map(|clash| Problem::warning(Subject::registry_service(REGISTRY, name), clash));
    (Some(ServiceListing { service: Arc::new(service), endpoints: normalize::in_order(endpoints).into() }), problem)
}

fn is_selected(instance: &ConsulInstance, options: &ConsulOptions) -> bool {
    let is_application = instance.service.kind.is_empty() || options.proxies;
    is_application && (options.tag.is_empty() || instance.service.tags.contains(&options.tag))
}

/// One port of an instance.
struct InstancePort {
    name: String,
    port: u16,
    protocol: Option<String>,
}

fn targets(instance: &ConsulInstance, options: &ConsulOptions) -> Vec<InstancePort> {
    let service = &instance.service;
    let protocol = service.meta.get("istio.protocol").or_else(|| service.meta.get("protocol"));
    // Pilot before 1.1 read the protocol from the node.
    let protocol = protocol.or_else(|| instance.node.meta.get("protocol")).cloned();
    let protocol = protocol.or_else(|| (!options.protocol.is_empty()).then(|| options.protocol.clone()));
    if service.ports.is_empty() {
        let tagged = service.tagged_addresses.get(&options.tagged_address).map(|a| a.port).filter(|p| *p > 0);
        let port = tagged.unwrap_or(service.port);
        return Vec::from_iter((port > 0).then_some(InstancePort { name: String::new(), port, protocol }));
    }
    // Port names begin with their protocol, as in Kubernetes.
    let of_name = |name: &str| {
        let word = name.split('-').next().unwrap_or_default();
        Some(word.to_owned()).filter(|word| Protocol::parse(word) != Protocol::Unknown)
    };
    let named = service.ports.iter().map(|port| InstancePort {
        name: port.name.clone(),
        port: port.port,
        protocol: of_name(&port.name).or_else(|| protocol.clone()),
    });
    named.collect()
}

/// The ports of a service, collected from its instances.
#[derive(Default)]
struct ServicePorts {
    by_number: BTreeMap<u16, Port>,
    clash: Option<String>,
    /// The service port of instances of one protocol: the lowest of theirs.
    shared: BTreeMap<Option<String>, u16>,
}

impl ServicePorts {
    /// Instances of a scheduler listen on different ports, and clients call the service on one. Pilot 1.1 to 1.7 made a
    /// service port of each.
    fn of(instances: &[ConsulInstance], options: &ConsulOptions) -> ServicePorts {
        let mut ports = ServicePorts::default();
        if options.profile == Profile::Compat {
            return ports;
        }
        let targets = instances.iter().flat_map(|instance| targets(instance, options));
        for target in targets.filter(|target| target.name.is_empty()) {
            let lowest = ports.shared.entry(target.protocol).or_insert(target.port);
            *lowest = target.port.min(*lowest);
        }
        ports
    }

    /// Adds the port of an instance. Returns name and number of the service port for it.
    fn add(&mut self, target: &InstancePort, options: &ConsulOptions) -> (Str, u16) {
        let shared = || self.shared.get(&target.protocol).copied();
        let chosen = if target.name.is_empty() { options.service_port.or_else(shared) } else { None };
        let number = chosen.unwrap_or(target.port);
        let fallback = if options.profile == Profile::Compat { "tcp" } else { "" };
        let word = target.protocol.as_deref().unwrap_or(fallback);
        let protocol = Protocol::parse(word);
        if let Some(known) = self.by_number.get(&number) {
            if known.protocol != protocol && self.clash.is_none() {
                let (one, other) = (known.protocol.as_str(), protocol.as_str());
                self.clash =
                    Some(format!("port {number} is {one} on one instance and {other} on another; using {one}"));
            }
            return (known.name.clone(), number);
        }
        let name = self.name(target, word, number, options.profile);
        self.by_number.insert(number, Port { name: name.clone(), number, protocol });
        (name, number)
    }

    fn name(&self, target: &InstancePort, word: &str, number: u16, profile: Profile) -> Str {
        if !target.name.is_empty() {
            return target.name.as_str().into();
        }
        let word = if word.is_empty() { "port" } else { word };
        let is_taken = self.by_number.values().any(|port| &*port.name == word);
        if profile == Profile::Compat && !is_taken { word.into() } else { format!("{word}-{number}").into() }
    }

    fn list(&self) -> Vec<Port> {
        self.by_number.values().cloned().collect()
    }
}

/// The instance as an endpoint without a port; `None` where it has no address.
fn endpoint(
    instance: &ConsulInstance,
    options: &ConsulOptions,
    namespace: &Namespace,
    cluster: &ClusterId,
) -> Option<Endpoint> {
    let service = &instance.service;
    let address = address(instance, &options.tagged_address)?;
    let locality = locality(instance, options.profile);
    let labels = labels(instance, options.profile);
    let account = account(instance, options);
    let has_account = account.is_some() && options.profile == Profile::Standard;
    let (health, weight) = health(&instance.checks, instance, options.warning_serves);
    Some(Endpoint {
        tls: normalize::tls_mode(&labels, has_account),
        network: labels.get(NETWORK_LABEL).map(|n| n.as_str().into()).unwrap_or_default(),
        labels: normalize::topology(labels, &locality, cluster),
        locality,
        weight,
        service_account: account.unwrap_or_default().into(),
        workload_name: service.id.as_str().into(),
        health,
        node_name: instance.node.node.as_str().into(),
        ..normalize::endpoint(address, namespace, cluster)
    })
}

fn address<'a>(instance: &'a ConsulInstance, tag: &str) -> Option<&'a str> {
    let (node, service) = (&instance.node, &instance.service);
    let candidates = [
        service.tagged_addresses.get(tag).map(|a| a.address.as_str()),
        Some(service.address.as_str()),
        node.tagged_addresses.get(tag).map(String::as_str),
        Some(node.address.as_str()),
    ];
    candidates.into_iter().flatten().find(|address| !address.is_empty())
}

fn locality(instance: &ConsulInstance, profile: Profile) -> Locality {
    let (node, service) = (&instance.node, &instance.service);
    if profile == Profile::Compat {
        return Locality::parse(&node.datacenter);
    }
    if let Some(known) = service.locality.as_ref().or(node.locality.as_ref()) {
        return Locality::parse(&format!("{}/{}", known.region, known.zone));
    }
    let value = |key: &str| service.meta.get(key).or_else(|| node.meta.get(key)).map(String::as_str);
    let region = value("region").unwrap_or(&node.datacenter);
    Locality::parse(&format!("{region}/{}", value("zone").unwrap_or_default()))
}

fn labels(instance: &ConsulInstance, profile: Profile) -> BTreeMap<String, String> {
    let tags = instance.service.tags.iter().map(String::as_str);
    let from_tags = tags.filter_map(|tag| match profile {
        Profile::Compat => tag.split_once('|'),
        Profile::Standard => tag.split_once('|').or_else(|| tag.split_once('=')),
    });
    let meta = instance.service.meta.iter().map(|(k, v)| (k.as_str(), v.as_str()));
    let meta = meta.filter(|_| profile == Profile::Standard);
    normalize::labels(meta.chain(from_tags))
}

fn account(instance: &ConsulInstance, options: &ConsulOptions) -> Option<String> {
    let meta = &instance.service.meta;
    let (namespace, account) = match options.profile {
        Profile::Compat => ("default", "default"),
        Profile::Standard => {
            let namespace = meta.get("namespace").map_or(options.namespace.as_str(), String::as_str);
            (namespace, meta.get("service-account")?.as_str())
        }
    };
    Some(format!("spiffe://{}/ns/{namespace}/sa/{account}", options.trust_domain))
}

/// Health and weight of an instance. Maintenance mode or a critical check, of the node or of the instance, makes it
/// unhealthy. The weight is 0 where none is set.
fn health(checks: &[HealthCheck], instance: &ConsulInstance, warning_serves: bool) -> (Health, u32) {
    let weights = instance.service.weights;
    let weight = |of: fn(&super::schema::Weights) -> u32| weights.as_ref().map(of).filter(|w| *w != 1).unwrap_or(0);
    let is_failing = |check: &HealthCheck| {
        let id = check.check_id.split(':').next().unwrap_or_default();
        MAINTENANCE.contains(&id) || !matches!(check.status.as_str(), "passing" | "warning")
    };
    if checks.iter().any(is_failing) {
        return (Health::Unhealthy, 0);
    }
    if checks.iter().any(|check| check.status == "warning") {
        return if warning_serves { (Health::Healthy, weight(|w| w.warning)) } else { (Health::Unhealthy, 0) };
    }
    (Health::Healthy, weight(|w| w.passing))
}

#[cfg(test)]
mod tests;
