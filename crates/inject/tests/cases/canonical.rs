//! One form for workloads that mean the same, and the places where two of them differ. What Kubernetes or the agent
//! treats alike is written alike; nothing else is left out.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// Containers whose arguments are options, in any order.
const INJECTED: &[&str] = &["istio-proxy", "istio-init", "istio-validation"];
const JSON_ENV: &[&str] =
    &["PROXY_CONFIG", "ISTIO_META_POD_PORTS", "ISTIO_KUBE_APP_PROBERS", "ISTIO_PROMETHEUS_ANNOTATIONS"];

/// The canonical form of an object.
pub(crate) fn workload(object: &Value) -> Value {
    if object["kind"] == "List" {
        let items: Vec<Value> = list(&object["items"]).iter().map(workload).collect();
        return json!({"kind": "List", "items": items});
    }
    let mut object = object.clone();
    remove(&mut object, "status");
    let path: &[&str] = match object["kind"].as_str() {
        Some("Pod") => &[""],
        Some("CronJob") => &["/spec/jobTemplate/spec/template", "/spec/jobTemplate"],
        Some("Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet" | "Job" | "ReplicationController") => {
            &["/spec/template"]
        }
        _ => &[],
    };
    for (at, pointer) in path.iter().enumerate() {
        if let Some(holder) = object.pointer_mut(pointer) {
            if at == 0 && holder["spec"].is_object() {
                holder["spec"] = spec(&holder["spec"]);
            }
            holder["metadata"] = metadata(&holder["metadata"]);
        }
    }
    tidy(&object).unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn remove(value: &mut Value, field: &str) {
    if let Value::Object(map) = value {
        map.shift_remove(field);
    }
}

fn metadata(metadata: &Value) -> Value {
    let mut metadata = metadata.clone();
    remove(&mut metadata, "creationTimestamp");
    remove(&mut metadata, "managedFields");
    if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
        for (name, value) in annotations {
            *value = annotation(name, value);
        }
    }
    metadata
}

fn annotation(name: &str, value: &Value) -> Value {
    let text = value.as_str().unwrap_or_default();
    if !text.starts_with(['{', '[']) {
        return value.clone();
    }
    let mut read = parsed(text);
    match (name, &mut read) {
        ("sidecar.istio.io/status", Value::Object(map)) => {
            for names in map.values_mut().filter_map(Value::as_array_mut) {
                names.sort_by_key(ToString::to_string);
            }
        }
        ("proxy.istio.io/overrides", Value::Object(map)) => {
            for containers in map.values_mut() {
                *containers = by_name(containers, container);
            }
        }
        _ => {}
    }
    read
}

fn by_name(entries: &Value, form: fn(&Value) -> Value) -> Value {
    let named = list(entries).iter().map(|entry| (entry["name"].as_str().unwrap_or_default().to_owned(), form(entry)));
    Value::Object(named.collect())
}

fn spec(spec: &Value) -> Value {
    let mut spec = spec.clone();
    for field in ["containers", "initContainers"] {
        if spec[field].is_array() {
            spec[field] = list(&spec[field]).iter().map(container).collect();
        }
    }
    if spec["volumes"].is_array() {
        spec["volumes"] = by_name(&spec["volumes"], volume);
    }
    if spec["imagePullSecrets"].is_array() {
        let mut names: Vec<&str> = list(&spec["imagePullSecrets"]).iter().filter_map(|s| s["name"].as_str()).collect();
        names.sort_unstable();
        spec["imagePullSecrets"] = json!(names);
    }
    spec
}

fn volume(volume: &Value) -> Value {
    let mut source = volume.clone();
    remove(&mut source, "name");
    match tidy(&source) {
        Some(source) if source != json!({}) => source,
        _ => json!({"emptyDir": {}}),
    }
}

fn container(container: &Value) -> Value {
    let mut c = container.clone();
    if c["env"].is_array() {
        c["env"] = environment(list(&c["env"]));
    }
    if c["args"].is_array() && INJECTED.contains(&c["name"].as_str().unwrap_or_default()) {
        c["args"] = options(list(&c["args"]));
    }
    if let Some(Value::Array(ports)) = c.get_mut("ports") {
        for port in ports.iter_mut().filter(|port| port["protocol"].is_null()) {
            port["protocol"] = "TCP".into();
        }
        ports.sort_by_key(|port| (port["containerPort"].as_i64(), port["protocol"].to_string()));
    }
    if c["volumeMounts"].is_array() {
        let mounts = list(&c["volumeMounts"]).iter().map(|mount| {
            let path = mount["mountPath"].as_str().unwrap_or_default().trim_end_matches('/');
            let mut mount = mount.clone();
            remove(&mut mount, "mountPath");
            if let Value::Object(map) = &mut mount {
                map.retain(|_, value| !matches!(value, Value::Null | Value::Bool(false)) && value != "");
            }
            (if path.is_empty() { "/" } else { path }.to_owned(), mount)
        });
        c["volumeMounts"] = Value::Object(mounts.collect());
    }
    for kind in ["requests", "limits"] {
        if let Some(Value::Object(quantities)) = c.get_mut("resources").and_then(|r| r.get_mut(kind)) {
            quantities.retain(|_, value| !value.is_null());
            quantities.values_mut().for_each(|value| *value = quantity(value));
        }
    }
    for field in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if c[field].is_object() {
            c[field] = probe(&c[field]);
        }
    }
    if let Some(Value::Object(hooks)) = c.get_mut("lifecycle") {
        hooks.values_mut().for_each(|hook| *hook = handler(hook));
    }
    if let Some(Value::Object(sets)) = c.pointer_mut("/securityContext/capabilities") {
        for names in sets.values_mut().filter_map(Value::as_array_mut) {
            names.sort_by_key(ToString::to_string);
        }
    }
    c
}

