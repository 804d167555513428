//! Inbound clusters: one per port of the workload's services or of its Sidecar's ingress listeners.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use api::istio::mesh::v1alpha1::mesh_config::inbound_traffic_policy::Mode;
use api::istio::networking::v1alpha3::{ConnectionPoolSettings, IstioIngressListener, Sidecar};
use model::hashed::Hashed;
use model::names::{Hostname, Namespace, Str};
use model::port::{Port, Protocol};
use model::proxy::Interception;
use model::service::{Registry, Service};
use scope::ReadProxy;
use scope::View;
use scope::inbound::ServiceTarget;

use super::{AppliedRule, ClusterContext, ClusterKind, ClusterPlan, ServiceLabel};
use crate::names;
use crate::telemetry::stat_name::StatName;

const LOCALHOST_V4: &str = "127.0.0.1";
const LOCALHOST_V6: &str = "::1";
/// Source addresses that iptables does not redirect.
const PASSTHROUGH_V4: &str = "127.0.0.6";
const PASSTHROUGH_V6: &str = "::6";
const UNIX_PREFIX: &str = "unix://";

/// An inbound cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InboundPlan {
    /// The workload's port, which is in the cluster's name.
    pub workload_port: u32,
    /// Hosts of all services with this target port, for matches of EnvoyFilters.
    pub hosts: Vec<Hostname>,
    /// Services on the port, for telemetry; the first one is the owner.
    pub services: Vec<ServiceLabel>,
    /// The service port, for port-level settings.
    pub port: u16,
    pub protocol: Protocol,
    /// Stat name by the mesh's pattern; `None` for the cluster's name.
    pub stat_name: Option<Str>,
    pub destination: InboundDestination,
    /// Only its connection pool is used: the server must accept what its clients may send.
    pub rule: Option<AppliedRule>,
    /// The Sidecar's connection pool, which takes precedence over the rule's.
    pub pool: Option<Hashed<ConnectionPoolSettings>>,
    /// Source addresses, so that iptables does not redirect the connection. Empty for localhost.
    pub bind: Vec<Str>,
}

/// The address that the workload is called at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum InboundDestination {
    /// The original destination, with another port if given.
    Original { port_override: Option<u16> },
    /// An address, or a path if the port is 0.
    Fixed { address: Str, port: u32 },
}

/// All inbound clusters.
pub fn plans(view: &View, context: &Arc<ClusterContext>) -> Vec<ClusterPlan> {
    let sidecar = view.sidecar.as_ref().map(|s| &*s.spec).filter(|s| !s.ingress.is_empty());
    let Some(sidecar) = sidecar else {
        // Without interception, the proxy cannot listen on the workload's ports.
        if view.proxy.interception == Interception::None {
            return Vec::new();
        }
        return of_services(view, context, None);
    };
    let mut found = Vec::new();
    if view.settings.knobs.auto_inbound_ports {
        found = of_services(view, context, Some(sidecar));
    }
    found.extend(sidecar.ingress.iter().filter_map(|listener| of_listener(view, context, listener)));
    found
}

/// One cluster per target port of services, except ports of the Sidecar's ingress listeners.
fn of_services(view: &View, context: &Arc<ClusterContext>, sidecar: Option<&Sidecar>) -> Vec<ClusterPlan> {
    let mut by_port: BTreeMap<u32, Vec<&ServiceTarget>> = BTreeMap::new();
    for target in view.inbound.iter() {
        by_port.entry(target.target_port).or_default().push(target);
    }
    let listed = |port: u32| sidecar.is_some_and(|s| s.ingress.iter().any(|l| listener_port(l) == port));
    let plan = |(port, targets): (u32, Vec<&ServiceTarget>)| {
        let owner = targets.first()?;
        let destination = if sends_to_localhost(context) {
            InboundDestination::Fixed { address: localhosts(&view.proxy)[0].into(), port: owner.target_port }
        } else {
            original(&owner.service, &owner.port)
        };
        let hosts = targets.iter().map(|t| t.service.hostname.clone()).collect();
        let served = InboundService {
            number: port,
            service: &owner.service,
            port: &owner.port,
            hosts,
            labels: labels(&targets),
        };
        Some(cluster(view, context, served, destination))
    };
    by_port.into_iter().filter(|(port, _)| !listed(*port)).filter_map(plan).collect()
}

fn sends_to_localhost(context: &ClusterContext) -> bool {
    context.mesh.inbound_traffic_policy.as_ref().is_some_and(|p| p.mode() != Mode::Passthrough)
}

/// The cluster of an ingress listener; `None` if its default endpoint is invalid.
fn of_listener(view: &View, context: &Arc<ClusterContext>, listener: &IstioIngressListener) -> Option<ClusterPlan> {
    let spec = listener.port.as_ref()?;
    let port = Port {
        name: spec.name.as_str().into(),
        number: u16::try_from(spec.number).ok()?,
        protocol: Protocol::parse(&spec.protocol),
    };
    let served = view.inbound.iter().find(|t| t.target_port == spec.number).map(|t| &t.service);
    let unnamed;
    let service = match served {
        Some(service) => service,
        None => {
            unnamed = nameless(view);
            &unnamed
        }
    };
    let destination = match default_endpoint(&view.proxy, &listener.default_endpoint)? {
        Some((address, port)) => InboundDestination::Fixed { address, port },
        None => original(service, &port),
    };
    let labels = if service.mesh_external { Vec::new() } else { vec![ServiceLabel::of(service)] };
    let hosts = vec![service.hostname.clone()];
    let served = InboundService { number: spec.number, service, port: &port, hosts, labels };
    Some(cluster(view, context, served, destination))
}

