//! Converts EndpointSlices into endpoints of a service.

use std::collections::HashSet;
use std::sync::Arc;

use model::endpoint::{Endpoint, Health, TlsMode};
use model::labels::Labels;
use model::names::{Namespace, Str};
use model::service::Service;
use model::workload::Workload;

use super::interner::Interner;
use super::schema;

/// The label with the name of the slice's service.
pub(super) const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The label of slices that are imported from other clusters.
pub(super) const IMPORTED: &str = "multicluster.kubernetes.io/service-name";

/// The fields of an EndpointSlice that are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredSlice {
    is_ipv6: bool,
    pub(super) items: Box<[SliceItem]>,
    ports: Box<[(Str, u16)]>,
}

/// One endpoint of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SliceItem {
    pub(super) addresses: Box<[Str]>,
    conditions: schema::EndpointConditions,
    /// The pod of its `targetRef`.
    pub(super) pod: Option<(Namespace, Str)>,
}

impl StoredSlice {
    /// `None` for slices that are not used: those with FQDNs, and those imported from other clusters.
    pub(super) fn of(slice: &schema::EndpointSlice, interner: &mut Interner) -> Option<StoredSlice> {
        let labels = slice.metadata.labels.as_ref();
        if slice.address_type == "FQDN" || labels.is_some_and(|all| all.contains_key(IMPORTED)) {
            return None;
        }
        let port =
            |p: &schema::SlicePort| (interner.text(p.name.as_deref().unwrap_or_default()), p.port.unwrap_or_default());
        let ports = slice.ports.iter().map(port).collect();
        let mut item = |e: &schema::SliceEndpoint| SliceItem {
            addresses: e.addresses.iter().map(|a| Str::from(a.as_str())).collect(),
            conditions: e.conditions,
            pod: e
                .target_ref
                .as_ref()
                .filter(|target| target.kind == "Pod")
                .map(|target| (Namespace::new(interner.text(&target.namespace)), target.name.as_str().into())),
        };
        let items = slice.endpoints.iter().map(&mut item).collect();
        Some(StoredSlice { is_ipv6: slice.address_type == "IPv6", items, ports })
    }

    /// Replaces the names and addresses of known pods by the shared copies, to save memory.
    pub(super) fn share<'a>(&mut self, known: impl Fn(&(Namespace, Str)) -> Option<(&'a Str, &'a [Str])>) {
        for item in &mut self.items {
            let Some(pod) = &mut item.pod else { continue };
            let Some((name, addresses)) = known(pod) else { continue };
            pod.1 = name.clone();
            for address in &mut item.addresses {
                if let Some(same) = addresses.iter().find(|a| *a == address) {
                    *address = same.clone();
                }
            }
        }
    }
}

/// The facts that endpoints of one service are joined with.
pub(super) struct EndpointJoin<'a, P, N> {
    pub(super) service: &'a Service,
    pub(super) keeps_sessions: bool,
    pub(super) dual_stack: bool,
    /// The workload of a pod by its name.
    pub(super) pod: P,
    /// The owner of an address.
    pub(super) at: N,
}

