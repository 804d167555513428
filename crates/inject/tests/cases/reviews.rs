//! Recorded cases of the webhook: each pod is a review.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use inject::{NamespacedProxyConfig, NativeMode, ReviewInputs, review};
use model::config::Spec;
use model::config::parse::documents as parse_documents;
use serde_json::{Value, json};

use crate::{InjectCase, canonical, documents};

pub(crate) fn ask(case: &InjectCase) -> Value {
    if let Some(requests) = case.options["http"].as_array() {
        return requests.iter().map(|request| raw(case, request)).collect();
    }
    let stages = if case.options["then"].is_object() { 2 } else { 1 };
    let pods = documents(&case.text("input.yaml"));
    let asked = (0..stages).flat_map(|stage| pods.iter().map(move |pod| (stage, pod)));
    asked.map(|(stage, pod)| answered(case, stage, &as_served(pod), case.options["twice"] == true)).collect()
}

/// Status and decision of requests that are no reviews. What the HTTP server refuses is tested with the server.
fn raw(case: &InjectCase, request: &Value) -> Value {
    let body = request["body"].as_str().unwrap_or_default();
    let is_refused_by_http = body.is_empty() || !request["type"].is_null() || request["times"].is_number();
    if is_refused_by_http {
        return json!({"status": "4xx", "allowed": null});
    }
    let allowed = send(case, 0, body.as_bytes())["response"]["allowed"].clone();
    json!({"status": 200, "allowed": allowed})
}

fn answered(case: &InjectCase, stage: usize, pod: &Value, again: bool) -> Value {
    let version = case.options["review"].as_str().unwrap_or("v1");
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or("default");
    let request = json!({
        "apiVersion": format!("admission.k8s.io/{version}"), "kind": "AdmissionReview",
        "request": {"uid": "u", "operation": "CREATE", "namespace": namespace, "object": pod},
    });
    let answer = send(case, stage, request.to_string().as_bytes());
    assert_eq!(
        (&answer["apiVersion"], &answer["kind"], &answer["response"]["uid"]),
        (&request["apiVersion"], &request["kind"], &json!("u"))
    );
    let response = &answer["response"];
    if response["allowed"] != true {
        return json!({"error": response["status"]["message"]});
    }
    let Some(patch) = response["patch"].as_str() else { return json!({"untouched": true}) };
    let operations: Value = serde_json::from_slice(&STANDARD.decode(patch).unwrap()).unwrap();
    let patched = apply(pod.clone(), operations.as_array().unwrap());
    if again {
        return answered(case, stage, &patched, false);
    }
    canonical::workload(&patched)
}

fn send(case: &InjectCase, stage: usize, body: &[u8]) -> Value {
    let settings = case.settings(stage);
    let environment = case.environment();
    let revision = if case.revision().is_empty() { "default" } else { case.revision() };
    let objects = parse_documents(&case.text("kube.yaml"), "kube.yaml").objects;
    let proxy_configs = objects.iter().filter_map(|object| match &object.spec {
        Spec::ProxyConfig(spec) => Some(NamespacedProxyConfig { namespace: object.meta.namespace.as_str(), spec }),
        _ => None,
    });
    let nodes: Vec<(String, String)> = documents(&case.text("kube.yaml"))
        .iter()
        .filter(|object| object["kind"] == "Node")
        .map(|node| (&node["metadata"]["name"], &node["status"]["nodeInfo"]["kubeletVersion"]))
        .map(|(name, version)| (name.as_str().unwrap().to_owned(), version.as_str().unwrap().to_owned()))
        .collect();
    let mode = environment.get("ENABLE_NATIVE_SIDECARS").map_or("", String::as_str);
    let inputs = ReviewInputs {
        shared: settings.inputs(revision, &environment),
        proxy_configs: &proxy_configs.collect::<Vec<_>>(),
        native: NativeMode::parse(mode).unwrap(),
        nodes: Some(&nodes),
    };
    review(body, case.options["path"].as_str().unwrap_or("/inject"), &inputs).body
}

/// A pod as an API server writes it: some fields are always there.
fn as_served(pod: &Value) -> Value {
    let mut pod = pod.clone();
    if pod["status"].is_null() {
        pod["status"] = json!({});
    }
    for list in ["containers", "initContainers"] {
        for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
            if container["resources"].is_null() {
                container["resources"] = json!({});
            }
        }
    }
    if pod["spec"]["initContainers"].is_null() {
        pod["spec"].as_object_mut().unwrap().shift_remove("initContainers");
    }
    pod
}

/// Applies a JSON patch of the operations that the injector writes.
fn apply(mut value: Value, operations: &[Value]) -> Value {
    for operation in operations {
        let path = operation["path"].as_str().unwrap();
        let (parent, key) = path.rsplit_once('/').unwrap();
        let key = key.replace("~1", "/").replace("~0", "~");
        let given = operation["value"].clone();
        match (value.pointer_mut(parent).unwrap(), operation["op"].as_str().unwrap()) {
            (Value::Object(map), "add" | "replace") => drop(map.insert(key, given)),
            (Value::Object(map), "remove") => drop(map.shift_remove(&key).unwrap()),
            (Value::Array(list), "add") => list.insert(key.parse().unwrap(), given),
            (Value::Array(list), "replace") => list[key.parse::<usize>().unwrap()] = given,
            (Value::Array(list), "remove") => drop(list.remove(key.parse().unwrap())),
            other => panic!("{other:?}"),
        }
    }
    value
}
