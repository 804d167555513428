//! Listeners of a gateway: one per address and port of its merged servers.

use std::collections::BTreeMap;

use api::istio::networking::v1alpha3::server_tls_settings::TlSmode;
use api::istio::networking::v1alpha3::{L4MatchAttributes, TlsMatchAttributes};
use model::hashed::Hashed;
use model::names::{Hostname, Str};
use model::port::{Port, Protocol};
use model::snapshot::routing::VirtualServiceRule;
use scope::View;
use scope::gateway::{GatewayPort, GatewayServer};

use super::context::ListenerContext;
use super::{
    Binding, ChainMatch, ChainPlan, Direction, InspectedPorts, ListenerAddress, ListenerFilter, ListenerPlan,
    server_tls, tcp_routes,
};
use crate::listener_side::ListenerSide;
use crate::names;
use crate::network_filters::http_connection_manager::{self as hcm, HttpConnectionManager, HttpSettings, Routes};
use crate::network_filters::{self, ChainEnd, NetworkFilter};

/// ALPN values of mesh TLS, required of clients from other networks.
const MESH_ALPN: &[&str] = &["istio", "istio-peer-exchange", "istio-h2", "istio-http/1.0", "istio-http/1.1"];

/// By port: server names that a chain already matches, and the bind address of that chain.
type SniOwners = BTreeMap<u32, BTreeMap<String, Str>>;

/// All listeners of a gateway; none if no Gateway object selects it.
pub fn gateway(view: &View) -> Vec<ListenerPlan> {
    let Some(merged) = &*view.gateway else { return Vec::new() };
    let context = ListenerContext::new(view);
    let settings = Hashed::new(hcm::gateway(view, &view.proxy_config));
    let builder = GatewayBuilder { context: &context, settings };
    let mut sni_owners = SniOwners::new();
    let mut listeners: Vec<ListenerPlan> = Vec::new();
    for port in merged.ports.iter().filter(|port| port.number >= 1024 || !view.proxy.flag("UNPRIVILEGED_POD")) {
        let chains = builder.chains(port, &mut sni_owners);
        let fresh = builder.listener(port, chains);
        match listeners.iter_mut().find(|l| l.name == fresh.name) {
            Some(known) => join(known, fresh),
            None => listeners.push(fresh),
        }
    }
    listeners.retain(|l| !l.chains.is_empty());
    listeners
}

/// Adds the chains of another port that binds to the same address.
fn join(known: &mut ListenerPlan, fresh: ListenerPlan) {
    if known.filters.len() < fresh.filters.len() {
        known.filters = fresh.filters;
    }
    known.chains.extend(fresh.chains);
}

/// Plans the listeners of one gateway.
struct GatewayBuilder<'a> {
    context: &'a ListenerContext<'a>,
    settings: Hashed<HttpSettings>,
}

