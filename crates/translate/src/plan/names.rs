//! The DNS name table for the agent's DNS proxy: every host visible to the client and its addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::endpoint::{Endpoint, Health};
use model::names::{Namespace, Str};
use model::service::{Registry, Resolution, Service, UNSPECIFIED};
use scope::View;
use scope::addresses::addresses;

/// Suffix of multi-cluster services; the agent must not add short names for them.
const CLUSTER_SET_SUFFIX: &str = ".clusterset.local";

/// The DNS name table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NameTablePlan {
    pub names: BTreeMap<Str, NameEntry>,
}

/// One entry of the name table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NameEntry {
    pub addresses: Vec<Str>,
    pub registry: Registry,
    /// Kubernetes services only: name and namespace, from which the agent derives short names.
    pub short_name: Option<(Str, Namespace)>,
}

/// The table of one client.
pub(crate) fn name_table(view: &View) -> NameTablePlan {
    let mut table = NameTablePlan::default();
    for service in view.egress.iter().flat_map(|listener| &listener.services) {
        let found = addresses(service, &view.proxy, &view.settings.knobs);
        let has_none = found.iter().any(|a| ***a == *UNSPECIFIED);
        let found = if has_none {
            table.endpoint_addresses(view, service)
        } else {
            found.into_iter().filter(|a| is_ip(a)).cloned().collect()
        };
        if !found.is_empty() {
            table.add(service, found);
        }
    }
    table
}

impl NameTablePlan {
    /// Adds a service. A Kubernetes service replaces entries of other registries for its host; addresses of services of
    /// other registries are merged.
    fn add(&mut self, service: &Service, addresses: Vec<Str>) {
        let of_kubernetes = service.registry == Registry::Kubernetes;
        let fresh = || NameEntry {
            addresses: addresses.clone(),
            registry: service.registry,
            short_name: (of_kubernetes && !service.hostname.ends_with(CLUSTER_SET_SUFFIX))
                .then(|| (service.name.clone(), service.namespace.clone())),
        };
        match self.names.get_mut(service.hostname.text()) {
            None => {
                self.names.insert(service.hostname.text().clone(), fresh());
            }
            Some(known) if known.registry == Registry::Kubernetes => {}
            Some(known) if of_kubernetes => *known = fresh(),
            Some(known) => known.addresses.extend(addresses),
        }
    }

    /// Addresses of a headless service: its endpoints in the client's network and cluster. Also adds an entry for each pod
    /// with a host name.
    fn endpoint_addresses(&mut self, view: &View, service: &Service) -> Vec<Str> {
        let Some(first) = service.ports.first().filter(|_| service.resolution == Resolution::Passthrough) else {
            return Vec::new();
        };
        let proxy = &view.proxy;
        let mut all = Vec::new();
        let mut pods = Pods::default();
        // A port number may occur twice, for UDP and TCP: endpoints of both are included.
        let ports = service.ports.iter().filter(|port| port.number == first.number);
        let serving = ports.flat_map(|port| view.endpoints(service).filter(|e| e.service_port == port.name));
        for endpoint in serving.filter(|e| is_usable(e, service)) {
            let same_network = same_or_unknown(&endpoint.network, &proxy.network);
            let same_cluster = same_or_unknown(&endpoint.cluster, &proxy.cluster);
            if !endpoint.sub_domain.is_empty() && same_network {
                let Some((_, parent)) = service.hostname.split_once('.') else { continue };
                pods.add(endpoint, parent, same_cluster);
            }
            // As in Kubernetes' DNS, other clusters' pods are not part of the service.
            if same_network && same_cluster {
                all.extend(endpoint.addresses.iter().cloned());
            }
        }
        pods.write(self, service);
        all
    }
}

/// Entries of single pods. Pods in the client's cluster take precedence over pods of the same name elsewhere.
#[derive(Default)]
struct Pods {
    here: BTreeMap<Str, (Str, Vec<Str>)>,
    elsewhere: BTreeMap<Str, (Str, Vec<Str>)>,
}

impl Pods {
    fn add(&mut self, endpoint: &Endpoint, parent: &str, same_cluster: bool) {
        let short = Str::from(format!("{}.{}", endpoint.host_name, endpoint.sub_domain));
        let host = Str::from(format!("{short}.{parent}"));
        let pods = if same_cluster { &mut self.here } else { &mut self.elsewhere };
        pods.entry(host).or_insert((short, Vec::new())).1.extend(endpoint.addresses.iter().cloned());
    }

    fn write(self, table: &mut NameTablePlan, service: &Service) {
        let Pods { here, elsewhere } = self;
        let hidden = elsewhere.into_iter().filter(|(host, _)| !here.contains_key(host)).collect::<Vec<_>>();
        for (host, (short, addresses)) in here.into_iter().chain(hidden) {
            let short_name = Some((short, service.namespace.clone()));
            table.names.insert(host, NameEntry { addresses, registry: service.registry, short_name });
        }
    }
}

fn is_usable(endpoint: &Endpoint, service: &Service) -> bool {
    let is_published = service.kubernetes.as_ref().is_some_and(|own| own.publish_not_ready);
    let is_ready = is_published || endpoint.health == Health::Healthy;
    is_ready && !endpoint.addresses.is_empty() && endpoint.addresses.iter().all(|a| is_ip(a))
}

fn is_ip(address: &str) -> bool {
    address.parse::<IpAddr>().is_ok()
}

fn same_or_unknown(a: &str, b: &str) -> bool {
    a == b || a.is_empty() || b.is_empty()
}
