//! Destinations of routes: cluster, consistent hashing, persistent sessions.

use api::istio::networking::v1alpha3::load_balancer_settings::{ConsistentHashLb, LbPolicy};
use api::istio::networking::v1alpha3::traffic_policy::PortTrafficPolicy;
use api::istio::networking::v1alpha3::{Destination, LoadBalancerSettings, TrafficPolicy};
use model::hashed::Hashed;
use model::names::Str;
use model::service::Service;
use scope::View;

use super::{Hashing, SessionState};
use crate::names::{self, ClusterForm, OutboundCluster};

const SESSION_LABEL: &str = "istio.io/persistent-session";
const SESSION_HEADER_LABEL: &str = "istio.io/persistent-session-header";

/// The cluster of a destination called on `listener_port`; `None` without a host. The default port is the service's
/// only port, or else the listener's.
pub(in crate::plan) fn cluster(
    destination: &Destination,
    service: Option<&Service>,
    listener_port: u16,
) -> Option<OutboundCluster> {
    if destination.host.is_empty() {
        return None;
    }
    let only_port = service.and_then(|s| if let [port] = &s.ports[..] { Some(port.number) } else { None });
    let port = match &destination.port {
        Some(port) => port.number as u16,
        None => only_port.unwrap_or(listener_port),
    };
    // An ExternalName alias uses the cluster of its target.
    let alias_of = service.and_then(|s| s.kubernetes.as_ref()).and_then(|k| k.alias_of.as_deref());
    let host = alias_of.unwrap_or(&destination.host).into();
    Some(OutboundCluster { port, subset: destination.subset.as_str().into(), host, form: ClusterForm::Plain })
}

/// The name of the cluster that `cluster` returns.
pub(in crate::plan) fn cluster_name(destination: &Destination, service: Option<&Service>, listener_port: u16) -> Str {
    match cluster(destination, service, listener_port) {
        Some(cluster) => cluster.to_string().into(),
        None => names::UNKNOWN_SERVICE.into(),
    }
}

/// Consistent hashing of a service's DestinationRule for one port.
pub(super) fn hashing_of_service(view: &View, host: &str, port: u16) -> Option<Hashing> {
    let rule = view.destination_rule(host)?;
    let policy = rule.rule.spec.traffic_policy.as_ref()?;
    let of_port = at_port(&policy.port_level_settings, u32::from(port)).and_then(|p| hash(p.load_balancer.as_ref()));
    of_port.or_else(|| hash(policy.load_balancer.as_ref())).map(|h| Hashed::from_message(h.clone()))
}

/// Consistent hashing of a destination. Its subset takes precedence over the rule, port-level settings over others.
pub(super) fn hashing(view: &View, destination: &Destination) -> Option<Hashing> {
    let rule = view.destination_rule(&destination.host)?;
    let subset = rule.rule.spec.subsets.iter().find(|s| s.name == destination.subset);
    let subset = subset.and_then(|s| s.traffic_policy.as_ref());
    let whole = rule.rule.spec.traffic_policy.as_ref();
    let of_port = |policy: Option<&TrafficPolicy>| {
        let port = destination.port.as_ref()?.number;
        hash(at_port(&policy?.port_level_settings, port)?.load_balancer.as_ref()).cloned()
    };
    let of_all = |policy: Option<&TrafficPolicy>| hash(policy?.load_balancer.as_ref()).cloned();
    let found = of_port(subset).or_else(|| of_all(subset)).or_else(|| of_port(whole)).or_else(|| of_all(whole));
    found.map(Hashed::from_message)
}

fn at_port(settings: &[PortTrafficPolicy], port: u32) -> Option<&PortTrafficPolicy> {
    settings.iter().find(|s| s.port.as_ref().map_or(0, |p| p.number) == port)
}

fn hash(settings: Option<&LoadBalancerSettings>) -> Option<&ConsistentHashLb> {
    match settings?.lb_policy.as_ref()? {
        LbPolicy::ConsistentHash(hash) => Some(hash),
        LbPolicy::Simple(_) => None,
    }
}

/// The persistent session configured by a service's labels, if the mesh enables them.
pub(super) fn session(view: &View, service: &Service) -> Option<SessionState> {
    if !view.settings.knobs.persistent_session {
        return None;
    }
    let label = |key: &str| service.labels.get(key).filter(|v| !v.is_empty());
    if let Some(cookie) = label(SESSION_LABEL) {
        let (name, path) = cookie.split_once(':').unwrap_or((cookie, "/"));
        return Some(SessionState::Cookie { name: name.into(), path: path.into() });
    }
    label(SESSION_HEADER_LABEL).map(|name| SessionState::Header(name.clone()))
}