impl GatewayBuilder<'_> {
    fn bind(&self, port: &GatewayPort) -> Str {
        if port.bind.is_empty() { self.context.wildcard().clone() } else { port.bind.clone() }
    }

    fn listener(&self, port: &GatewayPort, chains: Vec<ChainPlan>) -> ListenerPlan {
        let bind = self.bind(port);
        let dual = self.context.knobs().dual_stack && port.bind.is_empty();
        let further = self.context.wildcards.iter().skip(1).filter(|_| dual);
        let proxy_protocol =
            self.context.view.proxy_config.gateway_topology.as_ref().is_some_and(|t| t.proxy_protocol.is_some());
        let inspector = inspects_tls(port, &chains).then_some(ListenerFilter::TlsInspector(InspectedPorts::All));
        ListenerPlan {
            name: format!("{bind}_{}", port.number).into(),
            address: ListenerAddress::new(&bind, port.number),
            additional_addresses: further.map(|ip| ListenerAddress::new(ip, port.number)).collect(),
            direction: Direction::Outbound,
            binding: Binding::Port,
            use_original_dst: false,
            transparent: false,
            exact_balance: self.context.view.proxy.flag("OUTBOUND_LISTENER_EXACT_BALANCE"),
            connections_per_event: self.context.connections_per_event(),
            filters: proxy_protocol.then_some(ListenerFilter::ProxyProtocol).into_iter().chain(inspector).collect(),
            filters_timeout: None,
            continue_on_filters_timeout: false,
            access_log: self.context.listener_log(ListenerSide::Gateway),
            chains,
            default_chain: None,
            has_conflict: false,
        }
    }

    fn chains(&self, port: &GatewayPort, sni_owners: &mut SniOwners) -> Vec<ChainPlan> {
        if port.protocol.is_http() {
            return vec![self.http(port, None)];
        }
        let of = |server: &std::sync::Arc<GatewayServer>| {
            if server.terminates_https() {
                vec![self.http(port, Some(server))]
            } else {
                self.bytes(port, server, sni_owners)
            }
        };
        port.servers.iter().flat_map(of).collect()
    }

    /// A connection manager chain: for all plaintext servers of a port, or for one server that terminates TLS.
    fn http(&self, port: &GatewayPort, server: Option<&GatewayServer>) -> ChainPlan {
        let protocol = server.map_or(port.protocol, GatewayServer::protocol);
        let named = server.map(|s| s.spec.name.as_str()).filter(|name| !name.is_empty());
        let default = format!("outbound_{}_{};", self.bind(port), port.number);
        let manager = HttpConnectionManager {
            stat_prefix: named.map_or_else(|| default.into(), Str::from),
            routes: Routes::Rds(server.map_or(&port.route, |s| &s.route).clone()),
            // A gateway detects the HTTP version.
            http2: false,
            settings: self.settings.clone(),
            filters: self.context.http_filters(ListenerSide::Gateway, port.number, protocol),
        };
        let input = self.context.filter_input(ListenerSide::Gateway, port.number, ChainEnd::Http);
        let filters = network_filters::chain(&input, vec![NetworkFilter::Http(Box::new(manager))]);
        match server {
            Some(server) => self.chain(&server.sni_hosts, Some(server), filters),
            None => self.chain(&[], None, filters),
        }
    }

    /// TCP chains: plaintext, terminated TLS, or TLS passthrough.
    fn bytes(&self, port: &GatewayPort, server: &GatewayServer, sni_owners: &mut SniOwners) -> Vec<ChainPlan> {
        let tls_mode = server.spec.tls.as_ref().map(|tls| tls.mode());
        match tls_mode {
            Some(TlSmode::AutoPassthrough) => self.by_cluster_name(server),
            Some(TlSmode::Passthrough) => self.by_tls_routes(port, server, sni_owners),
            _ => {
                let Some(filters) = self.tcp_routes(server) else { return Vec::new() };
                vec![self.chain(&server.sni_hosts, tls_mode.map(|_| server), filters)]
            }
        }
    }

    /// Filters of the first TCP route that matches the server.
    fn tcp_routes(&self, server: &GatewayServer) -> Option<Vec<NetworkFilter>> {
        let port = port_of(server);
        for rule in self.routes(server) {
            let fits = |m: &L4MatchAttributes| is_for(m.port, &m.gateways, server);
            let mut tcp = rule.config.spec.tcp.iter().filter(|t| !t.route.is_empty());
            if let Some(route) = tcp.find(|t| t.r#match.is_empty() || t.r#match.iter().any(fits)) {
                return tcp_routes::routed(self.context, &route.route, &port, &rule.config);
            }
            // A Gateway API TLSRoute has its routes under `tls` even if the listener terminates TLS.
            let parents = rule.config.meta.annotations.get("internal.istio.io/parents");
            if parents.is_some_and(|p| p.starts_with("TLSRoute/")) {
                let fits = |m: &TlsMatchAttributes| is_for(m.port, &m.gateways, server);
                if let Some(route) = rule.config.spec.tls.iter().find(|t| t.r#match.iter().any(fits)) {
                    return tcp_routes::routed(self.context, &route.route, &port, &rule.config);
                }
            }
        }
        None
    }

    /// One chain per match of the TLS routes.
    fn by_tls_routes(&self, port: &GatewayPort, server: &GatewayServer, sni_owners: &mut SniOwners) -> Vec<ChainPlan> {
        let own = port_of(server);
        let mut chains = Vec::new();
        for rule in self.routes(server) {
            for route in rule.config.spec.tls.iter().filter(|t| !t.route.is_empty()) {
                for matching in route.r#match.iter().filter(|m| is_for(m.port, &m.gateways, server)) {
                    let known = sni_owners.entry(port.number).or_default();
                    // Envoy rejects two chains with the same server name.
                    if matching.sni_hosts.iter().any(|host| known.get(host) == Some(&port.bind)) {
                        continue;
                    }
                    known.extend(matching.sni_hosts.iter().map(|host| (host.clone(), port.bind.clone())));
                    let Some(filters) = tcp_routes::routed(self.context, &route.route, &own, &rule.config) else {
                        continue;
                    };
                    let names: Vec<Str> = matching.sni_hosts.iter().map(|h| Str::from(h.as_str())).collect();
                    chains.push(self.chain(&names, None, filters));
                }
            }
        }
        chains
    }

    /// AUTO_PASSTHROUGH: one chain per cluster, matched by SNI, for clients from other networks. The chains accept only
    /// mesh TLS, and their clusters have only mesh endpoints, so all traffic is authenticated end to end.
    fn by_cluster_name(&self, server: &GatewayServer) -> Vec<ChainPlan> {
        let view = self.context.view;
        let exposed = view
            .services()
            .iter()
            .filter(|s| !s.mesh_external && server.sni_hosts.iter().any(|host| s.hostname.is_subset_of(host)));
        let mut chains = Vec::new();
        for service in exposed {
            let rule = view.destination_rule(&service.hostname);
            let subsets = rule.iter().flat_map(|r| r.rule.spec.subsets.iter().map(|s| s.name.as_str()));
            let subsets: Vec<&str> = std::iter::once("").chain(subsets).collect();
            for port in service.proxied_ports() {
                for subset in &subsets {
                    let cluster = names::server_name(port.number, subset, &service.hostname);
                    let filters = tcp_routes::to_cluster(self.context, service, port, subset, &cluster);
                    let mut chain = self.chain(&[cluster.as_str().into()], None, filters);
                    if let Some(matching) = &mut chain.matching {
                        matching.alpn = MESH_ALPN.iter().map(|a| Str::from(*a)).collect();
                    }
                    chains.push(chain);
                }
            }
        }
        chains
    }

    /// VirtualServices bound to the server's gateway, for hosts of the server.
    fn routes(&self, server: &GatewayServer) -> Vec<std::sync::Arc<VirtualServiceRule>> {
        let mut routes = self.context.view.gateway_routes(&server.gateway);
        routes.retain(|rule| {
            let hosts = &rule.config.spec.hosts;
            hosts.iter().any(|h| server.spec.hosts.iter().any(|own| has_host(own, h, &rule.config.meta.namespace)))
        });
        routes
    }

    fn chain(&self, names: &[Str], terminated: Option<&GatewayServer>, filters: Vec<NetworkFilter>) -> ChainPlan {
        let any = names.is_empty() || names.iter().any(|n| **n == *"*");
        let matching =
            ChainMatch { server_names: if any { Vec::new() } else { names.to_vec() }, ..ChainMatch::default() };
        let tls = terminated.and_then(|server| {
            let bytes = !server.protocol().is_http() && server.protocol() != Protocol::Https;
            server.spec.tls.as_ref().map(|tls| server_tls::of_gateway(self.context.view, tls, bytes))
        });
        ChainPlan {
            name: "".into(),
            matching: (matching != ChainMatch::default()).then_some(matching),
            config: None,
            tls: tls.map(Hashed::new),
            handshake_timeout: self.context.handshake_timeout,
            filters,
        }
    }
}

