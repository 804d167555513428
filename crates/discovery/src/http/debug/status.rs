//! `push_status`: conflicts and gaps in the current configuration, in upstream's format: by metric name, then by object.

use std::collections::{BTreeMap, BTreeSet};

use model::config::{Kind, Spec};
use model::host::resolve_short_name;
use model::proxy::ProxyKind;
use model::service::Resolution;
use model::snapshot::Snapshot;
use serde_json::{Map, Value, json};

use super::{PageQuery, PageResponse, Pages};

type Section = BTreeMap<String, Value>;

pub(super) fn push_status(pages: &Pages, _: &PageQuery) -> PageResponse {
    let published = pages.pilot().world().now();
    let world = &published.snapshot;
    let sections = [
        ("pilot_destrule_subsets", duplicate_subsets(world)),
        ("pilot_eds_no_instances", without_endpoints(world)),
        ("pilot_no_ip", without_service(pages)),
        ("pilot_vservice_dup_domain", duplicate_domains(world)),
    ];
    let filled = sections.into_iter().filter(|(_, section)| !section.is_empty());
    let shown = filled.map(|(name, section)| (name.to_owned(), section.into_iter().collect::<Map<_, _>>().into()));
    PageResponse::json(shown.collect::<Map<_, _>>().into())
}

/// Sidecars that are no endpoint of any service.
fn without_service(pages: &Pages) -> Section {
    let clients = pages.pilot().clients().all();
    let alone = clients.iter().filter(|client| {
        let serves = client.cut().is_some_and(|cut| !cut.view.inbound.is_empty());
        client.proxy.kind == ProxyKind::Sidecar && !serves
    });
    alone.map(|client| (client.proxy.id.to_string(), json!({"proxy": &*client.proxy.id}))).collect()
}

/// Clusters of services without endpoints.
fn without_endpoints(world: &Snapshot) -> Section {
    let discovered = world.services.iter().filter(|service| service.resolution == Resolution::ClientSide);
    let empty = discovered.filter(|service| world.endpoints.of(&service.key()).next().is_none());
    let clusters = empty.flat_map(|service| {
        service.proxied_ports().map(|port| format!("outbound|{}||{}", port.number, service.hostname))
    });
    clusters.map(|cluster| (cluster, json!({}))).collect()
}

/// Mesh-internal hosts of several VirtualServices: only the routes of the first apply.
fn duplicate_domains(world: &Snapshot) -> Section {
    let mut found = Section::new();
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    for rule in &world.routing.virtual_services {
        let (spec, meta) = (&rule.config.spec, &rule.config.meta);
        if !spec.gateways.is_empty() && !spec.gateways.iter().any(|gateway| gateway == "mesh") {
            continue;
        }
        for host in &spec.hosts {
            let name = format!("{}/{}", meta.namespace, meta.name);
            if let Some(first) = known.get(host) {
                let message =
                    format!("duplicate domain from virtual service: {host} of {name} already belongs to {first}");
                found.insert(host.clone(), json!({"message": message}));
            } else {
                known.insert(host.clone(), name);
            }
        }
    }
    found
}

/// Subsets that several DestinationRules of a namespace define for the same host.
fn duplicate_subsets(world: &Snapshot) -> Section {
    let (mut found, mut known) = (Section::new(), BTreeSet::new());
    for object in world.objects.of(Kind::DestinationRule) {
        let Spec::DestinationRule(rule) = &object.spec else { continue };
        let namespace = &object.meta.namespace;
        let host = resolve_short_name(&rule.host, namespace, &world.settings.domain);
        for subset in &rule.subsets {
            if !known.insert((namespace.clone(), host.clone(), subset.name.clone())) {
                let message =
                    format!("duplicate subset {} found while merging destination rules for {host}", subset.name);
                found.insert(host.to_string(), json!({"message": message}));
            }
        }
    }
    found
}
