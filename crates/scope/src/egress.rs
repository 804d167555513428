//! The services and routes that a client imports, by egress listener. Without a Sidecar resource there is
//! one catch-all listener that imports everything exported to the client's namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::istio::networking::v1alpha3::{IstioEgressListener, Sidecar, VirtualService};
use model::config::Config;
use model::hashed::Hashed;
use model::host::is_wildcard;
use model::labels::selects;
use model::names::{Hostname, Namespace, ServiceKey, Str};
use model::port::Protocol;
use model::proxy::{Proxy, ProxyKind};
use model::service::{Registry, Service};
use model::snapshot::Snapshot;
use model::snapshot::routing::VirtualServiceRule;

use crate::imports::{Imports, Matching};
use crate::sections::{Importer, Sections};
use crate::visibility::{self, Exported};

/// One egress listener and its imports.
#[derive(Clone, Debug)]
pub struct EgressListener {
    /// The Sidecar's listener; `None` for the catch-all of a client without a Sidecar.
    pub spec: Option<Hashed<IstioEgressListener>>,
    /// Imported services, oldest first, one namespace per host name.
    pub services: Vec<Arc<Service>>,
    /// Imported routes for in-mesh traffic, in order of precedence.
    pub virtual_services: Vec<Arc<VirtualServiceRule>>,
    /// For each service host that a route matches: the route (namespace, name) with the most specific host.
    pub most_specific_routes: BTreeMap<Hostname, (Namespace, Str)>,
}

impl EgressListener {
    /// The port of a listener that has one; `None` for a catch-all.
    pub fn port(&self) -> Option<u32> {
        self.spec.as_ref()?.port.as_ref().map(|p| p.number)
    }

    /// A listener with a port imports only that port of each service, unless it is a forward proxy.
    fn only_port(&self) -> Option<u16> {
        let port = self.spec.as_ref()?.port.as_ref()?;
        let forward_proxy = Protocol::parse(&port.protocol) == Protocol::HttpProxy;
        u16::try_from(port.number).ok().filter(|number| *number != 0 && !forward_proxy)
    }
}

/// The Sidecar resource that applies to this client: one of its namespace that selects it, else one without a
/// selector, else the root namespace's. `None` for gateways.
pub(crate) fn sidecar_for(world: &Snapshot, proxy: &Proxy) -> Option<Config<Sidecar>> {
    if proxy.kind != ProxyKind::Sidecar {
        return None;
    }
    let own = world.sidecars.sidecars.iter().filter(|s| s.meta.namespace == proxy.namespace);
    let (selecting, plain): (Vec<_>, Vec<_>) = own.partition(|s| s.spec.workload_selector.is_some());
    let selects_proxy = |s: &&&Config<Sidecar>| {
        s.spec.workload_selector.as_ref().is_some_and(|selector| selects(&selector.labels, &proxy.labels))
    };
    if let Some(found) = selecting.iter().find(selects_proxy).or(plain.first()) {
        return Some(Config::clone(found));
    }
    let root = world.settings.root_namespace();
    let mut of_root = world.sidecars.sidecars.iter().filter(|s| s.meta.namespace == root);
    of_root.find(|s| s.spec.workload_selector.is_none()).cloned()
}

/// The client's egress listeners.
pub(crate) fn listeners(
    sections: &Sections,
    importer: Importer<'_>,
    sidecar: Option<&Config<Sidecar>>,
) -> Vec<EgressListener> {
    let exported = Exported::to(sections, importer.namespace);
    let specs = sidecar.map_or(&[][..], |s| &s.spec.egress);
    if specs.is_empty() {
        return vec![listener(None, &Imports::everything(), &exported, importer)];
    }
    let own = |spec: &IstioEgressListener| {
        let imports = Imports::parse(&spec.hosts, importer.namespace);
        listener(Some(Hashed::from_message(spec.clone())), &imports, &exported, importer)
    };
    specs.iter().map(own).collect()
}

