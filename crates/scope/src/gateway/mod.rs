//! All gateways of one router workload merged into one: which ports it opens, which servers share a port,
//! and the names of the route tables with their virtual hosts.

mod merge;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::istio::networking::v1alpha3::server_tls_settings::TlSmode;
use api::istio::networking::v1alpha3::{Gateway as IstioGateway, Server};
use model::config::Config;
use model::credential_refs::BACKEND_CERTIFICATE_NOTE;
use model::hashed::Hashed;
use model::labels::selects;
use model::names::{Namespace, Str};
use model::port::Protocol;
use model::proxy::{Proxy, ProxyKind};
use model::snapshot::Snapshot;

use crate::credentials;
use crate::inbound::ServiceTarget;

const GATEWAY_SERVICE: &str = "internal.istio.io/gateway-service";
const SEMANTICS: &str = "internal.istio.io/gateway-semantics";
const ACCOUNT: &str = "internal.istio.io/service-account-name";
const PARENT_NAMESPACE: &str = "internal.istio.io/parent-namespace";

/// All gateways that select a workload, merged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct MergedGateway {
    /// Ports to open, in the order of the gateways.
    pub ports: Vec<GatewayPort>,
    /// The servers whose virtual hosts are in the route table of this name.
    pub servers_by_route: BTreeMap<Str, Vec<Arc<GatewayServer>>>,
    /// Hosts that clients of other networks may reach by SNI alone; `None` if no server allows it.
    pub auto_passthrough_hosts: Option<BTreeSet<Str>>,
    /// Resource names of secrets that the gateways refer to and that this workload may therefore have.
    pub secrets: BTreeSet<Str>,
    /// The one of them that is presented to backends.
    pub backend_certificate: Option<Str>,
}

/// One port of one bind address, with the servers that share it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GatewayPort {
    pub number: u32,
    pub protocol: Protocol,
    /// The address to bind; empty for all.
    pub bind: Str,
    /// The route table of plain-text HTTP servers; each TLS server has its own.
    pub route: Str,
    pub servers: Vec<Arc<GatewayServer>>,
}

/// One server of one gateway.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GatewayServer {
    /// As written, with hosts normalized to `host` or `namespace/host`.
    pub spec: Hashed<Server>,
    /// `namespace/name` of the gateway.
    pub gateway: Str,
    /// The route table with its virtual hosts; empty for TCP.
    pub route: Str,
    /// Server names (SNI) of its TLS connections, sorted.
    pub sni_hosts: Vec<Str>,
    /// Requests on its connections to a host of another HTTPS server of the port are answered with 421.
    pub detects_misdirected: bool,
}

impl GatewayServer {
    pub fn protocol(&self) -> Protocol {
        protocol(&self.spec)
    }

    /// The port as written in the gateway, before a Service maps it to another.
    pub fn port(&self) -> u32 {
        self.spec.port.as_ref().map_or(0, |p| p.number)
    }

    /// TLS is passed through.
    pub fn is_passthrough(&self) -> bool {
        is_passthrough(&self.spec)
    }

    /// HTTPS with TLS terminated here.
    pub fn terminates_https(&self) -> bool {
        self.spec.tls.is_some() && self.protocol() == Protocol::Https && !self.is_passthrough()
    }
}

fn protocol(server: &Server) -> Protocol {
    server.port.as_ref().map_or(Protocol::Unknown, |p| Protocol::parse(&p.protocol))
}

fn is_passthrough(server: &Server) -> bool {
    server.tls.as_ref().is_some_and(|tls| matches!(tls.mode(), TlSmode::Passthrough | TlSmode::AutoPassthrough))
}

