//! Connected proxies: what each was sent, acknowledged and rejected.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use api::TypeUrl;
use schemars::JsonSchema;
use serde::Serialize;

use super::{ApiQuery, ApiResult, Pages, bad_request, json_of, not_found, time_text};
use crate::http::debug::{proxy_kind, whole_dump};
use crate::serve::clients::{Answer, Connection, Watched};

/// Proxies in one answer unless fewer are asked for.
const MOST: usize = 20_000;

#[derive(Serialize, JsonSchema)]
pub(super) struct ProxyList {
    /// The number of the newest snapshot.
    snapshot: u64,
    /// Proxies that match.
    total: usize,
    proxies: Vec<ProxySummary>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) enum ProxyState {
    /// It has everything of the newest snapshot.
    Synced,
    /// It has to answer, or was not sent everything yet.
    Pending,
    /// It rejected its last response of some type.
    Rejected,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProxySummary {
    proxy: String,
    /// sidecar or router
    r#type: &'static str,
    namespace: String,
    cluster: String,
    version: String,
    envoy: String,
    address: String,
    connected_at: String,
    state: ProxyState,
    /// The last snapshot of which it has everything.
    holds: u64,
    /// By type: SYNCED, STALE, NOT SENT or ERROR.
    types: BTreeMap<String, &'static str>,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProxyDetail {
    #[serde(flatten)]
    summary: ProxySummary,
    connection: String,
    labels: BTreeMap<String, String>,
    metadata: BTreeMap<String, String>,
    /// Hosts of which it is an endpoint.
    services: Vec<String>,
    details: Vec<TypeDetail>,
    /// Objects that it is served in an earlier version, because it rejected the current one.
    pinned: Vec<PinnedObject>,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct TypeDetail {
    r#type: String,
    status: &'static str,
    wildcard: bool,
    names: usize,
    resources: usize,
    sent: Option<String>,
    sent_at: Option<String>,
    acknowledged: Option<String>,
    pushes: u64,
    bytes: u64,
    rejection: Option<TypeRejection>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct TypeRejection {
    at: String,
    code: i32,
    message: String,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct PinnedObject {
    object: String,
    message: String,
}

/// The status of a type in istioctl's words.
pub(super) fn status(watched: &Watched) -> &'static str {
    match (&watched.refused, watched.nonces()) {
        (Some(_), _) => "ERROR",
        (None, (None, _)) => "NOT SENT",
        (None, (sent, acked)) if sent == acked => "SYNCED",
        _ => "STALE",
    }
}

/// All proxies by name, without clients that only read debug pages.
pub(super) fn sorted(pages: &Pages) -> Vec<Arc<Connection>> {
    let mut all = pages.pilot().clients().all();
    all.retain(|connection| !connection.only_looks());
    all.sort_by(|one, other| (&one.proxy.id, one.number).cmp(&(&other.proxy.id, other.number)));
    all
}

fn summary(connection: &Connection, newest: u64) -> ProxySummary {
    let (proxy, watched, holding) = (&connection.proxy, connection.watched(), connection.holding());
    let types = watched.iter().filter(|(kind, _)| !kind.is_debug());
    let types: BTreeMap<String, &str> =
        types.map(|(kind, watched)| (kind.short().to_owned(), status(watched))).collect();
    let state = match () {
        () if watched.values().any(|watched| watched.refused.is_some()) => ProxyState::Rejected,
        () if holding.since.is_some() && holding.number >= newest => ProxyState::Synced,
        () => ProxyState::Pending,
    };
    ProxySummary {
        proxy: proxy.id.to_string(),
        r#type: proxy_kind(proxy.kind),
        namespace: proxy.namespace.to_string(),
        cluster: proxy.cluster.to_string(),
        version: proxy.meta("ISTIO_VERSION").unwrap_or_default().to_owned(),
        envoy: proxy.envoy_version.to_string(),
        address: connection.peer.map(|peer| peer.to_string()).unwrap_or_default(),
        connected_at: time_text(connection.since),
        state,
        holds: holding.number,
        types,
    }
}

pub(super) fn list(pages: &Pages, query: &ApiQuery) -> ApiResult {
    let snapshot = pages.pilot().world().now().number;
    let ip: Option<IpAddr> = match query.get("ip") {
        Some(text) => {
            Some(text.parse().map_err(|_| bad_request(&format!("could not read ip={text}: not an address")))?)
        }
        None => None,
    };
    let is_wanted = |connection: &&Arc<Connection>| {
        query.is_in("name", &connection.proxy.id)
            && query.is("namespace", &connection.proxy.namespace)
            && ip.is_none_or(|ip| connection.proxy.ips.contains(&ip))
    };
    let all = sorted(pages);
    let mut proxies: Vec<ProxySummary> =
        all.iter().filter(is_wanted).map(|connection| summary(connection, snapshot)).collect();
    if let Some(state) = query.get("state") {
        proxies.retain(|proxy| serde_json::to_value(proxy.state).is_ok_and(|of| of == state));
    }
    let total = proxies.len();
    let (offset, limit) = (query.number("offset", 0)?, query.number("limit", MOST)?);
    let proxies = proxies.into_iter().skip(offset).take(limit.min(MOST)).collect();
    json_of(&ProxyList { snapshot, total, proxies })
}

pub(super) fn connection_of(pages: &Pages, query: &ApiQuery) -> Result<Arc<Connection>, super::PageResponse> {
    let name = query.part("proxy");
    let found = pages.pilot().clients().find(name);
    found.ok_or_else(|| not_found("this proxy is not connected to this instance"))
}

pub(super) fn config(pages: &Pages, query: &ApiQuery) -> ApiResult {
    let connection = connection_of(pages, query)?;
    Ok(whole_dump(&connection))
}

pub(super) fn one(pages: &Pages, query: &ApiQuery) -> ApiResult {
    let connection = connection_of(pages, query)?;
    let (published, proxy) = (pages.pilot().world().now(), &connection.proxy);
    let cut = connection.cut();
    let services = cut.iter().flat_map(|cut| cut.view.inbound.iter().map(|target| target.service.hostname.to_string()));
    let mut services: Vec<String> = services.collect();
    services.dedup();
    let pinned = pages.pilot().register().objects(&published.snapshot).into_iter();
    let pinned = pinned.filter(|(_, _, affected)| affected.clients.contains(&proxy.id));
    let text = |(key, value): (&model::names::Str, &model::names::Str)| (key.to_string(), value.to_string());
    json_of(&ProxyDetail {
        summary: summary(&connection, published.number),
        connection: connection.id.clone(),
        labels: proxy.labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect(),
        metadata: proxy.metadata.iter().map(text).collect(),
        services,
        details: details(&connection),
        pinned: pinned
            .map(|(key, _, affected)| PinnedObject { object: key.to_string(), message: affected.message })
            .collect(),
    })
}

fn details(connection: &Connection) -> Vec<TypeDetail> {
    let cut = connection.cut();
    let detail = |(kind, watched): (&TypeUrl, &Watched)| {
        let set = cut.as_ref().and_then(|cut| cut.set(kind));
        let version = |answer: &Option<Answer>| answer.as_ref().map(|answer| answer.version.to_string());
        let named = |set: &xds::ResourceSet| watched.names.iter().filter(|name| set.get(name).is_some()).count();
        TypeDetail {
            r#type: kind.short().to_owned(),
            status: status(watched),
            wildcard: watched.wildcard,
            names: watched.names.len(),
            resources: set.map_or(0, |set| if watched.wildcard { set.len() } else { named(&set) }),
            sent: version(&watched.sent),
            sent_at: watched.updated_at().map(time_text),
            acknowledged: version(&watched.acked),
            pushes: watched.pushes,
            bytes: watched.bytes,
            rejection: watched.refused.as_ref().map(|refused| TypeRejection {
                at: time_text(refused.at),
                code: refused.code,
                message: refused.message.clone(),
            }),
        }
    };
    connection.watched().iter().filter(|(kind, _)| !kind.is_debug()).map(detail).collect()
}