impl<P, N> EndpointJoin<'_, P, N>
where
    P: Fn(&(Namespace, Str)) -> Option<Arc<Workload>>,
    N: Fn(&str) -> AddressOwner,
{
    /// The endpoints of all slices, each address and port once.
    pub(super) fn endpoints(&self, slices: &[(Str, StoredSlice)]) -> Vec<Endpoint> {
        let mut found = Vec::new();
        let mut known: HashSet<(Str, Str)> = HashSet::new();
        for (_, slice) in slices {
            for item in &slice.items {
                self.add(slice, item, &mut |endpoint| {
                    if known.insert((endpoint.address().into(), endpoint.service_port.clone())) {
                        found.push(endpoint);
                    }
                });
            }
        }
        found
    }

    fn add(&self, slice: &StoredSlice, item: &SliceItem, push: &mut impl FnMut(Endpoint)) {
        let health = self.health(item.conditions);
        for address in &item.addresses {
            let base = match &item.pod {
                Some(key) => match (self.pod)(key) {
                    Some(pod) => pod.endpoint(),
                    // Its identity and labels are not known yet; the endpoint is sent with the pod.
                    None => continue,
                },
                None => match (self.at)(address) {
                    AddressOwner::Pod(pod) => pod.endpoint(),
                    AddressOwner::Unknown(endpoint) => *endpoint,
                },
            };
            let mut addresses = vec![address.clone()];
            if let Some(pod) = self.both_families(item) {
                if slice.is_ipv6 {
                    continue;
                }
                addresses = pod.addresses.to_vec();
            }
            for (name, number) in &slice.ports {
                let service_port = self.service.port_by_name(name);
                push(Endpoint {
                    addresses: addresses.clone(),
                    port: u32::from(*number),
                    service_port: service_port.map_or_else(|| name.clone(), |p| p.name.clone()),
                    service_port_number: service_port.map_or(0, |p| p.number),
                    health,
                    ..base.clone()
                });
            }
        }
    }

    /// The pod, if service and pod are dual-stack: its endpoint then has all addresses.
    fn both_families(&self, item: &SliceItem) -> Option<Arc<Workload>> {
        let several = |(_, list): &(_, Vec<Str>)| list.len() > 1;
        if !self.dual_stack || !self.service.cluster_addresses.iter().any(several) {
            return None;
        }
        (self.pod)(item.pod.as_ref()?).filter(|pod| pod.addresses.len() > 1)
    }

    /// Like upstream, an unset `terminating` or `serving` counts as true.
    fn health(&self, conditions: schema::EndpointConditions) -> Health {
        let is_terminating = conditions.terminating.unwrap_or(true);
        match conditions.ready {
            None | Some(true) => Health::Healthy,
            _ if self.keeps_sessions && conditions.serving.unwrap_or(true) && is_terminating => Health::Draining,
            _ if is_terminating => Health::Terminating,
            _ => Health::Unhealthy,
        }
    }
}

/// The owner of an address in a slice without a `targetRef`.
pub(super) enum AddressOwner {
    Pod(Arc<Workload>),
    /// No pod: an endpoint with cluster, network and location labels only.
    Unknown(Box<Endpoint>),
}

/// An endpoint without a workload.
pub(super) fn bare_endpoint(
    cluster: model::names::ClusterId,
    network: model::names::NetworkId,
    labels: Labels,
) -> Endpoint {
    Endpoint {
        addresses: Vec::new(),
        port: 0,
        service_port: Str::default(),
        service_port_number: 0,
        labels,
        locality: Default::default(),
        network,
        cluster,
        weight: 0,
        service_account: Str::default(),
        tls: TlsMode::Disabled,
        namespace: Namespace::default(),
        workload_name: Str::default(),
        health: Health::Healthy,
        node_name: Str::default(),
        host_name: Str::default(),
        sub_domain: Str::default(),
        cluster_local: false,
    }
}

#[cfg(test)]
mod tests {
    use model::names::Str;
    use serde_json::json;

    use super::super::interner::Interner;
    use super::StoredSlice;

    #[test]
    fn strings_of_known_pods_are_shared() {
        let slice = json!({"metadata": {"name": "s"}, "addressType": "IPv4", "ports": [], "endpoints": [
            {"addresses": ["10.0.0.1", "10.0.0.2"], "targetRef": {"kind": "Pod", "namespace": "shop", "name": "web-1"}},
            {"addresses": ["10.0.0.3"]}]});
        let slice = serde_json::from_value(slice).expect("a slice");
        let mut kept = StoredSlice::of(&slice, &mut Interner::default()).expect("a slice with addresses");
        let before = kept.clone();
        let (name, address) = (Str::from("web-1"), [Str::from("10.0.0.1")]);
        kept.share(|pod| (*pod.1 == *"web-1").then_some((&name, &address[..])));
        assert_eq!(kept, before);
        let item = &kept.items[0];
        assert!(Str::ptr_eq(&item.addresses[0], &address[0]) && Str::ptr_eq(&item.pod.as_ref().unwrap().1, &name));
    }
}