/// The merged gateway of this client; `None` if it is not a router or no gateway selects it.
pub(crate) fn merged(world: &Snapshot, proxy: &Proxy, inbound: &[ServiceTarget]) -> Option<MergedGateway> {
    if proxy.kind != ProxyKind::Router {
        return None;
    }
    let scoped = world.settings.knobs.scope_gateway_to_namespace;
    let gateways = world.gateways.gateways.iter().filter(|g| !scoped || g.meta.namespace == proxy.namespace);
    let mut merge = merge::Merge::default();
    let mut any = false;
    let mut secrets = BTreeSet::new();
    let mut backend_certificate = None;
    let mut selected: Vec<_> = gateways.filter_map(|g| Some((g, ports_of(g, proxy, inbound)?))).collect();
    if world.settings.knobs.strict_gateway_merging {
        keep_apart(&mut selected);
    }
    for (gateway, ports) in selected {
        any = true;
        merge.add(gateway, &ports);
        let named = credentials::named_by(world, proxy, gateway, owner(gateway));
        let presented = gateway.meta.annotations.get(BACKEND_CERTIFICATE_NOTE).map(|name| Str::from(&**name));
        backend_certificate = backend_certificate.or(presented.filter(|name| named.contains(name)));
        secrets.extend(named);
    }
    any.then(|| MergedGateway { secrets, backend_certificate, ..merge.finish() })
}

/// Istio Gateways of other namespaces do not apply to the proxies of a Gateway API gateway that we deploy: their
/// authors could otherwise have these proxies serve their hosts and read the gateway's certificates.
fn keep_apart(selected: &mut Vec<(&Config<IstioGateway>, PortMap<'_>)>) {
    let note =
        |gateway: &Config<IstioGateway>, key: &str| gateway.meta.annotations.get(key).cloned().unwrap_or_default();
    let is_of_api = |gateway: &Config<IstioGateway>| *note(gateway, SEMANTICS) == *"gateway";
    let managed = selected.iter().filter(|(gateway, _)| is_of_api(gateway) && !note(gateway, ACCOUNT).is_empty());
    let homes: BTreeSet<Namespace> = managed.map(|(gateway, _)| gateway.meta.namespace.clone()).collect();
    if !homes.is_empty() {
        selected.retain(|(gateway, _)| is_of_api(gateway) || homes.contains(&gateway.meta.namespace));
    }
}

/// How a gateway's ports map to the workload's.
struct PortMap<'a> {
    targets: Vec<&'a ServiceTarget>,
    /// A gateway that selects by labels may use ports that no service has.
    by_labels: bool,
}

impl PortMap<'_> {
    /// The workload's ports for a port of the gateway.
    fn resolve(&self, number: u32) -> Vec<u32> {
        const OPT_OUT: &str = "experimental.istio.io/disable-gateway-port-translation";
        let translated = self.targets.iter().filter(|t| !self.by_labels || t.service.labels.get(OPT_OUT).is_none());
        let mut found: Vec<u32> =
            translated.filter(|t| u32::from(t.port.number) == number).map(|t| t.target_port).collect();
        if self.by_labels {
            return vec![found.first().copied().unwrap_or(number)];
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// The namespace whose workloads a gateway is for; for a gateway made from a ListenerSet, its parent's.
fn owner(gateway: &Config<IstioGateway>) -> &str {
    let parent = gateway.meta.annotations.get(PARENT_NAMESPACE).filter(|namespace| !namespace.is_empty());
    parent.map_or(gateway.meta.namespace.as_str(), |namespace| namespace)
}

/// The ports of a gateway that applies to this workload; `None` if it does not apply.
fn ports_of<'a>(gateway: &Config<IstioGateway>, proxy: &Proxy, inbound: &'a [ServiceTarget]) -> Option<PortMap<'a>> {
    if let Some(services) = gateway.meta.annotations.get(GATEWAY_SERVICE) {
        let namespace = owner(gateway);
        let named = |t: &&ServiceTarget| {
            t.service.namespace == namespace && services.split(',').any(|s| t.service.hostname == s)
        };
        let targets: Vec<&ServiceTarget> = inbound.iter().filter(named).collect();
        return (!targets.is_empty()).then_some(PortMap { targets, by_labels: false });
    }
    let selected = selects(&gateway.spec.selector, &proxy.labels);
    selected.then(|| PortMap { targets: inbound.iter().collect(), by_labels: true })
}
