//! What a real Envoy uses, from its config dump.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::history::EnvoyDump;

/// Reads a config dump that includes endpoints.
pub fn of_dump(dump: &Value) -> EnvoyDump {
    let mut read = EnvoyDump::default();
    for config in dump["configs"].as_array().into_iter().flatten() {
        let listed = |field: &str| config[field].as_array().cloned().unwrap_or_default();
        for cluster in listed("dynamic_active_clusters") {
            read.clusters.extend(text(&cluster["cluster"]["name"]));
        }
        for endpoint in listed("dynamic_endpoint_configs") {
            let assignment = &endpoint["endpoint_config"];
            if let Some(name) = text(&assignment["cluster_name"]) {
                read.endpoints.insert(name, addresses(assignment));
            }
        }
        for table in listed("dynamic_route_configs") {
            targets(&table["route_config"], &mut read.targets);
        }
    }
    // The dump keeps load assignments of removed clusters for a while.
    let clusters = &read.clusters;
    read.endpoints.retain(|name, _| clusters.contains(name));
    read
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn addresses(assignment: &Value) -> BTreeSet<String> {
    let localities = assignment["endpoints"].as_array().into_iter().flatten();
    let endpoints = localities.flat_map(|locality| locality["lb_endpoints"].as_array().into_iter().flatten());
    let usable = endpoints.filter(|endpoint| endpoint["health_status"] != "UNHEALTHY");
    usable.filter_map(|endpoint| text(&endpoint["endpoint"]["address"]["socket_address"]["address"])).collect()
}

fn targets(table: &Value, found: &mut BTreeSet<String>) {
    let hosts = table["virtual_hosts"].as_array().into_iter().flatten();
    for route in hosts.flat_map(|host| host["routes"].as_array().into_iter().flatten()) {
        found.extend(text(&route["route"]["cluster"]));
        let weighted = route["route"]["weighted_clusters"]["clusters"].as_array().into_iter().flatten();
        found.extend(weighted.filter_map(|target| text(&target["name"])));
    }
}

/// What the page shows instead of nonces if nothing was sent, because the client came with everything.
const HELD_BEFORE: &str = "held-before";

/// The name of a proxy on debug pages: its pod and namespace, the third part of its node id.
pub fn page_name(node_id: &str) -> &str {
    node_id.split('~').nth(2).unwrap_or(node_id)
}

/// Nonces of each proxy on the page `/debug/syncz`: type, sent, acknowledged. Without those of types of which it holds
/// everything from an earlier stream: there is no response that it could have acknowledged.
pub fn reported(page: &Value) -> BTreeMap<String, Vec<(String, String, String)>> {
    let of = |proxy: &Value| {
        let resources = proxy["resources"].as_object().into_iter().flatten();
        let nonces = resources.map(|(url, status)| {
            let nonce = |field: &str| text(&status[field]).unwrap_or_default();
            (url.clone(), nonce("sent"), nonce("acked"))
        });
        Some((text(&proxy["proxy"])?, nonces.filter(|(_, sent, _)| sent != HELD_BEFORE).collect()))
    };
    page.as_array().into_iter().flatten().filter_map(of).collect()
}
