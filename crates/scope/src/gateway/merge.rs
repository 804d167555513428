//! Merges servers port by port. Plain-text HTTP servers share a port, TLS servers share one by server name;
//! a server that conflicts with an older one is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::istio::networking::v1alpha3::server_tls_settings::TlSmode;
use api::istio::networking::v1alpha3::{Gateway, Server};
use model::config::{Config, Meta};
use model::hashed::Hashed;
use model::names::{Namespace, Str};
use model::port::Protocol;

use super::{GatewayPort, GatewayServer, MergedGateway, PortMap, is_passthrough, protocol};

/// Set on Gateways that are converted from the Gateway API.
const MISDIRECTED: &str = "internal.istio.io/misdirected-requests";

/// The result of the merge so far.
#[derive(Default)]
pub(super) struct Merge {
    gateway: MergedGateway,
    /// The newest plain-text listener of each port.
    plain: BTreeMap<u32, PortKey>,
    /// TLS hosts of each port, with the last bind address they were claimed for.
    tls_hosts: BTreeMap<u32, BTreeMap<String, String>>,
    taken: BTreeSet<u32>,
}

/// Listeners with the same key are the same listener.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PortKey {
    number: u32,
    protocol: String,
    bind: Str,
}

impl Merge {
    pub(super) fn add(&mut self, gateway: &Config<Gateway>, ports: &PortMap<'_>) {
        for server in gateway.spec.servers.iter().filter(|s| s.port.is_some()) {
            let server = with_plain_hosts(server, &gateway.meta.namespace);
            let number = server.port.as_ref().map_or(0, |p| p.number);
            for resolved in ports.resolve(number) {
                self.add_server(&server, resolved, &gateway.meta);
            }
        }
    }

    fn add_server(&mut self, server: &Server, number: u32, meta: &Meta) {
        if server.tls.is_some() && !self.claim_hosts(server, number) {
            return;
        }
        let key = PortKey {
            number,
            protocol: server.port.as_ref().map(|p| p.protocol.clone()).unwrap_or_default(),
            bind: server.bind.as_str().into(),
        };
        let entry = Arc::new(GatewayServer {
            spec: Hashed::from_message(server.clone()),
            gateway: format!("{}/{}", meta.namespace, meta.name).into(),
            route: route_name(server, number, meta),
            sni_hosts: sni_hosts(server),
            detects_misdirected: meta.annotations.contains_key(MISDIRECTED) && is_tls(server) && is_http(server),
        });
        if self.taken.insert(number) {
            self.open(key, entry);
        } else if let Some(known) = self.plain.get(&number).cloned() {
            self.join_plain(key, &known, entry);
        } else if is_tls(server) {
            self.join_tls(key, entry);
        } else {
            self.open(key, entry);
        }
    }

    /// Envoy rejects two filter chains with the same server name, so a host is served once per port and address.
    fn claim_hosts(&mut self, server: &Server, number: u32) -> bool {
        let known = self.tls_hosts.entry(number).or_default();
        if server.hosts.iter().any(|host| known.get(host) == Some(&server.bind)) {
            return false;
        }
        known.extend(server.hosts.iter().map(|host| (host.clone(), server.bind.clone())));
        true
    }

    /// Adds a separate listener for a server.
    fn open(&mut self, key: PortKey, server: Arc<GatewayServer>) {
        if !is_tls(&server.spec) {
            self.plain.insert(key.number, key.clone());
        }
        if is_http(&server.spec) {
            self.gateway.servers_by_route.insert(server.route.clone(), vec![server.clone()]);
        }
        self.gateway.ports.push(GatewayPort {
            number: key.number,
            protocol: Protocol::parse(&key.protocol),
            bind: key.bind,
            route: server.route.clone(),
            servers: vec![server],
        });
    }

