//! Pages about the mesh: objects, services, endpoints, mesh config.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use model::config::print::{message_to_json, to_json};
use model::config::{Kind, Object};
use model::names::ServiceKey;
use model::snapshot::Snapshot;
use prost::Message;
use serde_json::{Map, Value, json};
use sources::health::{SourceHealth, SourceReport, SourceState};

use super::{PageQuery, PageResponse, Pages, objects, pilotage};

/// All objects, as Kubernetes would print them.
pub(super) fn configz(pages: &Pages, _: &PageQuery) -> PageResponse {
    PageResponse::json(world(pages).objects.iter().map(|(_, object)| to_json(object)).collect())
}

/// The kinds that are watched.
pub(super) fn resourcesz(_: &Pages, _: &PageQuery) -> PageResponse {
    let shown = |kind: &Kind| {
        let version = kind.versions().first().copied().unwrap_or_default();
        json!({"group": kind.group(), "version": version, "kind": kind.as_str()})
    };
    PageResponse::json(Kind::ALL.iter().map(shown).collect())
}

/// All services; with `?health`, the health of each source.
pub(super) fn registryz(pages: &Pages, query: &PageQuery) -> PageResponse {
    if query.get("health").is_some() {
        return pilotage::sources(pages, query);
    }
    PageResponse::json(world(pages).services.iter().map(|service| objects::service(service)).collect())
}

/// The primary cluster, if one is watched, and the remote ones.
pub(super) fn clusterz(pages: &Pages, _: &PageQuery) -> PageResponse {
    let sources = pages.pilot().sources();
    let is_primary = |health: &SourceHealth| &*health.report().source.0 == "Kubernetes";
    let primary = sources.healths().into_iter().find(is_primary).map(
        |health| json!({"id": &*world(pages).settings.cluster, "syncStatus": sync_status(&health.report(), false)}),
    );
    let remotes = sources.remotes().into_iter().map(|(remote, health)| {
        let is_late = remote.late_after <= Instant::now();
        let status = sync_status(&health.report(), is_late);
        json!({"id": remote.cluster, "secretName": remote.origin, "syncStatus": status})
    });
    PageResponse::json(primary.into_iter().chain(remotes).collect())
}

/// Upstream's words. A cluster that was in sync and cannot be read now counts as synced: its last state is served.
fn sync_status(report: &SourceReport, is_late: bool) -> &'static str {
    match report.state {
        SourceState::Live | SourceState::Stale { .. } => "synced",
        SourceState::Syncing if is_late => "timeout",
        SourceState::Syncing => "syncing",
    }
}

/// Endpoints by host name, namespace and source (`registry/cluster`).
pub(super) fn endpoint_shards(pages: &Pages, _: &PageQuery) -> PageResponse {
    let world = world(pages);
    let mut hosts: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for key in world.endpoints.services() {
        let of_host = hosts.entry(key.hostname.as_str()).or_default();
        of_host.insert(key.namespace.to_string(), shards(&world, key));
    }
    PageResponse::json(
        hosts.into_iter().map(|(host, namespaces)| (host.to_owned(), Value::Object(namespaces))).collect(),
    )
}

fn shards(world: &Snapshot, key: &ServiceKey) -> Value {
    let shown = |(shard, list): (&model::names::Str, &Arc<[model::endpoint::Endpoint]>)| {
        (shard.to_string(), list.iter().map(objects::endpoint).collect::<Value>())
    };
    let accounts = world.endpoints.of(key).map(|endpoint| &*endpoint.service_account).filter(|a| !a.is_empty());
    let accounts: Map<String, Value> = accounts.map(|account| (account.to_owned(), json!({}))).collect();
    json!({
        "Shards": world.endpoints.shards(key).map(shown).collect::<Map<_, _>>(),
        "ServiceAccounts": accounts,
    })
}

/// Mesh config including defaults.
pub(super) fn mesh(pages: &Pages, _: &PageQuery) -> PageResponse {
    let mesh = world(pages).settings.mesh.encode_to_vec();
    PageResponse::json(message_to_json("istio.mesh.v1alpha1.MeshConfig", &mesh))
}

/// Authorization policies by namespace.
pub(super) fn authorizationz(pages: &Pages, _: &PageQuery) -> PageResponse {
    PageResponse::json(json!({"authorization_policies": authorization_policies(&world(pages))}))
}

/// The part of the push context that upstream shows.
pub(super) fn pushcontext(pages: &Pages, _: &PageQuery) -> PageResponse {
    PageResponse::json(json!({
        "AuthorizationPolicies": authorization_policies(&world(pages)),
        "NetworkGateways": [],
        "UnresolvedGateways": [],
    }))
}

/// Telemetry objects by namespace.
pub(super) fn telemetryz(pages: &Pages, _: &PageQuery) -> PageResponse {
    let world = world(pages);
    let by_namespace = by_namespace(
        &world,
        Kind::Telemetry,
        |object| json!({"name": &*object.meta.name, "namespace": object.meta.namespace.as_str(), "spec": spec(object)}),
    );
    let root = world.settings.root_namespace();
    PageResponse::json(json!({"telemetries": {
        "namespace_to_telemetries": by_namespace,
        "root_namespace": root.as_str(),
    }}))
}

fn authorization_policies(world: &Snapshot) -> Value {
    let by_namespace = by_namespace(world, Kind::AuthorizationPolicy, |object| {
        let annotations: Map<String, Value> =
            object.meta.annotations.iter().map(|(key, value)| (key.to_string(), json!(&**value))).collect();
        json!({
            "name": &*object.meta.name,
            "namespace": object.meta.namespace.as_str(),
            "annotations": annotations,
            "spec": spec(object),
        })
    });
    json!({"namespace_to_policies": by_namespace, "root_namespace": world.settings.root_namespace().as_str()})
}

fn by_namespace(world: &Snapshot, kind: Kind, shown: impl Fn(&Object) -> Value) -> Value {
    let mut found: Map<String, Value> = Map::new();
    for object in world.objects.of(kind) {
        let list = found.entry(object.meta.namespace.to_string()).or_insert_with(|| json!([]));
        if let Some(list) = list.as_array_mut() {
            list.push(shown(object));
        }
    }
    Value::Object(found)
}

fn spec(object: &Object) -> Value {
    object.spec.to_json()
}

fn world(pages: &Pages) -> Arc<Snapshot> {
    pages.pilot().world().now().snapshot.clone()
}
