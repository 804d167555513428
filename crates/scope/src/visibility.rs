//! Services and routes that are visible to a namespace: its own, and those exported to it.

use std::sync::Arc;

use model::names::{Namespace, ServiceKey};
use model::service::{Registry, Service};
use model::settings::Settings;
use model::snapshot::routing::{Routing, VirtualServiceRule};

use crate::sections::Sections;

/// The reserved gateway name for all sidecars.
const MESH: &str = "mesh";
const SEMANTICS: &str = "internal.istio.io/route-semantics";

/// Everything that clients of one namespace may import.
pub(crate) struct Exported {
    /// Services exported to this namespace by name before public ones, each part oldest first.
    pub(crate) services: Vec<Arc<Service>>,
    /// In-mesh routes: the namespace's private ones, those exported to it by name, public ones.
    pub(crate) virtual_services: Vec<Arc<VirtualServiceRule>>,
}

impl Exported {
    pub(crate) fn to(world: &Sections, client: &Namespace) -> Exported {
        let default = world.settings.default_service_export();
        let visible = world.services.iter().filter(|s| s.export_to.or(&default).admits(&s.namespace, client));
        let (public, named): (Vec<_>, Vec<_>) = visible.cloned().partition(|s| s.export_to.or(&default).is_public());
        Exported {
            services: named.into_iter().chain(public).collect(),
            virtual_services: routes(&world.routing, &world.settings, client, MESH),
        }
    }
}

/// Routes bound to this gateway that clients of a namespace may see.
pub(crate) fn routes(
    routing: &Routing,
    settings: &Settings,
    client: &Namespace,
    gateway: &str,
) -> Vec<Arc<VirtualServiceRule>> {
    let default = settings.default_virtual_service_export();
    let bound = routing.virtual_services.iter().filter(|r| is_bound(r, gateway));
    let (mut private, mut named, mut public) = (Vec::new(), Vec::new(), Vec::new());
    for rule in bound {
        let owner = &rule.config.meta.namespace;
        let export_to = rule.export_to.or(&default);
        if export_to.is_public() {
            public.push(rule.clone());
        } else if export_to.admits(owner, client) {
            if owner == client { &mut private } else { &mut named }.push(rule.clone());
        }
    }
    private.into_iter().chain(named).chain(own_first(public, client)).collect()
}

/// Routes with gateway semantics: those of the client's own namespace come first.
fn own_first(rules: Vec<Arc<VirtualServiceRule>>, client: &Namespace) -> impl Iterator<Item = Arc<VirtualServiceRule>> {
    let preferred = |r: &Arc<VirtualServiceRule>| has_gateway_semantics(r) && r.config.meta.namespace == *client;
    let (own, rest): (Vec<_>, Vec<_>) = rules.into_iter().partition(preferred);
    own.into_iter().chain(rest)
}

/// Whether the route was made from a Gateway API object.
pub(crate) fn has_gateway_semantics(rule: &VirtualServiceRule) -> bool {
    rule.config.meta.annotations.get(SEMANTICS).is_some_and(|v| **v == *"gateway")
}

/// A route without gateways is for sidecars.
fn is_bound(rule: &VirtualServiceRule, gateway: &str) -> bool {
    let gateways = &rule.config.spec.gateways;
    if gateways.is_empty() { gateway == MESH } else { gateways.iter().any(|g| g == gateway) }
}

/// The service that a route of this namespace means by a host: its own namespace's, else the best visible one,
/// Kubernetes services before others and older ones before younger.
pub(crate) fn destination<'a>(world: &'a Sections, host: &str, client: &Namespace) -> Option<&'a Arc<Service>> {
    let own = world.services.get(&ServiceKey { hostname: host.into(), namespace: client.clone() });
    if own.is_some() {
        return own;
    }
    let default = world.settings.default_service_export();
    let visible = world.services.owners(host).filter(|s| s.export_to.or(&default).admits(&s.namespace, client));
    visible.min_by_key(|s| (s.registry != Registry::Kubernetes, s.created, s.namespace.clone()))
}
