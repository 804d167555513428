//! Pages about connected clients: node, subscriptions, sent and acknowledged versions.

use std::sync::Arc;

use api::TypeUrl;
use http::StatusCode;
use model::change::{Batch, Change, SourceId};
use model::endpoint::Locality;
use model::proxy::{Proxy, ProxyKind};
use serde_json::{Map, Value, json};

use super::{PageQuery, PageResponse, Pages, objects, time};
use crate::serve::clients::{Connection, Watched};

/// Upstream's wording: istioctl looks for it and tries the next replica.
pub(super) const NOT_CONNECTED: &str =
    "Proxy not connected to this Pilot instance. It may be connected to another instance.\n";

/// The client named by `proxyID`.
pub(super) fn connection_for(pages: &Pages, query: &PageQuery) -> Result<Arc<Connection>, PageResponse> {
    match query.get("proxyID").filter(|id| !id.is_empty()) {
        None => Err(PageResponse::Text(
            StatusCode::BAD_REQUEST,
            "You must provide a proxyID in the query string\n".to_owned(),
        )),
        Some(id) => pages
            .pilot()
            .clients()
            .find(id)
            .ok_or_else(|| PageResponse::Text(StatusCode::NOT_FOUND, NOT_CONNECTED.to_owned())),
    }
}

/// Sync status of each proxy. Equal nonces mean that it holds the current resources.
pub(super) fn syncz(pages: &Pages, query: &PageQuery) -> PageResponse {
    let namespace = query.get("namespace").unwrap_or_default();
    let is_asked_for = |c: &&Arc<Connection>| namespace.is_empty() || c.proxy.namespace.as_str() == namespace;
    PageResponse::json(sorted(pages).iter().filter(is_asked_for).map(|c| sync_status(c)).collect())
}

/// Types with separate fields in upstream's format, in addition to `resources`.
const SYNCED: &[(TypeUrl, &str)] = &[
    (TypeUrl::CLUSTER, "cluster"),
    (TypeUrl::LISTENER, "listener"),
    (TypeUrl::ROUTE, "route"),
    (TypeUrl::ENDPOINT, "endpoint"),
    (TypeUrl::EXTENSION, "extensionconfig"),
];

fn sync_status(connection: &Connection) -> Value {
    let proxy = &connection.proxy;
    let watched = connection.watched();
    let mut fields = Map::new();
    let mut put = |name: &str, value: &str| {
        if !value.is_empty() {
            fields.insert(name.to_owned(), json!(value));
        }
    };
    put("cluster_id", proxy.cluster.as_str());
    put("proxy", &proxy.id);
    put("proxy_type", kind(proxy.kind));
    put("istio_version", proxy.meta("ISTIO_VERSION").unwrap_or_default());
    for (url, name) in SYNCED {
        if let Some(watched) = watched.get(url) {
            let (sent, acked) = watched.nonces();
            put(&format!("{name}_sent"), sent.unwrap_or_default());
            put(&format!("{name}_acked"), acked.unwrap_or_default());
        }
    }
    let resources: Map<String, Value> =
        watched.iter().map(|(url, watched)| (url.to_string(), resource_status(watched))).collect();
    if !resources.is_empty() {
        fields.insert("resources".to_owned(), Value::Object(resources));
    }
    Value::Object(fields)
}

fn resource_status(watched: &Watched) -> Value {
    let mut fields = Map::new();
    let mut put = |name: &str, value: Option<Value>| value.map(|value| fields.insert(name.to_owned(), value));
    let (sent, acked) = watched.nonces();
    put("sent", sent.map(Value::from));
    put("acked", acked.map(Value::from));
    put("sentTime", watched.updated_at().map(time));
    put("lastError", watched.refused.as_ref().map(|refused| json!(refused.message)));
    Value::Object(fields)
}

/// Connected clients with their subscriptions.
pub(super) fn adsz(pages: &Pages, query: &PageQuery) -> PageResponse {
    if query.is_push() {
        return push(pages);
    }
    let connections = match query.get("proxyID").filter(|id| !id.is_empty()) {
        None => sorted(pages),
        Some(_) => match connection_for(pages, query) {
            Ok(connection) => vec![connection],
            Err(answer) => return answer,
        },
    };
    PageResponse::json(clients(&connections, |connection| {
        let proxy = &connection.proxy;
        let mut fields = connection_fields(connection);
        if !proxy.labels.is_empty() {
            fields.insert("labels".to_owned(), objects::labels(&proxy.labels));
        }
        fields.insert("metadata".to_owned(), metadata(proxy));
        fields.insert("locality".to_owned(), locality(&proxy.locality));
        fields.insert("watches".to_owned(), Value::Object(watches(connection)));
        Value::Object(fields)
    }))
}

