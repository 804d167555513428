//! Discovery documents: groups, versions and resources, in the old form and in the aggregated form.

use serde_json::{Value, json};

use crate::resource::{ResourceInfo, ResourceTable};

/// The media type of aggregated discovery.
pub(crate) const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Whether the client accepts aggregated discovery.
pub(crate) fn wants_aggregated(accept: &str) -> bool {
    accept.contains("as=APIGroupDiscoveryList") && accept.contains("v=v2") && !accept.starts_with("application/json,")
}

/// `/api` in the old form.
pub(crate) fn core_versions(address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

/// `/apis` in the old form.
pub(crate) fn groups() -> Value {
    let names = ResourceTable::get().group_versions();
    let groups: Vec<Value> = names
        .iter()
        .filter(|(group, _)| !group.is_empty())
        .map(|(group, versions)| group_json(group, versions))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`.
pub(crate) fn group(name: &str) -> Option<Value> {
    let names = ResourceTable::get().group_versions();
    let (group, versions) = names.iter().find(|(group, _)| !group.is_empty() && group == name)?;
    let mut json = group_json(group, versions);
    json["kind"] = "APIGroup".into();
    json["apiVersion"] = "v1".into();
    Some(json)
}

fn group_json(group: &str, versions: &[String]) -> Value {
    let version = |version: &String| json!({"groupVersion": format!("{group}/{version}"), "version": version});
    let all: Vec<Value> = versions.iter().map(version).collect();
    json!({"name": group, "versions": all, "preferredVersion": all.first()})
}

/// `/api/v1` and `/apis/GROUP/VERSION`.
pub(crate) fn resources(group: &str, version: &str) -> Option<Value> {
    let mut list = Vec::new();
    for resource in ResourceTable::get().of_version(group, version) {
        let mut entry = json!({
            "name": resource.plural,
            "singularName": resource.singular(),
            "namespaced": resource.is_namespaced,
            "kind": resource.kind,
            "verbs": resource.verbs(),
            "storageVersionHash": "",
        });
        if !resource.short_names.is_empty() {
            entry["shortNames"] = json!(resource.short_names);
        }
        if !resource.categories.is_empty() {
            entry["categories"] = json!(resource.categories);
        }
        list.push(entry);
        if resource.has_status {
            list.push(json!({
                "name": format!("{}/status", resource.plural),
                "singularName": "",
                "namespaced": resource.is_namespaced,
                "kind": resource.kind,
                "verbs": ["get", "patch", "update"],
            }));
        }
    }
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let found = !list.is_empty();
    found
        .then(|| json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": list}))
}

/// Aggregated discovery of the core group, or of all others.
pub(crate) fn aggregated(is_core: bool) -> Value {
    let table = ResourceTable::get();
    let groups = table.group_versions();
    let group = |(group, versions): &(String, Vec<String>)| {
        let version = |version: &String| {
            let resources: Vec<Value> =
                table.of_version(group, version).map(|r| aggregated_resource(r, version)).collect();
            json!({"version": version, "resources": resources, "freshness": "Current"})
        };
        let metadata = if group.is_empty() { json!({}) } else { json!({"name": group}) };
        json!({"metadata": metadata, "versions": versions.iter().map(version).collect::<Vec<_>>()})
    };
    let items: Vec<Value> = groups.iter().filter(|(name, _)| name.is_empty() == is_core).map(group).collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

fn aggregated_resource(resource: &ResourceInfo, version: &str) -> Value {
    let kind = json!({"group": resource.group, "version": version, "kind": resource.kind});
    let mut entry = json!({
        "resource": resource.plural,
        "responseKind": kind,
        "scope": if resource.is_namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular(),
        "verbs": resource.verbs(),
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
    if resource.has_status {
        entry["subresources"] =
            json!([{"subresource": "status", "responseKind": kind, "verbs": ["get", "patch", "update"]}]);
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::{AGGREGATED, aggregated, group, resources, wants_aggregated};

    #[test]
    fn both_forms_have_the_same_resources() {
        let old = resources("networking.istio.io", "v1").expect("a served version");
        let names: Vec<&str> = old["resources"].as_array().unwrap().iter().filter_map(|r| r["name"].as_str()).collect();
        let new = aggregated(false);
        let items = new["items"].as_array().unwrap();
        let istio = items.iter().find(|item| item["metadata"]["name"] == "networking.istio.io").unwrap();
        assert_eq!(istio["versions"][0]["version"], "v1");
        for resource in istio["versions"][0]["resources"].as_array().unwrap() {
            assert!(names.contains(&resource["resource"].as_str().unwrap()));
        }
        assert!(resources("networking.istio.io", "v7").is_none() && group("").is_none());
    }

    #[test]
    fn aggregated_discovery_is_sent_to_clients_that_prefer_it() {
        assert!(wants_aggregated(&format!("{AGGREGATED},application/json")));
        assert!(!wants_aggregated("application/json"));
    }
}