fn listener(
    spec: Option<Hashed<IstioEgressListener>>,
    imports: &Imports,
    exported: &Exported,
    importer: Importer<'_>,
) -> EgressListener {
    let mut found = EgressListener {
        spec,
        services: Vec::new(),
        virtual_services: Vec::new(),
        most_specific_routes: BTreeMap::new(),
    };
    found.virtual_services = imported_routes(imports, exported);
    // Gateways import every service they may reach; a host may be in several namespaces.
    let wanted = exported.services.iter().filter(|s| imports.admits(&s.namespace, &s.hostname));
    let on_port = wanted.filter_map(|s| with_port(s, found.only_port())).map(|s| with_aliases(s, imports));
    found.services = if importer.kind == ProxyKind::Sidecar {
        one_owner(on_port.collect(), importer.namespace)
    } else {
        on_port.collect()
    };
    found.most_specific_routes = most_specific_routes(&found.virtual_services, &found.services);
    found
}

fn imported_routes(imports: &Imports, exported: &Exported) -> Vec<Arc<VirtualServiceRule>> {
    let admitted = exported.virtual_services.iter().filter(|rule| {
        let matching = if visibility::has_gateway_semantics(rule) { Matching::Within } else { Matching::Overlap };
        imports.admits_route(&rule.config.meta.namespace, &rule.config.spec.hosts, matching)
    });
    admitted.cloned().collect()
}

/// The service with one port only; `None` if it does not have that port.
fn with_port(service: &Arc<Service>, port: Option<u16>) -> Option<Arc<Service>> {
    let Some(number) = port else { return Some(service.clone()) };
    let port = service.port(number)?;
    if service.ports.len() == 1 {
        return Some(service.clone());
    }
    Some(Arc::new(Service { ports: vec![port.clone()], ..Service::clone(service) }))
}

/// The service with those of its aliases that are imported too.
fn with_aliases(service: Arc<Service>, imports: &Imports) -> Arc<Service> {
    let is_imported = |alias: &ServiceKey| imports.admits(&alias.namespace, &alias.hostname);
    if service.aliases.iter().all(is_imported) {
        return service;
    }
    let aliases = service.aliases.iter().filter(|alias| is_imported(alias)).cloned().collect();
    Arc::new(Service { aliases, ..Service::clone(&service) })
}

/// Of services with the same host name, keeps those of one namespace: the client's own, else that of the first
/// Kubernetes service, else that of the first.
fn one_owner(services: Vec<Arc<Service>>, own: &Namespace) -> Vec<Arc<Service>> {
    let mut owners: BTreeMap<Hostname, (Namespace, bool)> = BTreeMap::new();
    for service in &services {
        let kubernetes = service.registry == Registry::Kubernetes;
        let claim = (service.namespace.clone(), kubernetes);
        match owners.get(&service.hostname) {
            Some((namespace, of_kubernetes)) => {
                let at_home = service.namespace == *own;
                let better = !of_kubernetes && kubernetes && namespace != own;
                if at_home || better {
                    owners.insert(service.hostname.clone(), claim);
                }
            }
            None => {
                owners.insert(service.hostname.clone(), claim);
            }
        }
    }
    services.into_iter().filter(|s| owners.get(&s.hostname).is_some_and(|(ns, _)| *ns == s.namespace)).collect()
}

/// The route with the most specific host for each service; of routes with equal hosts the first.
fn most_specific_routes(
    routes: &[Arc<VirtualServiceRule>],
    services: &[Arc<Service>],
) -> BTreeMap<Hostname, (Namespace, Str)> {
    let mut exact: BTreeMap<&str, &VirtualServiceRule> = BTreeMap::new();
    let mut wildcards: Vec<(&str, &VirtualServiceRule)> = Vec::new();
    for rule in routes {
        for host in &rule.config.spec.hosts {
            if !is_wildcard(host) {
                exact.entry(host).or_insert(rule);
            } else if !wildcards.iter().any(|(known, _)| known == host) {
                wildcards.push((host, rule));
            }
        }
    }
    if exact.is_empty() && wildcards.is_empty() {
        return BTreeMap::new();
    }
    // The longest matching wildcard is the most specific one.
    wildcards.sort_by_key(|(host, _)| std::cmp::Reverse(host.len()));
    let found = services.iter().filter_map(|service| {
        let covering = || wildcards.iter().find(|(host, _)| service.hostname.is_subset_of(host)).map(|(_, rule)| *rule);
        let rule = exact.get(service.hostname.as_str()).copied().or_else(covering)?;
        let meta = &rule.config.meta;
        Some((service.hostname.clone(), (meta.namespace.clone(), meta.name.clone())))
    });
    found.collect()
}

