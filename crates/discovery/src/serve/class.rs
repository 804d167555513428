//! The class of a client: its proxy without the fields in which replicas differ, so that replicas share a view.
//!
//! Which fields are left out is decided here and not by recorded reads, because a class is found before anything is
//! computed for it. So these are lists kept by hand, with two guards: in debug builds a layer that reads a field which is
//! left out panics (`missing_input`), and the property test of `layers` compares every client with its whole proxy.

use std::net::IpAddr;

use api::istio::mesh::v1alpha1::mesh_config::extension_provider::{Provider, ServiceAttributeEnrichment};
use model::proxy::Proxy;
use model::service::Resolution;
use model::snapshot::Snapshot;
use scope::reads::{Input, ReadSet};

/// Metadata in which replicas differ. Kept if an EnvoyFilter compares it.
const OWN_METADATA: [&str; 4] = ["NAME", "INSTANCE_IPS", "POD_UID", "UID"];

/// Whether output depends on fields in which replicas differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClassInputs {
    /// Addresses, beyond their families: bind addresses of a Sidecar's ingress, and calls of a workload to itself
    /// through a service without a virtual address.
    addresses: bool,
    /// Names of pods, which are service names by OpenTelemetry's conventions.
    names: bool,
}

impl ClassInputs {
    pub(crate) fn of(world: &Snapshot) -> ClassInputs {
        let mut services = world.services.iter();
        let mut sidecars = world.sidecars.sidecars.iter();
        let mut providers = world.settings.mesh.extension_providers.iter();
        ClassInputs {
            addresses: services.any(|service| service.resolution == Resolution::Passthrough)
                || sidecars.any(|sidecar| !sidecar.spec.ingress.is_empty()),
            names: providers.any(|provider| match &provider.provider {
                Some(Provider::Opentelemetry(provider)) => {
                    provider.service_attribute_enrichment() == ServiceAttributeEnrichment::OtelSemanticConventions
                }
                _ => false,
            }),
        }
    }

    /// The proxy without the fields on which nothing depends in this snapshot.
    pub(crate) fn class_of(self, proxy: &Proxy, world: &Snapshot) -> Proxy {
        let filters = &world.extensions.envoy_filters;
        let is_compared = |key: &str| filters.iter().any(|filter| filter.metadata_keys().any(|name| name == key));
        let mut class = proxy.clone();
        class.metadata.retain(|key, _| !OWN_METADATA.contains(&&**key) || is_compared(key));
        if !self.names {
            class.id = "".into();
        }
        if !self.addresses {
            class.ips = families(proxy);
        }
        class
    }
}

/// One unspecified address per family, in the proxy's order.
fn families(proxy: &Proxy) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = Vec::new();
    for ip in &proxy.ips {
        if !found.iter().any(|known| known.is_ipv4() == ip.is_ipv4()) {
            let any: IpAddr = if ip.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
            found.push(any);
        }
    }
    found
}

/// An input that was read although the class lacks it, which would give replicas the wrong result.
pub(crate) fn missing_input(class: &Proxy, reads: &ReadSet) -> Option<&'static str> {
    let own = |key: &&&str| reads.contains_metadata(key) && class.meta(key).is_none();
    match () {
        () if reads.contains(Input::Id) && class.id.is_empty() => Some("id"),
        () if reads.contains(Input::Ips) && class.ips.iter().all(IpAddr::is_unspecified) => Some("addresses"),
        () => OWN_METADATA.iter().find(own).copied(),
    }
}