/// The service of an inbound cluster.
struct InboundService<'a> {
    /// The port in the cluster's name.
    number: u32,
    /// The owner of the port, and its service port.
    service: &'a Service,
    port: &'a Port,
    hosts: Vec<Hostname>,
    labels: Vec<ServiceLabel>,
}

fn listener_port(listener: &IstioIngressListener) -> u32 {
    listener.port.as_ref().map_or(0, |p| p.number)
}

fn cluster(
    view: &View,
    context: &Arc<ClusterContext>,
    served: InboundService<'_>,
    destination: InboundDestination,
) -> ClusterPlan {
    let InboundService { number, service, port, hosts, labels } = served;
    let pattern = &context.mesh.inbound_cluster_stat_name;
    let stat_name = StatName { target_port: Some(number), ..StatName::outbound(service, "", port.number, &port.name) };
    let to_localhost = matches!(&destination, InboundDestination::Fixed { address, .. } if [LOCALHOST_V4, LOCALHOST_V6].contains(&&**address));
    let mut bind = passthrough_addresses(&view.proxy);
    if !view.settings.knobs.dual_stack {
        bind.truncate(1);
    }
    let inbound = InboundPlan {
        workload_port: number,
        hosts,
        services: labels,
        port: port.number,
        protocol: port.protocol,
        stat_name: (!pattern.is_empty()).then(|| stat_name.fill(pattern).into()),
        destination,
        rule: view.inbound_rule(&service.hostname).map(|rule| AppliedRule::new(rule, None)),
        pool: sidecar_pool(view, number).copied().map(Hashed::from_message),
        bind: if to_localhost { Vec::new() } else { bind },
    };
    let kind = ClusterKind::Inbound(Box::new(inbound));
    ClusterPlan { name: names::inbound_cluster(number).into(), context: context.clone(), kind, has_duplicate: false }
}

/// The connection pool of the Sidecar's ingress listener on this port, or of its whole inbound traffic.
fn sidecar_pool(view: &View, port: u32) -> Option<&ConnectionPoolSettings> {
    let sidecar = &view.sidecar.as_ref()?.spec;
    let own = sidecar.ingress.iter().filter(|l| listener_port(l) == port).find_map(|l| l.connection_pool.as_ref());
    own.or(sidecar.inbound_connection_pool.as_ref())
}

/// Services with the same service port as the owner, without duplicates. Empty for an external owner.
fn labels(targets: &[&ServiceTarget]) -> Vec<ServiceLabel> {
    let Some(owner) = targets.first().filter(|t| !t.service.mesh_external) else { return Vec::new() };
    let mut found: Vec<ServiceLabel> = Vec::new();
    for target in targets.iter().filter(|t| t.port.number == owner.port.number) {
        if !found.iter().any(|label| label.host == target.service.hostname) {
            found.push(ServiceLabel::of(&target.service));
        }
    }
    found
}

fn original(service: &Service, port: &Port) -> InboundDestination {
    let ports = &service.passthrough_ports;
    let port_override = ports.iter().find(|(number, _)| *number == port.number).map(|(_, target)| *target);
    InboundDestination::Original { port_override }
}

/// A placeholder service for a port of no service.
fn nameless(view: &View) -> Arc<Service> {
    let name = view.sidecar.as_ref().map_or_else(Str::default, |s| s.meta.name.clone());
    let namespace = Namespace::clone(&view.proxy.namespace);
    let hostname = Hostname::from(format!("{name}.{namespace}"));
    let service = Service::new(Registry::External, hostname, namespace, name, Vec::new());
    Arc::new(Service { mesh_external: true, ..service })
}

/// Parses a listener's default endpoint. The outer `None` is an error; the inner `None` is the original destination.
/// The unspecified address means the workload's own address. Hosts other than it and localhost are ignored.
fn default_endpoint(proxy: &ReadProxy, text: &str) -> Option<Option<(Str, u32)>> {
    if text.is_empty() {
        return Some(None);
    }
    if text.starts_with(UNIX_PREFIX) {
        return Some(Some((text.into(), 0)));
    }
    let (host, port) = text.rsplit_once(':')?;
    let port: u32 = port.parse().ok()?;
    let address = match host.trim_matches(['[', ']']) {
        "0.0.0.0" => own_address(proxy, IpAddr::is_ipv4).unwrap_or_else(|| LOCALHOST_V4.into()),
        "::" => own_address(proxy, IpAddr::is_ipv6).unwrap_or_else(|| LOCALHOST_V6.into()),
        LOCALHOST_V4 => localhosts(proxy)[0].into(),
        LOCALHOST_V6 => Str::from(localhosts(proxy).last().copied().unwrap_or(LOCALHOST_V6)),
        _ => return Some(None),
    };
    Some(Some((address, port)))
}

fn own_address(proxy: &ReadProxy, family: fn(&IpAddr) -> bool) -> Option<Str> {
    proxy.ips.iter().find(|ip| family(ip)).map(|ip| ip.to_string().into())
}

/// Loopback addresses of the proxy's IP families, IPv4 first.
fn localhosts(proxy: &ReadProxy) -> &'static [&'static str] {
    match (proxy.has_ipv4(), proxy.has_ipv6()) {
        (true, true) => &[LOCALHOST_V4, LOCALHOST_V6],
        (false, true) => &[LOCALHOST_V6],
        _ => &[LOCALHOST_V4],
    }
}

/// Source addresses that iptables does not redirect, one per IP family of the proxy.
pub(super) fn passthrough_addresses(proxy: &ReadProxy) -> Vec<Str> {
    let families = [(proxy.has_ipv4(), PASSTHROUGH_V4), (proxy.has_ipv6(), PASSTHROUGH_V6)];
    families.into_iter().filter(|(has, _)| *has).map(|(_, address)| address.into()).collect()
}