/// Services of all listeners, each host once, and services that are only destinations of routes.
pub(crate) fn imported_services(
    sections: &Sections,
    importer: Importer<'_>,
    egress: &[EgressListener],
) -> Vec<Arc<Service>> {
    let mut all = Imported::default();
    for listener in egress {
        listener.services.iter().for_each(|service| all.add(service));
        if importer.kind != ProxyKind::Sidecar {
            continue;
        }
        for rule in &listener.virtual_services {
            for (host, ports) in destinations(&rule.config.spec, importer.namespace) {
                let Some(service) = visibility::destination(sections, host, importer.namespace) else { continue };
                let cut = match listener.only_port() {
                    Some(port) => with_port(service, Some(port)),
                    None => with_ports(service, &ports),
                };
                cut.iter().for_each(|service| all.add(service));
            }
        }
    }
    all.services
}

/// Destinations of a route for clients of this namespace, with their ports; port 0 means all.
fn destinations<'a>(rule: &'a VirtualService, client: &Namespace) -> BTreeMap<&'a str, BTreeSet<u32>> {
    let for_client = rule.http.iter().filter(|route| {
        let mut sources = route.r#match.iter().filter(|m| !m.source_namespace.is_empty()).peekable();
        sources.peek().is_none() || sources.any(|m| m.source_namespace == client.as_str())
    });
    let http = for_client.flat_map(|route| {
        let routed = route.route.iter().filter_map(|r| r.destination.as_ref());
        let mirrored = route.mirror.iter().chain(route.mirrors.iter().filter_map(|m| m.destination.as_ref()));
        routed.chain(mirrored)
    });
    let tcp = rule.tcp.iter().flat_map(|t| t.route.iter()).filter_map(|r| r.destination.as_ref());
    let tls = rule.tls.iter().flat_map(|t| t.route.iter()).filter_map(|r| r.destination.as_ref());
    let mut found: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for destination in http.chain(tcp).chain(tls) {
        let port = destination.port.as_ref().map_or(0, |p| p.number);
        found.entry(&destination.host).or_default().insert(port);
    }
    found
}

/// The service with only the ports that routes use; `None` if it has none of them.
fn with_ports(service: &Arc<Service>, ports: &BTreeSet<u32>) -> Option<Arc<Service>> {
    if ports.contains(&0) {
        return Some(service.clone());
    }
    let named: Vec<_> = service.ports.iter().filter(|p| ports.contains(&u32::from(p.number))).cloned().collect();
    if named.len() == service.ports.len() {
        return Some(service.clone());
    }
    (!named.is_empty()).then(|| Arc::new(Service { ports: named, ..Service::clone(service) }))
}

/// Services in the order of their first import; services with the same host are merged.
#[derive(Default)]
struct Imported {
    services: Vec<Arc<Service>>,
    by_host: BTreeMap<Hostname, usize>,
}

impl Imported {
    fn add(&mut self, service: &Arc<Service>) {
        let Some(&index) = self.by_host.get(&service.hostname) else {
            self.by_host.insert(service.hostname.clone(), self.services.len());
            self.services.push(service.clone());
            return;
        };
        let known = &self.services[index];
        if Arc::ptr_eq(known, service) {
            return;
        }
        match (known.registry, service.registry) {
            (Registry::Kubernetes, other) if other != Registry::Kubernetes => {}
            (other, Registry::Kubernetes) if other != Registry::Kubernetes => self.services[index] = service.clone(),
            _ if known.ports != service.ports && mergeable(known, service) => {
                self.services[index] = Arc::new(with_ports_of(known, service));
            }
            _ => {}
        }
    }
}

fn mergeable(a: &Service, b: &Service) -> bool {
    a.namespace == b.namespace
        && a.resolution == b.resolution
        && a.registry == b.registry
        && a.labels == b.labels
        && a.selector == b.selector
        && a.export_to == b.export_to
}

fn with_ports_of(known: &Service, addition: &Service) -> Service {
    let mut merged = known.clone();
    for port in &addition.ports {
        if merged.port(port.number).is_none() {
            merged.ports.push(port.clone());
        }
    }
    merged
}
