//! Debug pages as xDS resources for istioctl: a page by its name and query, the sync status of every proxy as Envoy's
//! `ClientConfig`, or the configuration of one proxy as Envoy's `ConfigDump`. Allowed for loopback callers only, like the
//! pages themselves.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{Resource, TypeUrl};
use axum::extract::Query;
use http::Uri;
use parking_lot::Mutex;
use prost::Message;
use prost_reflect::DynamicMessage;
use serde_json::{Value, json};
use xds::ResourceSet;

use super::clients::NOT_CONNECTED;
use super::{PAGES, PageQuery, Pages, dump, time};
use crate::http::unread::NoRoom;
use crate::serve::clients::{Connection, Watched};

const UNREAD: &str = "could not serve this page: too many pages are not read yet; request fewer at once";

/// The resources of a debug type; `None` for other types.
pub(super) fn set(pages: &Pages, kind: &TypeUrl) -> Option<ResourceSet> {
    match kind {
        k if *k == TypeUrl::DEBUG_SYNCZ => {
            let clients = pages.pilot().clients().all();
            Some(ResourceSet::new(kind.clone(), clients.iter().filter_map(sync_status)))
        }
        k if *k == TypeUrl::DEBUG => Some(made_by_name(pages, kind, resource)),
        k if *k == TypeUrl::DEBUG_CONFIG_DUMP => Some(made_by_name(pages, kind, config_dump)),
        _ => None,
    }
}

/// A set whose resources are made when they are named.
fn made_by_name(pages: &Pages, kind: &TypeUrl, make: fn(&Pages, &str) -> Resource) -> ResourceSet {
    let pages = pages.downgrade();
    // A resource is looked up more than once per request; it is made once.
    let made: Mutex<BTreeMap<String, Resource>> = Mutex::default();
    let by_name = move |name: &str| {
        let mut made = made.lock();
        if let Some(known) = made.get(name) {
            return Some(known.clone());
        }
        let resource = make(&pages.upgrade()?, name);
        made.insert(name.to_owned(), resource.clone());
        Some(resource)
    };
    ResourceSet::new(kind.clone(), []).with_fallback(by_name)
}

/// The configuration of a proxy, by `name.namespace`, as an encoded `ConfigDump`. Its only section is the reason if there
/// is none; istioctl looks for it and tries the next replica.
fn config_dump(pages: &Pages, name: &str) -> Resource {
    let dump = match pages.pilot().clients().find(name) {
        None => Err(NOT_CONNECTED.to_owned()),
        Some(connection) => dump_message(&connection).ok_or_else(|| format!("could not dump the resources of {name}")),
    };
    let held = dump.and_then(|dump| pages.0.outgoing.try_hold(dump.into()).map_err(|NoRoom| UNREAD.to_owned()));
    let body = held.unwrap_or_else(|reason| reason_section(reason).into());
    Resource::encoded(name, body)
}

fn dump_message(connection: &Arc<Connection>) -> Option<Vec<u8>> {
    let descriptor = api::reflect::envoy().get_message_by_name("envoy.admin.v3.ConfigDump")?;
    let message = DynamicMessage::deserialize(descriptor, dump::whole(connection, false)).ok()?;
    Some(message.encode_to_vec())
}

/// A `ConfigDump` with one section of this text.
fn reason_section(reason: String) -> Vec<u8> {
    let any = api::Any { value: reason.into_bytes(), ..api::Any::default() };
    let mut dump = Vec::new();
    prost::encoding::message::encode(1, &any, &mut dump);
    dump
}

/// A page, or an error if too many pages are not read yet.
fn resource(pages: &Pages, name: &str) -> Resource {
    let text = page(pages, name).into();
    let body = pages.0.outgoing.try_hold(text).unwrap_or_else(|NoRoom| json!({"error": UNREAD}).to_string().into());
    Resource::encoded(name, body)
}

/// The text of a page, by its name and query: `config_dump?proxyID=cart.shop`.
fn page(pages: &Pages, name: &str) -> String {
    let uri = format!("/debug/{name}").parse::<Uri>().ok();
    let query = uri.as_ref().and_then(|uri| Query::<Vec<(String, String)>>::try_from_uri(uri).ok());
    let plain = name.split('?').next().unwrap_or_default();
    match (PAGES.iter().find(|page| page.name == plain), query) {
        (Some(page), Some(Query(query))) => (page.make)(pages, &PageQuery(query)).render().text,
        // istioctl looks for these words and prints the list of pages.
        _ => "404 page not found\n".to_owned(),
    }
}

/// A proxy's state as `envoy.service.status.v3.ClientConfig`; `None` for a client that only reads debug pages.
fn sync_status(connection: &Arc<Connection>) -> Option<Resource> {
    let (proxy, watched) = (&connection.proxy, connection.watched());
    let served: Vec<_> = watched.iter().filter(|(kind, _)| !kind.is_debug()).collect();
    if served.is_empty() {
        return None;
    }
    let config = json!({
        "node": {
            "id": &*proxy.id,
            "metadata": {
                "CLUSTER_ID": proxy.cluster.as_str(),
                "NAMESPACE": proxy.namespace.as_str(),
                "ISTIO_VERSION": proxy.meta("ISTIO_VERSION").unwrap_or_default(),
            },
        },
        "genericXdsConfigs": served.iter().map(|(kind, watched)| of_type(kind, watched)).collect::<Value>(),
    });
    let descriptor = api::reflect::envoy().get_message_by_name("envoy.service.status.v3.ClientConfig")?;
    let message = DynamicMessage::deserialize(descriptor, config).ok()?;
    Some(Resource::encoded(proxy.id.clone(), message.encode_to_vec()))
}

fn of_type(kind: &TypeUrl, watched: &Watched) -> Value {
    let status = match (&watched.refused, watched.nonces()) {
        (Some(_), _) => "ERROR",
        (None, (None, _)) => "NOT_SENT",
        (None, (sent, acked)) if sent == acked => "SYNCED",
        _ => "STALE",
    };
    let mut shown = json!({"typeUrl": kind.as_str(), "configStatus": status});
    if let Some(at) = watched.updated_at() {
        shown["lastUpdated"] = time(at);
    }
    if let Some(refused) = &watched.refused {
        shown["errorState"] = json!({"details": refused.message});
    }
    shown
}
