//! Route tables of a sidecar: by listener port, by host and port if the protocol is detected, and for HTTP proxies and
//! Unix sockets.

use std::collections::BTreeMap;

use api::istio::mesh::v1alpha1::mesh_config::outbound_traffic_policy::Mode;
use api::istio::networking::v1alpha3::HttpRetry;
use model::hashed::Hashed;
use model::names::{Namespace, Str};
use model::port::Protocol;
use model::service::Resolution;
use model::snapshot::routing::{Semantics, VirtualServiceRule};
use scope::View;
use scope::egress::EgressListener;

use super::domains::with_port;
use super::host_index::{HostEntry, HostIndex};
use super::rules::{self, RouteContext};
use super::virtual_hosts::{HTTP_PORT, HostGroup, VirtualHostBuilder};
use super::{DefaultRoute, RouteEntry, RouteFlags, RoutePlan, TablePurpose, VirtualHostPlan, destination, headers};
use crate::names;

/// Plans the route tables of one client.
pub(crate) struct RouteTables<'a> {
    view: &'a View,
    headers: headers::ProxyHeaders,
    retries: Option<Hashed<HttpRetry>>,
}

/// A parsed table name.
enum RouteName<'a> {
    Port(u16),
    /// `host:port`, for a listener with protocol detection.
    Detected {
        host: &'a str,
        port: u16,
    },
    /// An HTTP proxy port or a Unix socket.
    AnyPort,
}

impl<'a> RouteTables<'a> {
    pub(crate) fn new(view: &'a View) -> RouteTables<'a> {
        let retries = view.settings.mesh.default_http_retry_policy.clone().map(Hashed::from_message);
        RouteTables { view, headers: headers::of_client(view), retries }
    }

    /// The table of this name.
    pub(crate) fn table(&self, name: &str) -> RoutePlan {
        let Some(parsed) = RouteName::parse(name) else { return RoutePlan::unknown(name) };
        let mut virtual_hosts = self.virtual_hosts(&parsed, name);
        match parsed {
            RouteName::Detected { host, .. } => virtual_hosts = for_any_domain(&virtual_hosts, name, host),
            RouteName::Port(_) | RouteName::AnyPort => virtual_hosts.push(Hashed::new(self.catch_all())),
        }
        RoutePlan { name: name.into(), virtual_hosts, purpose: TablePurpose::Listener }
    }

    fn virtual_hosts(&self, parsed: &RouteName<'_>, name: &str) -> Vec<Hashed<VirtualHostPlan>> {
        let port = parsed.port();
        let Some(listener) = egress_listener(self.view, port, name) else { return Vec::new() };
        let port = if is_forward_proxy(listener) { 0 } else { port };
        let host_index = match parsed {
            RouteName::Detected { host, .. } => HostIndex::only(host, &listener.services, port),
            RouteName::Port(_) | RouteName::AnyPort => HostIndex::new(&listener.services, port),
        };
        let groups = self.groups(listener, &host_index, port);
        let mut hosts = VirtualHostBuilder::new(self.view, self.headers.attempt_count, &host_index, port, &groups)
            .virtual_hosts(&groups);
        hosts.sort_by(|a, b| a.name.cmp(&b.name));
        hosts
    }

    /// Groups of hosts: one per VirtualService and port, then one per service without a VirtualService.
    fn groups(&self, listener: &EgressListener, host_index: &HostIndex<'_>, port: u16) -> Vec<HostGroup> {
        let mut groups = Vec::with_capacity(host_index.entries.len());
        let mut routed = vec![false; host_index.entries.len()];
        for rule in &listener.virtual_services {
            if host_index.wants(rule, port == HTTP_PORT) {
                self.rule_groups(&mut groups, rule, listener, host_index, port);
            }
        }
        for index in groups.iter().flat_map(|g| &g.services) {
            routed[*index] = true;
        }
        // Aliases are domains of their target service.
        let is_alias = |entry: &HostEntry<'_>| entry.service.resolution == Resolution::Alias;
        let rest = host_index.entries.iter().enumerate().filter(|(index, entry)| !routed[*index] && !is_alias(entry));
        for (index, entry) in rest {
            for port in entry.http_ports() {
                let routes = Hashed::new(vec![self.default_route(entry, port.number)]);
                groups.push(HostGroup { port: port.number, services: vec![index], others: Vec::new(), routes });
            }
        }
        groups
    }

    fn rule_groups(
        &self,
        groups: &mut Vec<HostGroup>,
        rule: &VirtualServiceRule,
        listener: &EgressListener,
        host_index: &HostIndex<'_>,
        port: u16,
    ) {
        let context = RouteContext {
            view: self.view,
            port,
            gateways: &[names::MESH_GATEWAY],
            service: &|host| host_index.get(host),
            mesh_retries: self.retries.clone(),
            flags: RouteFlags {
                forwarded_host: self.headers.forwarded_host,
                plain_mirror_host: self.view.settings.knobs.disable_shadow_host_suffix,
                ..RouteFlags::default()
            },
        };
        let routes = rules::routes(&context, rule);
        if routes.is_empty() {
            return;
        }
        let hosts = host_index.hosts_of(rule, listener);
        let owners = hosts.services.iter().map(|index| &host_index.entries[*index].service.namespace);
        if rule.semantics() == Semantics::Gateway && !self.may_route(rule, owners) {
            return;
        }
        let mut by_port: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for index in &hosts.services {
            for port in host_index.entries[*index].http_ports() {
                by_port.entry(port.number).or_default().push(*index);
            }
        }
        if by_port.is_empty() && port == HTTP_PORT {
            by_port.insert(HTTP_PORT, Vec::new());
        }
        let routes = Hashed::new(routes);
        for (port, services) in by_port {
            groups.push(HostGroup { port, services, others: hosts.others.clone(), routes: routes.clone() });
        }
    }

    /// Gateway API routes apply to clients in their namespace, and to all clients of services in their namespace.
    fn may_route<'n>(&self, rule: &VirtualServiceRule, mut owners: impl Iterator<Item = &'n Namespace>) -> bool {
        let namespace = &rule.config.meta.namespace;
        owners.any(|owner| owner == namespace || self.view.proxy.namespace == *namespace)
    }