    fn join_plain(&mut self, key: PortKey, known: &PortKey, server: Arc<GatewayServer>) {
        let same_bind = known.bind == key.bind;
        let mergeable = can_share(Protocol::parse(&key.protocol), Protocol::parse(&known.protocol));
        if same_bind && (!mergeable || server.route.is_empty()) {
            return;
        }
        let target = if same_bind { known } else { &key };
        match self.port(target) {
            None => self.open(key, server),
            Some(port) => {
                if !same_bind {
                    port.route = server.route.clone();
                }
                port.servers.push(server.clone());
                self.gateway.servers_by_route.entry(server.route.clone()).or_default().push(server);
            }
        }
    }

    fn join_tls(&mut self, key: PortKey, server: Arc<GatewayServer>) {
        if is_http(&server.spec) {
            if server.route.is_empty() || self.gateway.servers_by_route.contains_key(&server.route) {
                return;
            }
            self.gateway.servers_by_route.insert(server.route.clone(), vec![server.clone()]);
        }
        match self.port(&key) {
            Some(port) => port.servers.push(server),
            None => self.gateway.ports.push(GatewayPort {
                number: key.number,
                protocol: Protocol::parse(&key.protocol),
                bind: key.bind,
                route: Str::from(""),
                servers: vec![server],
            }),
        }
    }

    fn port(&mut self, key: &PortKey) -> Option<&mut GatewayPort> {
        let protocol = Protocol::parse(&key.protocol);
        self.gateway.ports.iter_mut().find(|p| p.number == key.number && p.bind == key.bind && p.protocol == protocol)
    }

    pub(super) fn finish(mut self) -> MergedGateway {
        let all = self.gateway.ports.iter().flat_map(|p| p.servers.iter());
        let auto =
            |s: &&Arc<GatewayServer>| s.spec.tls.as_ref().is_some_and(|tls| tls.mode() == TlSmode::AutoPassthrough);
        let mut servers = all.filter(auto).peekable();
        if servers.peek().is_some() {
            let hosts = servers.flat_map(|s| s.spec.hosts.iter().map(|h| Str::from(h.as_str()))).collect();
            self.gateway.auto_passthrough_hosts = Some(hosts);
        }
        self.gateway
    }
}

/// The TLS settings of an HTTP server only request a redirect.
fn is_tls(server: &Server) -> bool {
    server.tls.is_some() && !protocol(server).is_http()
}

fn is_http(server: &Server) -> bool {
    protocol(server).is_http() || (protocol(server) == Protocol::Https && !is_passthrough(server))
}

fn can_share(newcomer: Protocol, known: Protocol) -> bool {
    (newcomer.is_http() || newcomer == known) && known.is_http()
}

/// `http.80`, `https.443.name.gateway.namespace`, with the bind address if there is one.
fn route_name(server: &Server, number: u32, meta: &Meta) -> Str {
    let bind = if server.bind.is_empty() { String::new() } else { format!(".{}", server.bind) };
    let Some(port) = &server.port else { return "".into() };
    if protocol(server).is_http() {
        return format!("http.{number}{bind}").into();
    }
    if protocol(server) == Protocol::Https && !is_passthrough(server) {
        return format!("https.{}.{}.{}.{}{bind}", port.number, port.name, meta.name, meta.namespace).into();
    }
    "".into()
}

fn sni_hosts(server: &Server) -> Vec<Str> {
    if server.tls.is_none() {
        return Vec::new();
    }
    let plain = server.hosts.iter().map(|h| h.split_once('/').map_or(h.as_str(), |(_, host)| host));
    let unique: BTreeSet<&str> = plain.collect();
    unique.into_iter().map(Str::from).collect()
}

/// `./host` means the gateway's own namespace, `*/host` any namespace.
fn with_plain_hosts(server: &Server, namespace: &Namespace) -> Server {
    let mut server = server.clone();
    if server.hosts.iter().any(|h| h == "*/*") {
        server.hosts = vec!["*".to_owned()];
        return server;
    }
    for host in &mut server.hosts {
        match host.split_once('/') {
            Some((".", name)) => *host = format!("{namespace}/{name}"),
            Some(("*", name)) => *host = name.to_owned(),
            _ => {}
        }
    }
    server
}
