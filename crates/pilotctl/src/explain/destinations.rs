//! Follows the request into the connected proxies of its endpoints: their policies and configuration come from the server.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use explain::arrival::{Arrival, ArrivalEndpoint, Destination, RequestSource, arrival, endpoints};
use explain::{Explanation, ProxyConfig};
use serde_json::Value;

use crate::bundle::dump_path;
use crate::control_plane::{ControlPlaneOptions, escaped};

/// Proxies into which one request is followed.
const MOST: usize = 5;
/// Endpoints whose proxy is looked for.
const MOST_ENDPOINTS: usize = 50;

/// What the proxies of the endpoints do with the request, each proxy once. Endpoints without a connected proxy are left out.
pub(super) async fn arrivals(
    server: &ControlPlaneOptions,
    from: &str,
    config: &ProxyConfig,
    explanation: &Explanation,
) -> Result<Vec<Arrival>> {
    let endpoints = endpoints(config, explanation);
    if endpoints.is_empty() {
        return Ok(Vec::new());
    }
    // A bundle has no policies page; then neither the source nor the owners of policies are known.
    let source = source(&policies(server, from).await.unwrap_or_default());
    let (mut found, mut known) = (Vec::new(), BTreeSet::new());
    for endpoint in endpoints.iter().take(MOST_ENDPOINTS) {
        for proxy in proxies_at(server, endpoint).await? {
            if found.len() < MOST && known.insert(proxy.clone()) {
                found.push(at(server, &proxy, endpoint, &source, explanation).await?);
            }
        }
    }
    Ok(found)
}

async fn policies(server: &ControlPlaneOptions, proxy: &str) -> Result<Value> {
    server.page(&format!("/api/v1/proxies/{}/policies", escaped(proxy))).await
}

fn source(policies: &Value) -> RequestSource {
    let addresses = policies["addresses"].as_array().into_iter().flatten();
    RequestSource {
        addresses: addresses.filter_map(|address| address.as_str()?.parse().ok()).collect(),
        identity: policies["identity"].as_str().map(str::to_owned),
    }
}

/// Names of connected proxies with this address.
async fn proxies_at(server: &ControlPlaneOptions, endpoint: &ArrivalEndpoint) -> Result<Vec<String>> {
    if server.bundle.is_some() {
        return Ok(Vec::new());
    }
    let page = server.page(&format!("/api/v1/proxies?ip={}&limit={MOST}", endpoint.address.ip())).await?;
    let names = page["proxies"].as_array().into_iter().flatten();
    Ok(names.filter_map(|proxy| proxy["proxy"].as_str().map(str::to_owned)).collect())
}

async fn at(
    server: &ControlPlaneOptions,
    proxy: &str,
    endpoint: &ArrivalEndpoint,
    source: &RequestSource,
    explanation: &Explanation,
) -> Result<Arrival> {
    let dump = server.text(&dump_path(proxy)).await?;
    let config =
        ProxyConfig::from_dump(&dump).with_context(|| format!("could not use the configuration of {proxy}"))?;
    let policies = policies(server, proxy).await?;
    let configs = |list: &str| -> Vec<String> {
        let entries = policies[list].as_array().into_iter().flatten();
        entries.filter_map(|entry| entry["config"].as_str().map(str::to_owned)).collect()
    };
    let destination = Destination {
        proxy,
        config: &config,
        peer_authentications: configs("peerAuthentications"),
        request_authentications: configs("requestAuthentications"),
    };
    Ok(arrival(&destination, endpoint, source, explanation))
}
