//! Route tables of a sidecar: by listener port, by service and port where the protocol is detected, and
//! for forward proxies and Unix sockets.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use api::istio::mesh::v1alpha1::mesh_config::outbound_traffic_policy::Mode;
use api::istio::networking::v1alpha3::HttpRetry;
use model::names::{Namespace, Text};
use model::port::Protocol;
use model::shared::Shared;
use model::snapshot::routing::{Semantics, VirtualServiceRule};
use scope::View;
use scope::addresses::{address, addresses};
use scope::egress::EgressListener;

use super::domains::{self, Domains, Spelling, with_port};
use super::registry::{Entry, Registry};
use super::rules::{self, Target};
use super::{DefaultRoute, Purpose, RouteEntry, RoutePlan, Traits, VirtualHostPlan, destination};
use crate::names;

/// The only port on which routes for hosts that are no service are sent; everywhere else upstream wants
/// a service.
const HTTP: u16 = 80;

/// Route tables of one client. Tables of one port share their work, so ask for all of them here.
pub(crate) struct RouteTables<'a> {
    view: &'a View,
    headers: ProxyHeaders,
    retries: Option<Shared<HttpRetry>>,
    by_port: BTreeMap<u16, Rc<PortHosts>>,
}

/// Virtual hosts of one port, by name, with an index by domain.
struct PortHosts {
    hosts: Vec<Shared<VirtualHostPlan>>,
    by_domain: HashMap<Text, usize>,
}

struct ProxyHeaders {
    attempt_count: bool,
    forwarded_host: bool,
}

/// What a table's name says.
enum RouteName<'a> {
    Port(u16),
    /// `host:port`, for a listener that detects HTTP by itself.
    Detected {
        host: &'a str,
        port: u16,
    },
    /// A forward proxy or a Unix socket.
    AnyPort,
}

impl<'a> RouteTables<'a> {
    pub(crate) fn new(view: &'a View) -> RouteTables<'a> {
        let retries = view.settings.mesh.default_http_retry_policy.clone().map(Shared::new);
        RouteTables { view, headers: proxy_headers(view), retries, by_port: BTreeMap::new() }
    }

    /// The table of this name.
    pub(crate) fn table(&mut self, name: &str) -> RoutePlan {
        let Some(parsed) = RouteName::parse(name) else { return RoutePlan::unknown(name) };
        let mut virtual_hosts = match parsed {
            RouteName::Port(port) => self.at_port(port, name).hosts.clone(),
            RouteName::AnyPort => self.at_port(0, name).hosts.clone(),
            RouteName::Detected { host, port } => self.at_port(port, name).only(name, host),
        };
        if !matches!(parsed, RouteName::Detected { .. }) {
            virtual_hosts.push(Shared::hashed(self.catch_all()));
        }
        RoutePlan { name: name.into(), virtual_hosts, purpose: Purpose::Listener }
    }

    fn at_port(&mut self, port: u16, name: &str) -> Rc<PortHosts> {
        if let Some(known) = self.by_port.get(&port) {
            return known.clone();
        }
        let hosts = Rc::new(PortHosts::new(self.virtual_hosts(port, name)));
        if port != 0 {
            self.by_port.insert(port, hosts.clone());
        }
        hosts
    }

    fn virtual_hosts(&self, port: u16, name: &str) -> Vec<Shared<VirtualHostPlan>> {
        let Some(listener) = egress_listener(self.view, port, name) else { return Vec::new() };
        let port = if is_forward_proxy(listener) { 0 } else { port };
        let registry = Registry::new(&listener.services, port);
        let groups = self.groups(listener, &registry, port);
        let mut hosts = Assembly::new(self, &registry, port, &groups).virtual_hosts(&groups);
        hosts.sort_by(|a, b| a.name.cmp(&b.name));
        hosts
    }

    /// Hosts that share routes: those of each VirtualService, then each service without one.
    fn groups(&self, listener: &EgressListener, registry: &Registry<'_>, port: u16) -> Vec<Group> {
        let mut groups = Vec::with_capacity(registry.entries.len());
        let mut routed = vec![false; registry.entries.len()];
        for rule in &listener.virtual_services {
            if port == HTTP || registry.touches(rule) {
                self.rule_groups(&mut groups, rule, listener, registry, port);
            }
        }
        for index in groups.iter().flat_map(|g| &g.services) {
            routed[*index] = true;
        }
        for (index, entry) in registry.entries.iter().enumerate().filter(|(index, _)| !routed[*index]) {
            for port in entry.http_ports() {
                let routes = Shared::hashed(vec![self.default_route(entry, port.number)]);
                groups.push(Group { port: port.number, services: vec![index], others: Vec::new(), routes });
            }
        }
        groups
    }

    fn rule_groups(
        &self,
        groups: &mut Vec<Group>,
        rule: &VirtualServiceRule,
        listener: &EgressListener,
        registry: &Registry<'_>,
        port: u16,
    ) {
        let target = Target {
            view: self.view,
            port,
            gateways: &[names::MESH_GATEWAY],
            service: &|host| registry.get(host),
            mesh_retries: self.retries.clone(),
            traits: Traits {
                forwarded_host: self.headers.forwarded_host,
                plain_mirror_host: self.view.settings.knobs.disable_shadow_host_suffix,
                ..Traits::default()
            },
        };
        let routes = rules::routes(&target, rule);
        if routes.is_empty() {
            return;
        }
        let claimed = registry.claimed(rule, listener);
        let owners = claimed.services.iter().map(|index| &registry.entries[*index].service.namespace);
        if rule.semantics() == Semantics::Gateway && !self.may_route(rule, owners) {
            return;
        }
        let mut by_port: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for index in &claimed.services {
            for port in registry.entries[*index].http_ports() {
                by_port.entry(port.number).or_default().push(*index);
            }
        }
        if by_port.is_empty() && port == HTTP {
            by_port.insert(HTTP, Vec::new());
        }
        let routes = Shared::hashed(routes);
        for (port, services) in by_port {
            groups.push(Group { port, services, others: claimed.others.clone(), routes: routes.clone() });
        }
    }

    /// Gateway API routes hold for clients of their own namespace, and for all clients of its services.
    fn may_route<'n>(&self, rule: &VirtualServiceRule, mut owners: impl Iterator<Item = &'n Namespace>) -> bool {
        let namespace = &rule.config.meta.namespace;
        owners.any(|owner| owner == namespace || self.view.proxy.namespace == *namespace)
    }

