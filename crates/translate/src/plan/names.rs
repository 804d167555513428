//! The DNS name table: every name that the client can see and its addresses, for the agent's DNS proxy.

use std::collections::BTreeMap;
use std::net::IpAddr;

use model::endpoint::{Endpoint, Health};
use model::names::{Namespace, Str};
use model::service::{Registry, Resolution, Service, UNSPECIFIED};
use scope::View;
use scope::addresses::addresses;

/// Names of services in a set of clusters; the agent must not shorten them.
const CLUSTER_SET_SUFFIX: &str = ".clusterset.local";

/// The DNS name table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NameTablePlan {
    pub names: BTreeMap<Str, NameEntry>,
}

/// One name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NameEntry {
    pub addresses: Vec<Str>,
    pub registry: Registry,
    /// Of Kubernetes services: short name and namespace, from which the agent makes all spellings.
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
    /// A service of Kubernetes replaces what others say of its name; addresses of others are joined.
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

    /// A service without an address of its own is its endpoints, as far as the client can dial them
    /// directly. Pods with a host name get a name of their own beside it.
    fn endpoint_addresses(&mut self, view: &View, service: &Service) -> Vec<Str> {
        let Some(first) = service.ports.first().filter(|_| service.resolution == Resolution::Passthrough) else {
            return Vec::new();
        };
        let proxy = &view.proxy;
        let mut all = Vec::new();
        let mut pods = Pods::default();
        // A number may stand there twice, for UDP and for TCP: the endpoints of both count.
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

/// Names of single pods. Those of the client's own cluster hide those of others.
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
    let is_told = is_published || endpoint.health == Health::Healthy;
    is_told && !endpoint.addresses.is_empty() && endpoint.addresses.iter().all(|a| is_ip(a))
}

fn is_ip(address: &str) -> bool {
    address.parse::<IpAddr>().is_ok()
}

fn same_or_unknown(a: &str, b: &str) -> bool {
    a == b || a.is_empty() || b.is_empty()
}
