//! Debug pages as xDS resources for istioctl: a page by its name and query, or the sync status of every proxy as Envoy's
//! `ClientConfig`. Allowed for loopback callers only, like the pages themselves.

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

use super::{PAGES, PageQuery, Pages, time};
use crate::http::unread::NoRoom;
use crate::serve::clients::{Connection, Watched};

/// The resources of a debug type; `None` for other types.
pub(super) fn set(pages: &Pages, kind: &TypeUrl) -> Option<ResourceSet> {
    match kind {
        k if *k == TypeUrl::DEBUG_SYNCZ => {
            let clients = pages.pilot().clients().all();
            Some(ResourceSet::new(kind.clone(), clients.iter().filter_map(sync_status)))
        }
        k if *k == TypeUrl::DEBUG => {
            let pages = pages.downgrade();
            // A page is looked up more than once per request; it is made once.
            let made: Mutex<BTreeMap<String, Resource>> = Mutex::default();
            let page = move |name: &str| {
                let mut made = made.lock();
                if let Some(known) = made.get(name) {
                    return Some(known.clone());
                }
                let resource = resource(&pages.upgrade()?, name);
                made.insert(name.to_owned(), resource.clone());
                Some(resource)
            };
            Some(ResourceSet::new(kind.clone(), []).with_fallback(page))
        }
        _ => None,
    }
}

/// A page, or an error if too many pages are not read yet.
fn resource(pages: &Pages, name: &str) -> Resource {
    let text = page(pages, name).into();
    let body = pages.0.outgoing.try_hold(text).unwrap_or_else(|NoRoom| {
        let reason = "could not serve this page: too many pages are not read yet; request fewer at once";
        json!({"error": reason}).to_string().into()
    });
    Resource::encoded(name, body)
}

/// The text of a page, by its name and query: `config_dump?proxyID=cart.shop`.
fn page(pages: &Pages, name: &str) -> String {
    let uri = format!("/debug/{name}").parse::<Uri>().ok();
    let query = uri.as_ref().and_then(|uri| Query::<Vec<(String, String)>>::try_from_uri(uri).ok());
    let plain = name.split('?').next().unwrap_or_default();
    match (PAGES.iter().find(|page| page.name == plain), query) {
        (Some(page), Some(Query(query))) => (page.make)(pages, &PageQuery(query)).render().text,
        _ => json!({"error": "no such page; `list` names all pages"}).to_string(),
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
    Some(Resource::encoded(proxy.id.clone(), message.encode_to_vec().into()))
}

fn of_type(kind: &TypeUrl, watched: &Watched) -> Value {
    let nonce = |answer: &Option<crate::serve::clients::Answer>| answer.as_ref().map(|answer| answer.nonce.clone());
    let status = match (&watched.refused, nonce(&watched.sent), nonce(&watched.acked)) {
        (Some(_), _, _) => "ERROR",
        (None, None, _) => "NOT_SENT",
        (None, sent, acked) if sent == acked => "SYNCED",
        _ => "STALE",
    };
    let mut shown = json!({"typeUrl": kind.as_str(), "configStatus": status});
    if let Some(at) = watched.sent_at {
        shown["lastUpdated"] = time(at);
    }
    if let Some(refused) = &watched.refused {
        shown["errorState"] = json!({"details": refused.message});
    }
    shown
}
