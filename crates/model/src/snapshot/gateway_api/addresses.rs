//! Addresses of a gateway: the ports of its Services that have endpoints, and the addresses of these Services.

use std::collections::BTreeSet;

use super::conditions::{ConditionFault, StatusConditions};
use super::tracked::TrackedSnapshot;
use crate::service::Service;

/// Addresses of a gateway, and ports that could not be resolved.
#[derive(Debug, Default)]
pub(super) struct GatewayAddresses {
    /// `host:port` of each port with endpoints.
    pub(super) internal: BTreeSet<String>,
    /// Cluster addresses.
    pub(super) internal_addresses: BTreeSet<String>,
    /// Addresses of load balancers and nodes.
    pub(super) external: BTreeSet<String>,
    /// Hosts whose load balancer has no address yet.
    pub(super) pending: BTreeSet<String>,
    warnings: Vec<String>,
    unusable: bool,
}

impl GatewayAddresses {
    /// Looks up the ports of these services, which must be in this namespace.
    pub(super) fn resolve(
        snapshot: &TrackedSnapshot<'_>,
        namespace: &str,
        hosts: &[String],
        ports: &BTreeSet<u32>,
    ) -> GatewayAddresses {
        let mut found = GatewayAddresses::default();
        for host in hosts {
            match snapshot.host(host, namespace) {
                Some(service) => ports.iter().for_each(|port| found.add_port(snapshot, host, service, *port)),
                None => {
                    found.warnings.push(not_found(snapshot, host, namespace));
                    found.unusable = true;
                }
            }
        }
        found.warnings.sort();
        found
    }

    fn add_port(&mut self, snapshot: &TrackedSnapshot<'_>, host: &str, service: &Service, port: u32) {
        if snapshot.endpoints(service).any(|e| u32::from(e.service_port_number) == port) {
            return self.add_found(snapshot, host, service, port);
        }
        if snapshot.endpoints(service).next().is_none() {
            return self.warnings.push(format!("no instances found for hostname {host:?}"));
        }
        let hints: BTreeSet<String> =
            snapshot.endpoints(service).filter(|e| e.port == port).map(|e| e.service_port_number.to_string()).collect();
        if !hints.is_empty() {
            let hints: Vec<String> = hints.into_iter().collect();
            self.warnings.push(format!(
                "port {port} not found for hostname {host:?} (hint: the service port should be specified, not the \
                 workload port. Did you mean one of these ports: [{}]?)",
                hints.join(" ")
            ));
            self.unusable = true;
            return;
        }
        // Endpoints of a managed gateway will follow.
        let managed = service.labels.get("gateway.istio.io/managed").is_some();
        if !managed || !service.ports.iter().any(|p| u32::from(p.number) == port) {
            self.warnings.push(format!("port {port} not found for hostname {host:?}"));
            self.unusable = true;
        }
    }

    fn add_found(&mut self, snapshot: &TrackedSnapshot<'_>, host: &str, service: &Service, port: u32) {
        self.internal.insert(format!("{host}:{port}"));
        let own = service.cluster_addresses.iter().find(|(cluster, _)| *cluster == snapshot.settings().cluster);
        match own.filter(|(_, addresses)| !addresses.is_empty()) {
            Some((_, addresses)) => self.internal_addresses.extend(addresses.iter().map(ToString::to_string)),
            None => {
                self.internal_addresses.insert(service.address.to_string());
            }
        }
        let Some(kubernetes) = &service.kubernetes else { return };
        let external = kubernetes.external_addresses.iter().flat_map(|found| &found.addresses);
        let before = self.external.len();
        self.external.extend(external.map(ToString::to_string));
        let has_any = kubernetes.external_addresses.iter().any(|found| !found.addresses.is_empty());
        if before == self.external.len() && !has_any && kubernetes.load_balanced && self.pending.insert(host.to_owned())
        {
            self.warnings.push(format!("address pending for hostname {host:?}"));
        }
    }

    /// Sets the `Programmed` condition.
    pub(super) fn report(&self, hosts: &[String], conditions: &mut StatusConditions) {
        let internal: Vec<&str> = self.internal.iter().map(String::as_str).collect();
        let assigned = joined(&internal);
        let message = match internal.as_slice() {
            [] => "Resource programmed".to_owned(),
            _ => format!("Resource programmed, assigned to service(s) {assigned}"),
        };
        conditions.hold("Programmed", "Programmed", message);
        if hosts.is_empty() {
            let message = "Failed to assign to any requested addresses";
            return conditions.fail("Programmed", ConditionFault::new("UnsupportedAddress", message));
        }
        if self.warnings.is_empty() {
            return;
        }
        let warnings = self.warnings.join("; ");
        let message = match internal.as_slice() {
            [] => format!("Failed to assign to any requested addresses: {warnings}"),
            _ => format!(
                "Assigned to service(s) {assigned}, but failed to assign to all requested addresses: {warnings}"
            ),
        };
        let reason = if self.unusable { "AddressNotUsable" } else { "AddressNotAssigned" };
        conditions.fail("Programmed", ConditionFault::new(reason, message));
    }
}

fn not_found(snapshot: &TrackedSnapshot<'_>, host: &str, namespace: &str) -> String {
    let others: Vec<String> = snapshot.owners(host).map(|owner| format!("{:?}", owner.namespace.as_str())).collect();
    if others.is_empty() {
        return format!("hostname {host:?} not found");
    }
    let others = others.join(", ");
    format!("hostname {host:?} not found in namespace {namespace:?}, but it was found in namespace(s) {others}")
}

/// `a, b, and c`.
pub(super) fn joined(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [one, two] => format!("{one} and {two}"),
        [first @ .., last] => format!("{}, and {last}", first.join(", ")),
    }
}