    fn default_route(&self, entry: &Entry<'_>, port: u16) -> RouteEntry {
        RouteEntry::Default(DefaultRoute {
            cluster: names::outbound_cluster(port, "", &entry.host).into(),
            operation: format!("{}/*", with_port(&entry.host, port)).into(),
            hash: destination::hashing_of_service(self.view, &entry.host, port),
            mesh_retries: self.retries.clone(),
        })
    }

    /// Where requests to unknown hosts go.
    fn catch_all(&self) -> VirtualHostPlan {
        let policy = &self.view.outbound_policy;
        let through = |name: &'static str, cluster: Text| {
            (name, RouteEntry::Passthrough { name, cluster, forwarded_host: self.headers.forwarded_host })
        };
        let (name, route) = match Mode::try_from(policy.mode) {
            Ok(Mode::AllowAnyDynamicDns) => through(names::ALLOW_ANY_DYNAMIC_DNS, names::DYNAMIC_DNS_CLUSTER.into()),
            Ok(Mode::AllowAny) => {
                let egress = policy.egress_proxy.as_ref().map(|proxy| destination::cluster(Some(proxy), None, 0));
                through(names::ALLOW_ANY, egress.unwrap_or_else(|| names::PASSTHROUGH_CLUSTER.into()))
            }
            Ok(Mode::RegistryOnly) | Err(_) => (names::BLOCK_ALL, RouteEntry::BlackHole),
        };
        VirtualHostPlan {
            name: name.into(),
            domains: vec!["*".into()],
            routes: Shared::hashed(vec![route]),
            attempt_count: self.headers.attempt_count,
            session: None,
        }
    }
}

/// Hosts on one port that share their routes.
struct Group {
    port: u16,
    /// Services, as indexes into the registry.
    services: Vec<usize>,
    /// Hosts that are no service.
    others: Vec<String>,
    routes: Shared<Vec<RouteEntry>>,
}

/// Turns groups into virtual hosts, each domain once: the first one to claim it keeps it.
struct Assembly<'a, 'r> {
    tables: &'a RouteTables<'r>,
    registry: &'a Registry<'a>,
    port: u16,
    names: HashSet<Text>,
    domains: HashSet<Text>,
    /// Full names of services, before which shortened names of others give way.
    full_names: HashSet<Cow<'a, str>>,
}

impl<'a, 'r> Assembly<'a, 'r> {
    fn new(tables: &'a RouteTables<'r>, registry: &'a Registry<'a>, port: u16, groups: &[Group]) -> Self {
        let services =
            groups.iter().flat_map(|g| g.services.iter().map(|index| (&*registry.entries[*index].host, g.port)));
        let mut full_names = HashSet::with_capacity(groups.len());
        for (host, own_port) in services {
            full_names.insert(Cow::Borrowed(host));
            if port == 0 {
                full_names.insert(Cow::Owned(with_port(host, own_port)));
            }
        }
        Assembly {
            tables,
            registry,
            port,
            names: HashSet::with_capacity(groups.len()),
            domains: HashSet::with_capacity(groups.len() * 6),
            full_names,
        }
    }

    fn virtual_hosts(mut self, groups: &[Group]) -> Vec<Shared<VirtualHostPlan>> {
        let mut out = Vec::with_capacity(groups.len());
        for group in groups {
            for host in &group.others {
                let domains = Domains { all: vec![domains::bracketed(host)], short: Vec::new() };
                out.extend(self.virtual_host(group, host, domains, None));
            }
            for index in &group.services {
                let entry = &self.registry.entries[*index];
                let domains = self.service_domains(entry, group.port);
                out.extend(self.virtual_host(group, &entry.host, domains, Some(entry)));
            }
        }
        out
    }

