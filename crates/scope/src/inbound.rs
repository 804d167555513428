//! Services that a proxy itself is an endpoint of: what its inbound listeners must serve.

use std::sync::Arc;

use model::port::Port;
use model::proxy::Proxy;
use model::service::Service;
use model::snapshot::Snapshot;

/// One port of one service that this proxy serves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceTarget {
    pub service: Arc<Service>,
    pub port: Port,
    /// The port that the workload really listens on.
    pub target_port: u32,
}

/// The proxy's own services: those of its namespace with an endpoint at one of its addresses, oldest first.
/// Where several share a port the first one owns it.
pub fn targets(world: &Snapshot, proxy: &Proxy) -> Vec<ServiceTarget> {
    let mut found = Vec::new();
    for ip in &proxy.ips {
        let address = ip.to_string();
        for key in world.endpoints.at(&address) {
            if !proxy.namespace.is_empty() && key.namespace != proxy.namespace {
                continue;
            }
            let Some(service) = world.services.get(key) else { continue };
            for endpoint in world.endpoints.of(key).filter(|e| e.addresses.iter().any(|a| **a == *address)) {
                let Some(port) = service.port_by_name(&endpoint.service_port) else { continue };
                let target = ServiceTarget { service: service.clone(), port: port.clone(), target_port: endpoint.port };
                if !found.contains(&target) {
                    found.push(target);
                }
            }
        }
    }
    let age = |t: &ServiceTarget| (t.service.created, t.service.hostname.clone());
    found.sort_by_cached_key(age);
    found
}
