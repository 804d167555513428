//! Policies of one proxy's incoming requests: which objects decide which connections, tokens and requests it accepts.

use std::net::IpAddr;
use std::sync::Arc;

use explain::arrival::{Arrival, Destination, RequestSource, arrival, endpoints};
use explain::{Explanation, ProxyConfig};
use model::config::{Kind, Meta};
use model::peer_policies::PeerPolicies;
use model::snapshot::Snapshot;
use schemars::JsonSchema;
use scope::View;
use serde::Serialize;
use translate::names::config_path;

use super::{ApiQuery, ApiResult, Pages, json_of};
use crate::http::debug::whole_dump;
use crate::serve::clients::Connection;

/// Proxies into which one request is followed.
const MOST_ARRIVALS: usize = 5;

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ProxyPolicies {
    proxy: String,
    addresses: Vec<String>,
    /// The SPIFFE ID of its certificate, by its node; missing if the node names no service account.
    identity: Option<String>,
    /// The narrowest first.
    peer_authentications: Vec<PolicyEntry>,
    request_authentications: Vec<PolicyEntry>,
    authorization_policies: Vec<PolicyEntry>,
}

#[derive(Serialize, JsonSchema)]
struct PolicyEntry {
    /// The path of the object as Envoy's metadata has it.
    config: String,
    file: Option<String>,
    line: Option<u32>,
}

impl PolicyEntry {
    fn of(kind: Kind, meta: &Meta) -> PolicyEntry {
        let location = meta.location.as_ref();
        PolicyEntry {
            config: config_path(kind, &meta.namespace, &meta.name),
            file: location.map(|location| location.file.to_string()),
            line: location.map(|location| location.line).filter(|line| *line > 0),
        }
    }
}

/// The answer to a request for the policies of a proxy.
pub(super) fn page(pages: &Pages, query: &ApiQuery) -> ApiResult {
    let connection = super::proxies::connection_of(pages, query)?;
    let snapshot = &pages.pilot().world().now().snapshot;
    json_of(&policies(&connection, snapshot))
}

fn policies(connection: &Connection, snapshot: &Snapshot) -> ProxyPolicies {
    let proxy = &connection.proxy;
    let view = connection.cut().map(|cut| cut.view.clone());
    let view = view.as_deref();
    let authorization = view.map(|view| view.attached(&view.policy.authorization_policies)).unwrap_or_default();
    let request = view.map(|view| view.attached(&view.policy.request_authentications)).unwrap_or_default();
    ProxyPolicies {
        proxy: proxy.id.to_string(),
        addresses: proxy.ips.iter().map(IpAddr::to_string).collect(),
        identity: identity(connection, snapshot),
        peer_authentications: view.map(peers).unwrap_or_default(),
        request_authentications: request
            .iter()
            .map(|one| PolicyEntry::of(Kind::RequestAuthentication, &one.meta))
            .collect(),
        authorization_policies: authorization
            .iter()
            .map(|one| PolicyEntry::of(Kind::AuthorizationPolicy, &one.meta))
            .collect(),
    }
}

fn peers(view: &View) -> Vec<PolicyEntry> {
    let root = view.settings.root_namespace();
    let found = PeerPolicies::new(&view.policy, &root).governing(&view.proxy.namespace, &view.proxy.labels);
    found.iter().map(|one| PolicyEntry::of(Kind::PeerAuthentication, &one.meta)).collect()
}

fn identity(connection: &Connection, snapshot: &Snapshot) -> Option<String> {
    let proxy = &connection.proxy;
    let account = proxy.meta("SERVICE_ACCOUNT").filter(|account| !account.is_empty())?;
    let domain = &snapshot.settings.mesh.trust_domain;
    Some(format!("spiffe://{domain}/ns/{}/sa/{account}", proxy.namespace))
}

/// Follows a request into the connected proxies of its endpoints, each proxy once.
pub(super) fn arrivals(
    pages: &Pages,
    from: &Connection,
    config: &ProxyConfig,
    explanation: &Explanation,
) -> Vec<Arrival> {
    let snapshot = &pages.pilot().world().now().snapshot;
    let source = RequestSource { addresses: from.proxy.ips.clone(), identity: identity(from, snapshot) };
    let clients = pages.pilot().clients().all();
    let of_address = |ip: IpAddr| clients.iter().rev().find(|client| client.proxy.ips.contains(&ip));
    let mut found: Vec<(Arc<Connection>, Arrival)> = Vec::new();
    for endpoint in endpoints(config, explanation) {
        let Some(client) = of_address(endpoint.address.ip()) else { continue };
        if found.len() >= MOST_ARRIVALS || found.iter().any(|(known, _)| known.number == client.number) {
            continue;
        }
        let Ok(own) = ProxyConfig::from_dump(&whole_dump(client).to_string()) else { continue };
        let policies = policies(client, snapshot);
        let configs = |entries: Vec<PolicyEntry>| entries.into_iter().map(|entry| entry.config).collect();
        let destination = Destination {
            proxy: &client.proxy.id,
            config: &own,
            peer_authentications: configs(policies.peer_authentications),
            request_authentications: configs(policies.request_authentications),
        };
        let arrival = arrival(&destination, &endpoint, &source, explanation);
        found.push((client.clone(), arrival));
    }
    found.into_iter().map(|(_, arrival)| arrival).collect()
}
