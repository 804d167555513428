//! Route tables of a gateway, from its servers and the VirtualServices bound to them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::istio::networking::v1alpha3::{HttpRetry, Server};
use model::hashed::Hashed;
use model::host::is_wildcard;
use model::names::{Hostname, Namespace, ServiceKey, Str};
use model::service::Service;
use model::snapshot::routing::VirtualServiceRule;
use scope::View;
use scope::gateway::GatewayServer;

use super::domains::with_port;
use super::rules::{self, RouteContext};
use super::{RouteEntry, RouteFlags, RoutePlan, SessionState, TablePurpose, VirtualHostPlan, destination, headers};

/// The table of this name; empty if no server uses it, for example while its listener drains.
pub(crate) fn table(view: &View, name: &str) -> RoutePlan {
    let servers = view.gateway.as_ref().and_then(|gateway| gateway.servers_by_route.get(name));
    let Some((first, _)) = servers.and_then(|s| s.split_first()) else { return RoutePlan::unknown(name) };
    let mut hosts = GatewayHosts::new(view);
    for server in servers.into_iter().flatten() {
        hosts.add_server(server);
    }
    let mut virtual_hosts = hosts.virtual_hosts();
    virtual_hosts.extend(misdirected(view, first, servers.into_iter().flatten(), &virtual_hosts));
    if virtual_hosts.is_empty() {
        virtual_hosts.push(Hashed::new(nothing_here(number(first))));
    }
    virtual_hosts.sort_by(|a, b| a.name.cmp(&b.name));
    RoutePlan { name: name.into(), virtual_hosts, purpose: TablePurpose::Listener }
}

/// A virtual host without routes: Envoy responds with 404.
fn nothing_here(port: u16) -> VirtualHostPlan {
    fixed(with_port("blackhole", port), vec!["*".into()], Vec::new())
}

fn fixed(name: String, domains: Vec<Str>, routes: Vec<RouteEntry>) -> VirtualHostPlan {
    VirtualHostPlan {
        name: name.into(),
        domains,
        routes: Hashed::new(routes),
        attempt_count: false,
        session: None,
        require_tls: false,
    }
}

/// Virtual hosts for requests whose host belongs to another HTTPS server of the port: a client that reuses a connection
/// must open its own one there (421). Own hosts without routes keep 404, as a wider host of another server may match too.
fn misdirected<'s>(
    view: &View,
    first: &GatewayServer,
    own: impl Iterator<Item = &'s Arc<GatewayServer>>,
    routed: &[Hashed<VirtualHostPlan>],
) -> Vec<Hashed<VirtualHostPlan>> {
    let Some(gateway) = view.gateway.as_ref().filter(|_| first.detects_misdirected) else { return Vec::new() };
    let ports = gateway.ports.iter().filter(|port| port.servers.iter().any(|server| server.route == first.route));
    let others = ports.flat_map(|port| &port.servers).filter(|s| s.route != first.route && s.detects_misdirected);
    let lower = |host: &Str| Str::from(host.to_lowercase());
    let own: BTreeSet<Str> = own.flat_map(|server| server.sni_hosts.iter().map(lower)).collect();
    let routed: BTreeSet<Str> = routed.iter().flat_map(|host| host.domains.iter().cloned()).collect();
    let mut theirs: BTreeSet<Str> = others.flat_map(|server| server.sni_hosts.iter().map(lower)).collect();
    theirs.retain(|host| !own.contains(host) && !routed.contains(host));
    if theirs.is_empty() {
        return Vec::new();
    }
    let port = number(first);
    let unrouted: Vec<Str> = own.difference(&routed).cloned().collect();
    let elsewhere = fixed(with_port("misdirected", port), theirs.into_iter().collect(), vec![RouteEntry::Misdirected]);
    let here = fixed(with_port("unrouted", port), unrouted, Vec::new());
    [here, elsewhere].into_iter().filter(|host| !host.domains.is_empty()).map(Hashed::new).collect()
}

/// Builds the virtual hosts of one table.
struct GatewayHosts<'a> {
    view: &'a View,
    headers: headers::ProxyHeaders,
    retries: Option<Hashed<HttpRetry>>,
    /// VirtualServices by gateway.
    bound: BTreeMap<Str, Arc<[Arc<VirtualServiceRule>]>>,
    /// Routes of VirtualServices, planned for the first server that uses them.
    planned: Vec<Hashed<Vec<RouteEntry>>>,
    planned_for: BTreeMap<(Str, Namespace, Str), usize>,
    hosts: BTreeMap<HostRank, GatewayHost>,
}

