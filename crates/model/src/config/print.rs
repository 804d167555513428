//! Prints objects as JSON in upstream's format: camelCase protobuf JSON with sorted keys.

use prost_reflect::DynamicMessage;
use serde_json::{Map, Value, json};

use super::{Meta, Object, timestamp};

/// The object as a Kubernetes document.
pub fn to_json(object: &Object) -> Value {
    let kind = object.spec.kind();
    let version = kind.versions().first().copied().unwrap_or("v1");
    let mut document = json!({
        "apiVersion": format!("{}/{version}", kind.group()),
        "kind": kind.as_str(),
        "metadata": metadata(&object.meta),
        "spec": object.spec.to_json(),
    });
    document.sort_all_objects();
    document
}

/// An encoded message of Istio's API as protobuf JSON; null if it cannot be decoded.
pub fn message_to_json(name: &str, bytes: &[u8]) -> Value {
    let message = api::reflect::istio()
        .get_message_by_name(name)
        .and_then(|descriptor| DynamicMessage::decode(descriptor, bytes).ok());
    // Protobuf maps have no order, so keys are sorted for deterministic output.
    let mut json = message.and_then(|message| serde_json::to_value(message).ok()).unwrap_or_default();
    json.sort_all_objects();
    json
}

fn metadata(meta: &Meta) -> Value {
    let mut entries = Map::new();
    let mut put = |key: &str, value: Value| entries.insert(key.to_owned(), value);
    put("name", json!(&*meta.name));
    if !meta.namespace.is_empty() {
        put("namespace", json!(meta.namespace.as_str()));
    }
    if !meta.labels.is_empty() {
        put("labels", meta.labels.iter().map(|(k, v)| (k.to_string(), json!(&**v))).collect::<Map<_, _>>().into());
    }
    if !meta.annotations.is_empty() {
        put(
            "annotations",
            meta.annotations.iter().map(|(k, v)| (k.to_string(), json!(&**v))).collect::<Map<_, _>>().into(),
        );
    }
    if meta.created != 0 {
        put("creationTimestamp", json!(timestamp::format(meta.created)));
    }
    if meta.generation != 0 {
        put("generation", json!(meta.generation));
    }
    if !meta.resource_version.is_empty() {
        put("resourceVersion", json!(&*meta.resource_version));
    }
    Value::Object(entries)
}
