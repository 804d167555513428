//! WorkloadEntries that Kubernetes services select, in addition to pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::service_entries::{is_unhealthy, labelled, workload_endpoint, workload_name};
use super::{Delta, Snapshot};
use crate::config::{Kind, Object};
use crate::endpoint::Endpoint;
use crate::names::{Namespace, ServiceKey, Str};
use crate::service::{Resolution, Service, Target};

const SHARD: &str = "WorkloadEntry";

/// Updates the endpoints of services that may select a changed WorkloadEntry.
pub(super) fn join(snapshot: &mut Snapshot, delta: &mut Delta) {
    let entries = delta.objects.iter().filter(|key| key.kind == Kind::WorkloadEntry);
    let mut namespaces: BTreeSet<Namespace> = entries.map(|key| key.namespace.clone()).collect();
    namespaces.extend(delta.services.iter().map(|key| key.namespace.clone()));
    if delta.settings {
        namespaces.extend(snapshot.objects.of(Kind::WorkloadEntry).map(|object| object.meta.namespace.clone()));
    }
    let shard = Str::from(SHARD);
    let mut lists: Vec<(ServiceKey, Vec<Endpoint>)> = Vec::new();
    for namespace in namespaces {
        let gone =
            delta.services.iter().filter(|key| key.namespace == namespace && snapshot.services.get(key).is_none());
        lists.extend(gone.map(|key| (key.clone(), Vec::new())));
        for service in snapshot.services.selecting(&namespace) {
            lists.push((service.key(), endpoints(snapshot, service)));
        }
    }
    for (key, list) in lists {
        if Arc::make_mut(&mut snapshot.endpoints).replace(&key, &shard, list) {
            delta.endpoints.insert(key);
        }
    }
}

fn endpoints(snapshot: &Snapshot, service: &Service) -> Vec<Endpoint> {
    if service.resolution != Resolution::ClientSide || !snapshot.settings.knobs.services_select_entries {
        return Vec::new();
    }
    let entries = snapshot.objects.of_namespace(Kind::WorkloadEntry, &service.namespace);
    let selected = entries.filter(|object| !is_unhealthy(&object.meta));
    selected.flat_map(|object| of_entry(snapshot, service, object)).collect()
}

fn of_entry(snapshot: &Snapshot, service: &Service, object: &Object) -> Vec<Endpoint> {
    let Some(workload) = labelled(object) else { return Vec::new() };
    let name = workload_name(&object.meta);
    let endpoint = workload_endpoint(&workload, &name, &object.meta.namespace, &snapshot.settings);
    if !service.selector.is_subset_of(&endpoint.labels) {
        return Vec::new();
    }
    let Some(kubernetes) = &service.kubernetes else { return Vec::new() };
    let ports = service.ports.iter().zip(&kubernetes.targets).filter_map(|(port, target)| {
        let own = |name: &str| workload.ports.get(name).copied().filter(|number| *number > 0);
        // The workload may map the port name to another number.
        let number = match &target.target {
            Target::Number(number) => own(&port.name).unwrap_or(u32::from(*number)),
            Target::Name(name) => own(name)?,
        };
        let (service_port, service_port_number) = (port.name.clone(), port.number);
        Some(Endpoint { port: number, service_port, service_port_number, ..endpoint.clone() })
    });
    ports.collect()
}