/// Order of hosts, most specific first: exact before wildcard, long before short.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct HostRank {
    wildcard: bool,
    length: Reverse<usize>,
    host: Str,
}

struct GatewayHost {
    port: u16,
    domains: Vec<Str>,
    /// Routes, as indexes into `planned`.
    routes: Vec<usize>,
    session: Option<SessionState>,
    require_tls: bool,
}

impl<'a> GatewayHosts<'a> {
    fn new(view: &'a View) -> GatewayHosts<'a> {
        GatewayHosts {
            view,
            headers: headers::of_client(view),
            retries: view.settings.mesh.default_http_retry_policy.clone().map(Hashed::from_message),
            bound: BTreeMap::new(),
            planned: Vec::new(),
            planned_for: BTreeMap::new(),
            hosts: BTreeMap::new(),
        }
    }

    fn add_server(&mut self, server: &GatewayServer) {
        let view = self.view;
        let gateway = &server.gateway;
        let rules = self.bound.entry(gateway.clone()).or_insert_with(|| view.gateway_routes(gateway).into()).clone();
        for rule in rules.iter() {
            let shared = shared_hosts(&server.spec, rule);
            if shared.is_empty() {
                continue;
            }
            if let Some(routes) = self.routes(server, rule) {
                shared.into_iter().for_each(|host| self.add_routes(host, server, rule, routes));
            }
        }
        if redirects_to_https(&server.spec) {
            server.spec.hosts.iter().for_each(|host| self.require_tls(host, server));
        }
    }

    /// The routes of a VirtualService for this server; `None` if none applies.
    fn routes(&mut self, server: &GatewayServer, rule: &VirtualServiceRule) -> Option<usize> {
        let meta = &rule.config.meta;
        let key = (server.gateway.clone(), meta.namespace.clone(), meta.name.clone());
        if let Some(known) = self.planned_for.get(&key) {
            return Some(*known);
        }
        let view = self.view;
        let context = RouteContext {
            view,
            port: number(server),
            gateways: &[&server.gateway],
            service: &|host| service(view, host, &meta.namespace),
            mesh_retries: self.retries.clone(),
            flags: RouteFlags {
                tls: server.spec.tls.is_some(),
                forwarded_host: self.headers.forwarded_host,
                plain_mirror_host: view.settings.knobs.disable_shadow_host_suffix,
                ..RouteFlags::default()
            },
        };
        let routes = Some(rules::routes(&context, rule)).filter(|routes| !routes.is_empty())?;
        self.planned.push(Hashed::new(routes));
        self.planned_for.insert(key, self.planned.len() - 1);
        Some(self.planned.len() - 1)
    }

    fn add_routes(&mut self, host: Hostname, server: &GatewayServer, rule: &VirtualServiceRule, routes: usize) {
        let view = self.view;
        let host = Str::from(host.to_lowercase());
        let entry = self.hosts.entry(rank(&host)).or_insert_with(|| GatewayHost {
            port: number(server),
            session: named_service(view, rule, &host).and_then(|s| destination::session(view, s)),
            domains: vec![host],
            routes: Vec::new(),
            require_tls: false,
        });
        entry.routes.push(routes);
        entry.require_tls |= redirects_to_https(&server.spec);
    }

    /// A server with `httpsRedirect` redirects hosts without routes too.
    fn require_tls(&mut self, host: &str, server: &GatewayServer) {
        let host = Str::from(host.to_lowercase());
        let entry = self.hosts.entry(rank(&host)).or_insert_with(|| GatewayHost {
            port: number(server),
            domains: vec![host],
            routes: Vec::new(),
            session: None,
            require_tls: true,
        });
        entry.require_tls = true;
    }

    fn virtual_hosts(self) -> Vec<Hashed<VirtualHostPlan>> {
        let attempt_count = self.headers.attempt_count;
        let collapse = self.view.settings.knobs.route_collapse;
        let hosts = self.hosts.into_values();
        let hosts: Vec<GatewayHost> = if collapse { collapsed(hosts) } else { hosts.collect() };
        let plan = |host: GatewayHost| {
            Hashed::new(VirtualHostPlan {
                name: with_port(&host.domains[0], host.port).into(),
                routes: joined(&host.routes, &self.planned),
                domains: host.domains,
                attempt_count,
                session: host.session,
                require_tls: host.require_tls,
            })
        };
        hosts.into_iter().map(plan).collect()
    }
}

/// Merges hosts with the same routes into one virtual host, named after the most specific host.
fn collapsed(hosts: impl Iterator<Item = GatewayHost>) -> Vec<GatewayHost> {
    let mut out: Vec<GatewayHost> = Vec::new();
    let mut newest: BTreeMap<Vec<usize>, usize> = BTreeMap::new();
    for host in hosts {
        match newest.get(&host.routes) {
            Some(known) if out[*known].require_tls == host.require_tls => out[*known].domains.extend(host.domains),
            _ => {
                newest.insert(host.routes.clone(), out.len());
                out.push(host);
            }
        }
    }
    out
}

/// Concatenates routes of several VirtualServices, oldest first, with catch-all routes last.
fn joined(indexes: &[usize], planned: &[Hashed<Vec<RouteEntry>>]) -> Hashed<Vec<RouteEntry>> {
    if let [only] = indexes {
        return planned[*only].clone();
    }
    let all = indexes.iter().flat_map(|index| planned[*index].iter().cloned());
    let (last, mut routes): (Vec<_>, Vec<_>) = all.partition(rules::is_catch_all);
    routes.extend(last);
    Hashed::new(routes)
}

fn rank(host: &Str) -> HostRank {
    HostRank { wildcard: is_wildcard(host), length: Reverse(host.len()), host: host.clone() }
}

fn number(server: &GatewayServer) -> u16 {
    server.port() as u16
}

fn redirects_to_https(server: &Server) -> bool {
    server.tls.as_ref().is_some_and(|tls| tls.https_redirect)
}

/// Hosts that both the server and the VirtualService match; of two overlapping hosts, the more specific one. Server
/// hosts restricted to another namespace are ignored.
fn shared_hosts(server: &Server, rule: &VirtualServiceRule) -> Vec<Hostname> {
    let mut out: Vec<Hostname> = Vec::new();
    let namespace = &rule.config.meta.namespace;
    for ours in server.hosts.iter().filter_map(|host| in_namespace(host, namespace)) {
        let ours = Hostname::from(ours);
        for theirs in &rule.config.spec.hosts {
            let theirs = Hostname::from(theirs.as_str());
            let narrower = if ours.is_subset_of(&theirs) {
                ours.clone()
            } else if theirs.is_subset_of(&ours) {
                theirs
            } else {
                continue;
            };
            if !out.contains(&narrower) {
                out.push(narrower);
            }
        }
    }
    out
}

/// The host of `host` or `namespace/host`; `None` if it is for another namespace.
fn in_namespace<'h>(host: &'h str, namespace: &str) -> Option<&'h str> {
    match host.split_once('/') {
        None => Some(host),
        Some((owner, host)) => (owner == namespace || owner == "*").then_some(host),
    }
}

/// The service of a destination host: in the route's namespace if visible to the gateway, else any visible one.
fn service<'v>(view: &'v View, host: &str, namespace: &Namespace) -> Option<&'v Service> {
    let own = view.any_service(&ServiceKey { hostname: host.into(), namespace: namespace.clone() });
    let default = view.settings.default_service_export();
    let visible = own.filter(|s| s.export_to.or(&default).admits(&s.namespace, &view.proxy.namespace));
    visible.or_else(|| view.service(host)).map(|s| &**s)
}

/// The service of this host, if the VirtualService has it as a destination.
fn named_service<'v>(view: &'v View, rule: &VirtualServiceRule, host: &str) -> Option<&'v Service> {
    let spec = &rule.config.spec;
    let destinations = spec.http.iter().flat_map(|http| {
        let weighted = http.route.iter().filter_map(|d| d.destination.as_ref());
        weighted.chain(&http.mirror).chain(http.mirrors.iter().filter_map(|m| m.destination.as_ref()))
    });
    destinations.into_iter().find(|d| d.host == host).and_then(|_| service(view, host, &rule.config.meta.namespace))
}
