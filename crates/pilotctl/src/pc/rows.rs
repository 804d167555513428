//! Rows of the tables of `pilotctl pc`, from the same reading of a dump that `explain` uses.

use std::collections::BTreeSet;

use explain::ProxyConfig;
use explain::summary::{
    ClusterSummary, inline_routes, summary_of_cluster, summary_of_endpoints, summary_of_listener, summary_of_routes,
};

pub(super) const CLUSTER: [&str; 6] = ["SERVICE FQDN", "PORT", "SUBSET", "DIRECTION", "TYPE", "DESTINATION RULE"];
pub(super) const LISTENER: [&str; 4] = ["ADDRESSES", "PORT", "MATCH", "DESTINATION"];
pub(super) const ROUTE: [&str; 5] = ["NAME", "VHOST NAME", "DOMAINS", "MATCH", "VIRTUAL SERVICE"];
pub(super) const ENDPOINT: [&str; 4] = ["ENDPOINT", "STATUS", "LOCALITY", "CLUSTER"];

/// An empty cell as istioctl prints it.
fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

pub(super) fn clusters(config: &ProxyConfig) -> Vec<Vec<String>> {
    let row = |cluster| {
        let ClusterSummary { host, port, subset, direction, kind, rule } = summary_of_cluster(cluster);
        vec![host, or_dash(port), or_dash(subset), or_dash(direction), kind, rule]
    };
    config.clusters.values().map(row).collect()
}

pub(super) fn listeners(config: &ProxyConfig) -> Vec<Vec<String>> {
    config.listeners.iter().flat_map(summary_of_listener).map(Vec::from).collect()
}

pub(super) fn routes(config: &ProxyConfig) -> Vec<Vec<String>> {
    let inline: Vec<_> = config.listeners.iter().flat_map(inline_routes).collect();
    // Chains of a listener may have the same table, and Envoy's dump has these tables twice.
    let mut known = BTreeSet::new();
    let rows = config.routes.values().chain(&inline).flat_map(summary_of_routes).map(Vec::from);
    rows.filter(|row| known.insert(row.clone())).collect()
}

pub(super) fn endpoints(config: &ProxyConfig) -> Vec<Vec<String>> {
    config.endpoints.values().flat_map(summary_of_endpoints).map(Vec::from).collect()
}