fn environment(env: &[Value]) -> Value {
    let mut values = Map::new();
    for entry in env {
        let name = entry["name"].as_str().unwrap_or_default();
        let text = entry["value"].as_str().unwrap_or_default();
        let value = if JSON_ENV.contains(&name) { json_variable(name, &parsed(text)) } else { text.into() };
        let value = if entry["valueFrom"].is_object() { entry["valueFrom"].clone() } else { json!({ "value": value }) };
        values.insert(name.to_owned(), value);
    }
    Value::Object(values)
}

fn json_variable(name: &str, value: &Value) -> Value {
    let defaults = json!({
        "configPath": "./etc/istio/proxy", "binaryPath": "/usr/local/bin/envoy", "serviceCluster": "istio-proxy",
        "drainDuration": "45s", "terminationDrainDuration": "5s", "discoveryAddress": "istiod.istio-system.svc:15012",
        "proxyAdminPort": 15000, "controlPlaneAuthPolicy": "MUTUAL_TLS", "statNameLength": 189, "statusPort": 15020,
    });
    let mut value = tidy(value).unwrap_or_default();
    match (name, &mut value) {
        ("PROXY_CONFIG", Value::Object(map)) => map.retain(|field, value| defaults[field] != *value),
        ("ISTIO_KUBE_APP_PROBERS", Value::Object(map)) => map.values_mut().for_each(|prober| *prober = handler(prober)),
        ("ISTIO_PROMETHEUS_ANNOTATIONS", Value::Object(map)) => map.retain(|_, value| *value != ""),
        ("ISTIO_META_POD_PORTS", Value::Array(ports)) => {
            for port in ports.iter_mut().filter(|port| port["protocol"] == "TCP") {
                remove(port, "protocol");
            }
        }
        _ => {}
    }
    // An empty one is not the same as none.
    if value == json!({}) || value == json!([]) { value.to_string().into() } else { value }
}

/// Words up to the first option, then options by name.
fn options(arguments: &[Value]) -> Value {
    let texts: Vec<&str> = arguments.iter().filter_map(Value::as_str).collect();
    let words: Vec<&str> = texts.iter().copied().take_while(|text| !text.starts_with('-')).collect();
    let mut options = Map::new();
    let mut rest = texts[words.len()..].iter().copied().peekable();
    while let Some(option) = rest.next() {
        let (name, value) = match option.split_once('=') {
            Some(pair) => pair,
            None => (option, rest.next_if(|next| !next.starts_with('-')).unwrap_or_default()),
        };
        let is_ports = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit() || b == b',');
        let mut ports: Vec<&str> = value.split(',').collect();
        ports.sort_unstable();
        options.insert(name.to_owned(), if is_ports { json!(ports) } else { value.into() });
    }
    json!({"words": words, "options": options})
}

fn probe(probe: &Value) -> Value {
    let defaults = json!({"initialDelaySeconds": 0, "periodSeconds": 10, "timeoutSeconds": 1, "successThreshold": 1,
        "failureThreshold": 3});
    let mut probe = probe.clone();
    if let Value::Object(map) = &mut probe {
        map.retain(|field, value| defaults[field] != *value);
    }
    handler(&probe)
}

fn handler(handler: &Value) -> Value {
    let mut handler = handler.clone();
    if handler["httpGet"].is_object() && handler["httpGet"]["scheme"].is_null() {
        handler["httpGet"]["scheme"] = "HTTP".into();
    }
    handler
}

/// A quantity as a plain decimal number.
fn quantity(value: &Value) -> Value {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let factor = match suffix {
        "m" => 0.001,
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "Ki" => 1024.0,
        "Mi" => 1_048_576.0,
        "Gi" => 1_073_741_824.0,
        _ => return value.clone(),
    };
    number.parse::<f64>().map_or_else(|_| value.clone(), |number| format!("{}", number * factor).into())
}

fn parsed(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|_| text.into())
}

/// A value without nulls and empty containers; an emptyDir keeps its own.
fn tidy(value: &Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Object(map) => {
            let mut kept = BTreeMap::new();
            for (key, value) in map.iter().filter(|(key, _)| *key != "creationTimestamp") {
                let value = if key == "emptyDir" { Some(value.clone()) } else { tidy(value) };
                if let Some(value) = value.filter(|v| key == "emptyDir" || (*v != json!({}) && *v != json!([]))) {
                    kept.insert(key.clone(), value);
                }
            }
            Some(Value::Object(kept.into_iter().collect()))
        }
        Value::Array(list) => Some(list.iter().map(|value| tidy(value).unwrap_or_default()).collect()),
        other => Some(other.clone()),
    }
}

/// Lines that name each place where two values differ.
pub(crate) fn differences(expected: &Value, found: &Value, path: &str, lines: &mut Vec<String>) {
    match (expected, found) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let (a, b) = (a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null));
                differences(a, b, &format!("{path}.{key}"), lines);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (at, (a, b)) in a.iter().zip(b).enumerate() {
                differences(a, b, &format!("{path}[{at}]"), lines);
            }
        }
        (a, b) if a != b => lines.push(format!("{path}: expected {a}, found {b}")),
        _ => {}
    }
}