/// Recomputes everything for all clients. Clients get resources that differ from what they have.
fn push(pages: &Pages) -> PageResponse {
    let batch = Batch { source: SourceId("debug".into()), changes: vec![Change::Renew] };
    match pages.pilot().world().changes().try_send(batch) {
        Ok(()) => {
            PageResponse::Text(StatusCode::OK, format!("Pushed to {} servers\n", pages.pilot().clients().all().len()))
        }
        Err(_) => PageResponse::failed("could not push: too many changes are queued, or the server is stopping"),
    }
}

/// Connected clients.
pub(super) fn connections(pages: &Pages, _: &PageQuery) -> PageResponse {
    PageResponse::json(clients(&sorted(pages), |connection| Value::Object(connection_fields(connection))))
}

fn clients(connections: &[Arc<Connection>], shown: impl Fn(&Connection) -> Value) -> Value {
    let mut page = json!({"totalClients": connections.len()});
    if !connections.is_empty() {
        page["clients"] = connections.iter().map(|connection| shown(connection)).collect();
    }
    page
}

fn connection_fields(connection: &Connection) -> Map<String, Value> {
    let address = connection.peer.map(|peer| peer.to_string()).unwrap_or_default();
    [
        ("connectionId".to_owned(), json!(connection.id)),
        ("connectedAt".to_owned(), time(connection.since)),
        ("address".to_owned(), json!(address)),
    ]
    .into_iter()
    .collect()
}

fn metadata(proxy: &Proxy) -> Value {
    let mut fields: Map<String, Value> =
        proxy.metadata.iter().map(|(key, value)| (key.to_string(), json!(&**value))).collect();
    if !proxy.labels.is_empty() {
        fields.insert("LABELS".to_owned(), objects::labels(&proxy.labels));
    }
    Value::Object(fields)
}

fn locality(locality: &Locality) -> Value {
    let parts = [("region", locality.region()), ("zone", locality.zone()), ("sub_zone", locality.sub_zone())];
    let known = parts.into_iter().filter(|(_, part)| !part.is_empty());
    known.map(|(name, part)| (name.to_owned(), json!(part))).collect::<Map<_, _>>().into()
}

/// Subscribed names by type; a wildcard subscription is an empty list, as in upstream.
fn watches(connection: &Connection) -> Map<String, Value> {
    let names = |watched: &Watched| watched.names.iter().map(|name| json!(&**name)).collect::<Value>();
    connection.watched().iter().map(|(url, watched)| (url.to_string(), names(watched))).collect()
}

/// The services of which each proxy is an endpoint.
pub(super) fn instancesz(pages: &Pages, _: &PageQuery) -> PageResponse {
    let shown = |connection: &Arc<Connection>| {
        let targets = connection.cut().map(|cut| {
            let shown = cut.view.inbound.iter().map(|target| {
                let mut port = objects::port(&target.port);
                port["TargetPort"] = json!(target.target_port);
                json!({"Service": objects::service(&target.service), "Port": port})
            });
            shown.collect::<Value>()
        });
        (connection.proxy.id.to_string(), targets.unwrap_or_default())
    };
    PageResponse::json(sorted(pages).iter().map(shown).collect::<Map<_, _>>().into())
}

/// All clients by connection id.
fn sorted(pages: &Pages) -> Vec<Arc<Connection>> {
    let mut all = pages.pilot().clients().all();
    all.retain(|connection| !connection.only_looks());
    all.sort_by(|one, other| one.id.cmp(&other.id));
    all
}

pub(super) fn kind(kind: ProxyKind) -> &'static str {
    match kind {
        ProxyKind::Sidecar => "sidecar",
        ProxyKind::Router => "router",
        ProxyKind::Waypoint => "waypoint",
        ProxyKind::Ztunnel => "ztunnel",
    }
}