    fn default_route(&self, entry: &HostEntry<'_>, port: u16) -> RouteEntry {
        RouteEntry::Default(DefaultRoute {
            cluster: names::outbound_cluster(port, "", &entry.host).into(),
            operation: format!("{}/*", with_port(&entry.host, port)).into(),
            hash: destination::hashing_of_service(self.view, &entry.host, port),
            mesh_retries: self.retries.clone(),
        })
    }

    /// The virtual host for unknown hosts.
    fn catch_all(&self) -> VirtualHostPlan {
        let policy = &self.view.outbound_policy;
        let through = |name: &'static str, cluster: Str| {
            (name, RouteEntry::Passthrough { name, cluster, forwarded_host: self.headers.forwarded_host })
        };
        let (name, route) = match Mode::try_from(policy.mode) {
            Ok(Mode::AllowAnyDynamicDns) => {
                through(names::ALLOW_ANY_DYNAMIC_DNS, names::ALLOW_ANY_DYNAMIC_DNS_CLUSTER.into())
            }
            Ok(Mode::AllowAny) => {
                let egress = policy.egress_proxy.as_ref().map(|proxy| destination::cluster_name(proxy, None, 0));
                through(names::ALLOW_ANY, egress.unwrap_or_else(|| names::PASSTHROUGH_CLUSTER.into()))
            }
            Ok(Mode::RegistryOnly) | Err(_) => (names::BLOCK_ALL, RouteEntry::BlackHole),
        };
        VirtualHostPlan {
            name: name.into(),
            domains: vec!["*".into()],
            routes: Hashed::new(vec![route]),
            attempt_count: self.headers.attempt_count,
            session: None,
            require_tls: false,
        }
    }
}

impl RouteName<'_> {
    /// The listener's port; 0 for any.
    fn port(&self) -> u16 {
        match self {
            RouteName::Port(port) | RouteName::Detected { port, .. } => *port,
            RouteName::AnyPort => 0,
        }
    }

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

/// The virtual host of one service with domain `*`, because the listener already selected the service by address.
fn for_any_domain(hosts: &[Hashed<VirtualHostPlan>], name: &str, host: &str) -> Vec<Hashed<VirtualHostPlan>> {
    let means_it = |plan: &&Hashed<VirtualHostPlan>| plan.domains.iter().any(|d| **d == *host || **d == *name);
    let found: Vec<_> = hosts.iter().filter(means_it).cloned().collect();
    let [only] = &found[..] else { return found };
    vec![Hashed::new(VirtualHostPlan { domains: vec!["*".into()], ..VirtualHostPlan::clone(only) })]
}

/// The egress listener of a table: the one with its port or socket, or the one without a port.
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
