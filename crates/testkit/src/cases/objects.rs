//! The objects of a Kubernetes case as an API server would return them: with namespaces, creation times, and the
//! allocated addresses and ports of the recording.

use std::collections::BTreeSet;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};

/// Cluster-scoped kinds.
const CLUSTER_SCOPED: &[&str] =
    &["Namespace", "Node", "GatewayClass", "IngressClass", "ClusterTrustBundle", "CustomResourceDefinition"];
/// Namespaces that always exist.
const NAMESPACES: &[&str] = &["default", "istio-system"];
/// Creation time of the first objects: 2026-01-01.
const FIRST_SECOND: i64 = 1_767_225_600;

/// All objects of a `kube.yaml`, namespaces first.
pub fn objects(text: &str) -> Vec<Value> {
    let mut found: Vec<Value> = Vec::new();
    let mut declared = Map::new();
    let mut used: BTreeSet<String> = NAMESPACES.iter().map(|n| (*n).to_owned()).collect();
    let (mut second, mut services) = (FIRST_SECOND, 0);
    for (later, document) in documents(text) {
        let mut object: Value = serde_saphyr::from_str(document).unwrap_or_else(|e| panic!("kube.yaml: {e}"));
        if object.is_null() {
            continue;
        }
        second += i64::from(later) * 2;
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        let meta = &mut object["metadata"];
        meta["creationTimestamp"] = json!(timestamp(second));
        meta["resourceVersion"] = json!("1");
        meta["generation"] = json!(1);
        if !CLUSTER_SCOPED.contains(&kind.as_str()) {
            let namespace = meta["namespace"].as_str().unwrap_or("default").to_owned();
            meta["namespace"] = json!(namespace);
            used.insert(namespace);
        }
        match kind.as_str() {
            "Namespace" => {
                let name = meta["name"].as_str().unwrap_or_default().to_owned();
                used.insert(name.clone());
                declared.insert(name, object);
                continue;
            }
            "Service" => {
                services += 1;
                settle_service(&mut object["spec"], services);
            }
            "Secret" => encode_secret(&mut object),
            "ConfigMap" => {
                for (_, value) in object["data"].as_object_mut().into_iter().flatten() {
                    *value = json!(pem(value.as_str().unwrap_or_default()));
                }
            }
            _ => {}
        }
        found.push(object);
    }
    let namespaces = used.into_iter().map(|name| namespace(&name, declared.remove(&name)));
    namespaces.chain(found).collect()
}

/// The documents, and whether each is created later than those before it.
fn documents(text: &str) -> Vec<(bool, &str)> {
    let mut found = Vec::new();
    let (mut from, mut at, mut later) = (0, 0, false);
    for line in text.split_inclusive('\n') {
        let end = at + line.len();
        if let Some(rest) = line.strip_prefix("---") {
            found.push((later, &text[from..at]));
            from = end;
            later = rest.trim().trim_start_matches('#').trim() == "later";
        }
        at = end;
    }
    found.push((later, &text[from..]));
    found.retain(|(_, document)| document.lines().any(|l| !l.trim().is_empty() && !l.trim_start().starts_with('#')));
    found
}

fn timestamp(second: i64) -> String {
    // Cases span a few seconds, so the minute never changes.
    format!("2026-01-01T00:00:{:02}Z", second - FIRST_SECOND)
}

fn namespace(name: &str, declared: Option<Value>) -> Value {
    let mut object = declared.unwrap_or_else(|| json!({"metadata": {"name": name}}));
    object["apiVersion"] = json!("v1");
    object["kind"] = json!("Namespace");
    object["metadata"]["labels"]["kubernetes.io/metadata.name"] = json!(name);
    object
}

/// Fills in the cluster IP, node ports and port defaults of a Service.
fn settle_service(spec: &mut Value, number: usize) {
    let kind = spec["type"].as_str().unwrap_or("ClusterIP").to_owned();
    spec["type"] = json!(kind);
    if kind != "ExternalName" {
        if spec["clusterIP"].as_str().unwrap_or_default().is_empty() {
            let first = spec["clusterIPs"][0].as_str().map(str::to_owned);
            spec["clusterIP"] = json!(first.unwrap_or_else(|| format!("10.96.254.{number}")));
        }
        if !spec["clusterIPs"].is_array() {
            spec["clusterIPs"] = json!([spec["clusterIP"]]);
        }
    }
    let has_node_ports = ["NodePort", "LoadBalancer"].contains(&kind.as_str())
        && spec["allocateLoadBalancerNodePorts"] != Value::Bool(false);
    for (index, port) in spec["ports"].as_array_mut().into_iter().flatten().enumerate() {
        let own = port["port"].clone();
        let port = port.as_object_mut().expect("a port is an object");
        port.entry("protocol").or_insert(json!("TCP"));
        port.entry("targetPort").or_insert(own);
        if has_node_ports {
            port.entry("nodePort").or_insert(json!(31_000 + 20 * number + index));
        }
    }
}

fn encode_secret(object: &mut Value) {
    let Some(Value::Object(plain)) = object.as_object_mut().and_then(|o| o.remove("stringData")) else { return };
    for (key, value) in plain {
        object["data"][key] = json!(BASE64_STANDARD.encode(pem(value.as_str().unwrap_or_default())));
    }
}

/// Replaces `@certificate NAME` and `@key NAME` by PEM blocks with dummy content.
fn pem(text: &str) -> String {
    const SEQUENCE: &str = "MAMCAQE=";
    let block = |label: &str| format!("-----BEGIN {label}-----\n{SEQUENCE}\n-----END {label}-----\n");
    match text.split_once(' ') {
        Some(("@certificate", _)) => block("CERTIFICATE"),
        Some(("@key", _)) => block("PRIVATE KEY"),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::objects;

    #[test]
    fn objects_get_the_defaults_of_an_api_server() {
        let text = "# shows: x\napiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: shop}\n\
                    spec: {type: NodePort, ports: [{port: 80}]}\n--- # later\napiVersion: v1\nkind: Pod\n\
                    metadata: {name: p}\n";
        let found = objects(text);
        let names: Vec<&str> = found.iter().filter_map(|o| o["metadata"]["name"].as_str()).collect();
        assert_eq!(names, ["default", "istio-system", "shop", "a", "p"]);
        assert_eq!(found[3]["spec"]["clusterIP"], "10.96.254.1");
        assert_eq!(found[3]["spec"]["ports"][0]["nodePort"], 31020);
        assert_eq!(found[4]["metadata"]["namespace"], "default");
        assert_eq!(found[4]["metadata"]["creationTimestamp"], "2026-01-01T00:00:02Z");
    }
}
