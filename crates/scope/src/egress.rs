//! Which services and routes a client imports, by listener. Without a Sidecar resource there is one
//! catch-all listener that imports everything exported to the client's namespace.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::istio::networking::v1alpha3::{IstioEgressListener, Sidecar};
use model::config::Config;
use model::names::{Hostname, Namespace, Text};
use model::proxy::Proxy;
use model::service::Service;
use model::shared::Shared;
use model::snapshot::Snapshot;
use model::snapshot::routing::VirtualServiceRule;

/// One egress listener and what it imports.
#[derive(Clone, Debug)]
pub struct EgressListener {
    /// The Sidecar's listener; `None` for the catch-all of a client without one.
    pub spec: Option<Shared<IstioEgressListener>>,
    /// Imported services, oldest first, one namespace per host name.
    pub services: Vec<Arc<Service>>,
    /// Imported routes for in-mesh traffic, in order of precedence.
    pub virtual_services: Vec<Arc<VirtualServiceRule>>,
    /// For each service host with no route of its own: the route (namespace, name) of the most specific
    /// wildcard host that covers it.
    pub wildcard_routes: BTreeMap<Hostname, (Namespace, Text)>,
}

/// The Sidecar resource that rules this client.
pub(crate) fn sidecar_for(_world: &Snapshot, _proxy: &Proxy) -> Option<Config<Sidecar>> {
    None
}

/// The client's egress listeners.
pub(crate) fn listeners(world: &Snapshot, proxy: &Proxy, _sidecar: Option<&Config<Sidecar>>) -> Vec<EgressListener> {
    let services: Vec<Arc<Service>> = world
        .services
        .iter()
        .filter(|s| s.export_to.or(&world.settings.default_service_export()).admits(&s.namespace, &proxy.namespace))
        .cloned()
        .collect();
    let virtual_services = world.routing.virtual_services.clone();
    vec![EgressListener { spec: None, services, virtual_services, wildcard_routes: BTreeMap::new() }]
}

/// Services of all listeners, each host once.
pub(crate) fn imported_services(_world: &Snapshot, _proxy: &Proxy, egress: &[EgressListener]) -> Vec<Arc<Service>> {
    egress.iter().flat_map(|l| l.services.iter().cloned()).collect()
}
