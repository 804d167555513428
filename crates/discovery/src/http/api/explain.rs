//! `pilotctl explain` for the console: follows a request through what a proxy should have.

use std::net::IpAddr;

use explain::{ProxyConfig, Request};
use model::snapshot::Snapshot;
use serde_json::json;
use translate::names::config_path;

use super::{ApiQuery, ApiResult, Pages, bad_request, json_of, not_found, policies};
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
    let places = published.snapshot.objects.iter().filter_map(|(key, object)| {
        let path = config_path(key.kind, &key.namespace, &key.name);
        let location = object.meta.location.as_ref().filter(|_| explanation.configs().contains(&path.as_str()))?;
        Some((path, json!(format!("{}:{}", location.file, location.line))))
    });
    shown["places"] = places.collect::<serde_json::Map<_, _>>().into();
    shown["text"] = json!(explanation.to_string());
    Ok(shown)
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