    fn service_domains(&self, entry: &Entry<'_>, port: u16) -> Domains {
        let view = self.tables.view;
        let knobs = &view.settings.knobs;
        let spelling = Spelling {
            domain: &view.proxy.domain,
            absolute: knobs.absolute_fqdn_domain,
            port: (self.port == 0).then_some(port),
        };
        let service = entry.service;
        // On a port of its own a service without cluster addresses answers to the first one only.
        let dialled = if self.port != 0 && service.cluster_addresses.is_empty() {
            vec![address(service, &view.proxy, knobs)]
        } else {
            addresses(service, &view.proxy, knobs)
        };
        domains::of_service(service, &entry.host, &dialled, &spelling)
    }

    /// `None` if the name, or every domain of it, is taken.
    fn virtual_host(
        &mut self,
        group: &Group,
        host: &str,
        domains: Domains,
        entry: Option<&Entry<'_>>,
    ) -> Option<Shared<VirtualHostPlan>> {
        let name = Text::from(with_port(host, group.port));
        if !self.names.insert(name.clone()) {
            return None;
        }
        let mut free = self.free(domains);
        if self.port == 0 && group.port != HTTP {
            // Only port 80 may be left out of a Host header.
            free.retain(|domain| domain.contains(':'));
        }
        if free.is_empty() {
            return None;
        }
        let headers = &self.tables.headers;
        Some(Shared::hashed(VirtualHostPlan {
            name,
            domains: free,
            routes: group.routes.clone(),
            attempt_count: headers.attempt_count,
            session: entry.and_then(|e| destination::session(self.tables.view, e.service)),
        }))
    }

    fn free(&mut self, domains: Domains) -> Vec<Text> {
        let Domains { mut all, short } = domains;
        all.retain(|domain| {
            let key = if domain.bytes().any(|b| b.is_ascii_uppercase()) {
                domain.to_lowercase().into()
            } else {
                domain.clone()
            };
            if self.domains.contains(&key) {
                return false;
            }
            let of_another = short.contains(domain) && self.full_names.contains(&**domain);
            if !of_another {
                self.domains.insert(key);
            }
            !of_another
        });
        all
    }
}

impl PortHosts {
    fn new(hosts: Vec<Shared<VirtualHostPlan>>) -> PortHosts {
        let of_host = |(index, host): (usize, &Shared<VirtualHostPlan>)| {
            let domains = host.domains.clone();
            domains.into_iter().map(move |domain| (domain, index))
        };
        let by_domain = hosts.iter().enumerate().flat_map(of_host).collect();
        PortHosts { hosts, by_domain }
    }

    /// The virtual host of one service, for every host name: the listener has chosen by address already.
    fn only(&self, name: &str, host: &str) -> Vec<Shared<VirtualHostPlan>> {
        let found: Vec<usize> = [name, host].iter().filter_map(|d| self.by_domain.get(*d).copied()).collect();
        match found[..] {
            [] => Vec::new(),
            [first, second] if first != second => vec![self.hosts[first].clone(), self.hosts[second].clone()],
            [index, ..] => {
                let plan = VirtualHostPlan { domains: vec!["*".into()], ..VirtualHostPlan::clone(&self.hosts[index]) };
                vec![Shared::hashed(plan)]
            }
        }
    }
}

impl RouteName<'_> {
    fn parse(name: &str) -> Option<RouteName<'_>> {
        if name == names::HTTP_PROXY || name.starts_with(names::UNIX_PREFIX) {
            return Some(RouteName::AnyPort);
        }
        match name.split_once(':') {
            None => name.parse().ok().map(RouteName::Port),
            Some((host, port)) => port.parse().ok().map(|port| RouteName::Detected { host, port }),
        }
    }
}

/// The egress listener that a table belongs to: the one of its port or socket, or the catch-all.
fn egress_listener<'a>(view: &'a View, port: u16, name: &str) -> Option<&'a EgressListener> {
    view.egress.iter().find(|listener| match listener.spec.as_ref().and_then(|s| s.port.as_ref().map(|p| (s, p))) {
        None => true,
        Some((spec, own)) => own.number == u32::from(port) && (port != 0 || spec.bind == name),
    })
}

fn is_forward_proxy(listener: &EgressListener) -> bool {
    let port = listener.spec.as_ref().and_then(|spec| spec.port.as_ref());
    port.is_some_and(|p| Protocol::parse(&p.protocol) == Protocol::HttpProxy)
}

fn proxy_headers(view: &View) -> ProxyHeaders {
    let headers = view.proxy_config.proxy_headers.as_ref();
    let attempt_count = headers.and_then(|h| h.attempt_count.as_ref());
    let forwarded_host = headers.and_then(|h| h.x_forwarded_host.as_ref());
    ProxyHeaders {
        attempt_count: !attempt_count.and_then(|a| a.disabled).unwrap_or(false),
        forwarded_host: forwarded_host.and_then(|f| f.enabled).unwrap_or(false),
    }
}
