//! `pilotctl explain` for the console: follows a request through what a proxy should have.

use std::collections::BTreeSet;
use std::net::IpAddr;

use explain::places::rule_field;
use explain::{Explanation, ProxyConfig, Request};
use model::config::print::to_json;
use model::snapshot::Snapshot;
use model::suggest;
use serde_json::{Map, Value, json};
use translate::names::config_path;

use super::{ApiQuery, ApiResult, Pages, bad_request, json_of, not_found, objects, policies};
use crate::http::debug::whole_dump;

pub(super) fn page(pages: &Pages, query: &ApiQuery) -> ApiResult {
    let (Some(proxy), Some(url)) = (query.get("proxy"), query.get("url")) else {
        return Err(bad_request("could not explain: proxy and url are needed"));
    };
    let connection = pages.pilot().clients().find(proxy);
    let connection = connection.ok_or_else(|| not_found("this proxy is not connected to this instance"))?;
    let bad = |error: explain::RequestError| bad_request(&error.to_string());
    let mut request = Request::new(query.get("method").unwrap_or("GET"), url).map_err(bad)?;
    for header in query.all("header") {
        request.header(header).map_err(bad)?;
    }
    let published = pages.pilot().world().now();
    if request.addresses.is_empty() {
        let host = request.authority.split(':').next().unwrap_or_default();
        request.addresses = addresses(&published.snapshot, host, &connection.proxy.namespace);
    }
    let dump = whole_dump(&connection).to_string();
    let config = ProxyConfig::from_dump(&dump).map_err(|error| bad_request(&error.to_string()))?;
    let mut explanation = explain::explain(&config, &request);
    explanation.arrivals = policies::arrivals(pages, &connection, &config, &explanation);
    let mut shown = json_of(&explanation)?;
    shown["places"] = places(&published.snapshot, &explanation).into();
    shown["text"] = json!(explanation.to_string());
    if let Some(unknown) = unknown_host(&published.snapshot, &request, &explanation) {
        shown["unknownHost"] = json!(unknown);
    }
    Ok(shown)
}

/// File and line by the path of an object, by `FIELD from PATH` for its rules, and by `route from PATH` for the rule of the
/// route.
fn places(snapshot: &Snapshot, explanation: &Explanation) -> Map<String, Value> {
    let configs: BTreeSet<&str> = explanation.configs().into_iter().collect();
    let mut places = Map::new();
    for (key, object) in snapshot.objects.iter() {
        let path = config_path(key.kind, &key.namespace, &key.name);
        let Some(location) = object.meta.location.as_ref().filter(|_| configs.contains(&*path)) else { continue };
        let place = |line: u32| json!(format!("{}:{line}", location.file));
        let lines = objects::lines(key, object);
        let of_route = explanation.route.as_ref().filter(|route| route.config.as_deref() == Some(&*path));
        let field = of_route.and_then(|route| rule_field(&route.of_object, &to_json(object)));
        if let Some(line) = field.and_then(|field| lines.get(&field)) {
            places.insert(format!("route from {path}"), place(*line));
        }
        places.extend(lines.into_iter().map(|(field, line)| (format!("{field} from {path}"), place(line))));
        places.insert(path, place(location.line));
    }
    places
}

/// That no service and no route has the host of the request.
fn unknown_host(snapshot: &Snapshot, request: &Request, explanation: &Explanation) -> Option<String> {
    if explanation.has_named_host() || !request.addresses.is_empty() {
        return None;
    }
    let names: Vec<&str> = snapshot.services.iter().map(|service| service.hostname.as_str()).collect();
    let host = request.host();
    if names.contains(&host) { None } else { suggest::missing_host(host, &names) }
}

/// Addresses of the service that a proxy of this namespace means by a host name.
fn addresses(snapshot: &Snapshot, host: &str, namespace: &str) -> Vec<IpAddr> {
    let domain = &snapshot.settings.domain;
    let names = [
        host.to_owned(),
        format!("{host}.{namespace}.svc.{domain}"),
        format!("{host}.svc.{domain}"),
        format!("{host}.{domain}"),
    ];
    let found = names.iter().find_map(|name| snapshot.services.owners(name).next());
    let Some(service) = found else { return Vec::new() };
    let of_clusters = service.cluster_addresses.iter().flat_map(|(_, addresses)| addresses);
    let parsed = std::iter::once(&service.address).chain(of_clusters).filter_map(|text| text.parse::<IpAddr>().ok());
    let mut known: Vec<IpAddr> = parsed.filter(|address| !address.is_unspecified()).collect();
    known.dedup();
    known
}