fn port_of(server: &GatewayServer) -> Port {
    let name = server.spec.port.as_ref().map_or("", |p| &p.name);
    Port { name: name.into(), number: u16::try_from(server.port()).unwrap_or_default(), protocol: server.protocol() }
}

/// Whether a match applies to this server: its port and gateways are unset or the server's own.
fn is_for(port: u32, gateways: &[String], server: &GatewayServer) -> bool {
    (port == 0 || port == server.port()) && (gateways.is_empty() || gateways.iter().any(|g| **g == *server.gateway))
}

/// Whether a server's host (`host` or `namespace/host`) overlaps with a host of a VirtualService in this namespace.
fn has_host(own: &str, host: &str, namespace: &str) -> bool {
    let own = match own.split_once('/') {
        Some((required, own)) if required == namespace => own,
        Some(_) => return false,
        None => own,
    };
    Hostname::from(own).overlaps(host)
}

/// Whether the listener needs the TLS inspector: to match server names and ALPN, and always for TLS passthrough.
fn inspects_tls(port: &GatewayPort, chains: &[ChainPlan]) -> bool {
    let passes =
        |s: &std::sync::Arc<GatewayServer>| s.spec.tls.as_ref().is_some_and(|t| t.mode() == TlSmode::Passthrough);
    let matches = |c: &ChainPlan| c.tls.is_some() || c.matching.as_ref().is_some_and(|m| !m.server_names.is_empty());
    // A plain HTTP port may have TLS settings too, for the redirect to HTTPS.
    let goes_through = !port.protocol.is_http() && port.servers.iter().any(passes);
    chains.iter().any(matches) || (!chains.is_empty() && goes_through)
}
