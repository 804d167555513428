//! Maps instances to a service of the mesh with its endpoints. Pure functions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use model::endpoint::{Endpoint, Health, Locality};
use model::names::{ClusterId, Namespace, Str};
use model::port::{Port, Protocol};
use model::problem::{Problem, Subject};
use model::service::{Registry, Resolution, Service};

use super::RegisteredInstance;
use crate::registry::diff::ServiceListing;
use crate::registry::normalize;

const NETWORK_LABEL: &str = "topology.istio.io/network";

/// How the instances of a registry are mapped.
#[derive(Clone, Debug)]
pub(in crate::registry) struct MappingOptions {
    pub(in crate::registry) registry: Registry,
    /// Template of host names: `{service}` is replaced.
    pub(in crate::registry) host: String,
    /// The mesh namespace of the services.
    pub(in crate::registry) namespace: String,
    /// The service port, in place of the port of the instances.
    pub(in crate::registry) service_port: Option<u16>,
    /// Protocol of instances without one; empty for protocol detection.
    pub(in crate::registry) protocol: String,
    pub(in crate::registry) trust_domain: String,
    pub(in crate::registry) cluster: ClusterId,
}

/// The service with its endpoints, and a problem with it. `None` where the name cannot be used.
pub(super) fn listing(
    name: &Str,
    instances: &[&RegisteredInstance],
    options: &MappingOptions,
) -> (Option<ServiceListing>, Option<Problem>) {
    let about = || Subject::registry_service(options.registry, name.as_str());
    let Some(hostname) = normalize::hostname(&options.host, &[("service", name)]) else {
        let message = "the name cannot be used as a host name; the service is left out";
        return (None, Some(Problem::error(about(), message)));
    };
    let namespace = Namespace::from(options.namespace.as_str());
    let mut ports: BTreeMap<u16, Port> = BTreeMap::new();
    let (mut endpoints, mut clash) = (Vec::new(), None);
    for instance in instances {
        let number = options.service_port.unwrap_or(instance.port);
        let protocol = protocol(instance, options);
        let port = ports.entry(number).or_insert_with(|| Port { name: port_name(protocol, number), number, protocol });
        if port.protocol != protocol {
            let (one, other) = (port.protocol.as_str(), protocol.as_str());
            clash = Some(format!("port {number} is {one} on one instance and {other} on another; using {one}"));
        }
        let (service_port, port) = (port.name.clone(), u32::from(instance.port));
        let template = endpoint(instance, options, &namespace);
        endpoints.push(Endpoint { service_port, service_port_number: number, port, ..template });
    }
    let ports = ports.into_values().collect();
    let mut service = Service::new(options.registry, hostname, namespace, name.as_str(), ports);
    if endpoints.iter().any(|endpoint| endpoint.address().parse::<IpAddr>().is_err()) {
        service.resolution = Resolution::Dns;
    }
    let accounts: BTreeSet<Str> = endpoints.iter().map(|endpoint| endpoint.service_account.clone()).collect();
    service.service_accounts = accounts.into_iter().filter(|account| !account.is_empty()).collect();
    let listing = ServiceListing { service: Arc::new(service), endpoints: normalize::in_order(endpoints).into() };
    (Some(listing), clash.map(|message| Problem::warning(about(), message)))
}

/// The protocol of an instance: by its metadata, by its registration, or by the options.
fn protocol(instance: &RegisteredInstance, options: &MappingOptions) -> Protocol {
    let set = ["istio.protocol", "protocol"].into_iter().find_map(|key| instance.metadata.get(key));
    let words = set.map(String::as_str).into_iter().chain([instance.protocol.as_str(), options.protocol.as_str()]);
    match words.into_iter().find(|word| !word.is_empty()).unwrap_or_default() {
        // Protocols of Dubbo: Triple is compatible with gRPC.
        "tri" | "triple" => Protocol::Grpc,
        "rest" | "hessian" | "webservice" => Protocol::Http,
        "dubbo" | "thrift" | "rmi" | "mucp" => Protocol::Tcp,
        known => Protocol::parse(known),
    }
}

fn port_name(protocol: Protocol, number: u16) -> Str {
    let word = match protocol {
        Protocol::Unknown => "port".to_owned(),
        known => known.as_str().to_ascii_lowercase(),
    };
    format!("{word}-{number}").into()
}

/// The instance as an endpoint without a port.
fn endpoint(instance: &RegisteredInstance, options: &MappingOptions, namespace: &Namespace) -> Endpoint {
    let value = |key: &str| instance.metadata.get(key).map(String::as_str);
    let locality =
        Locality::parse(&format!("{}/{}", value("region").unwrap_or_default(), value("zone").unwrap_or_default()));
    let labels = normalize::labels(instance.metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    let account = value("service-account").map(|account| {
        let namespace = value("namespace").unwrap_or(&options.namespace);
        format!("spiffe://{}/ns/{namespace}/sa/{account}", options.trust_domain)
    });
    Endpoint {
        tls: normalize::tls_mode(&labels, account.is_some()),
        network: labels.get(NETWORK_LABEL).map(|network| network.as_str().into()).unwrap_or_default(),
        labels: normalize::topology(labels, &locality, &options.cluster),
        locality,
        weight: if instance.weight == 1 { 0 } else { instance.weight },
        service_account: account.unwrap_or_default().into(),
        workload_name: instance.id.as_str().into(),
        health: if instance.is_disabled { Health::Unhealthy } else { Health::Healthy },
        ..normalize::endpoint(&instance.address, namespace, &options.cluster)
    }
}
