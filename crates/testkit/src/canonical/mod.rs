//! The canonical JSON of an encoded resource, in which two servers can be compared.
//! ProtoJSON with proto field names; `Any` is opened; nothing is lost: an `Any` of an unknown
//! type stays `@type` + `@base64`, unknown fields stay under `@unknown`.
//! `order` lists the lists that are sorted, `types` the known messages; `recorded` converts forms of the recorder.

mod order;
mod recorded;
mod types;

pub use recorded::opened;

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage, UnknownField,
};
use serde_json::{Map, Value, json};

/// Messages with a special JSON form.
const WELL_KNOWN: &[&str] = &[
    "Duration",
    "Timestamp",
    "FieldMask",
    "Struct",
    "Value",
    "ListValue",
    "DoubleValue",
    "FloatValue",
    "Int64Value",
    "UInt64Value",
    "Int32Value",
    "UInt32Value",
    "BoolValue",
    "StringValue",
    "BytesValue",
];
/// Map keys whose values differ from run to run: `*` unless empty.
const RUN_VALUES: &[&str] = &["ISTIO_META_WASM_PLUGIN_RESOURCE_VERSION"];

/// The canonical form of a resource, with its `@type`.
pub fn json(type_url: &str, body: &[u8]) -> Value {
    any(type_url, body)
}

/// A canonical form that is no message.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    #[error("the descriptors do not contain {0}")]
    Unknown(&'static str),
    #[error("not a message: {0}")]
    NotAMessage(#[from] serde_json::Error),
}

/// Encodes a canonical form.
pub fn encode(resource: &Value) -> Result<Vec<u8>, EncodeError> {
    let name = "google.protobuf.Any";
    let any = types::pool().get_message_by_name(name).ok_or(EncodeError::Unknown(name))?;
    let message = DynamicMessage::deserialize(any, resource)?;
    let value = message.get_field_by_name("value");
    value.and_then(|v| v.as_bytes().cloned()).map(Vec::from).ok_or(EncodeError::Unknown("google.protobuf.Any.value"))
}

/// The name of a resource; empty for types without names.
pub fn name(resource: &Value) -> &str {
    let named = ["name", "cluster_name"].iter().filter_map(|k| resource[*k].as_str());
    named.into_iter().find(|n| !n.is_empty()).unwrap_or_default()
}

fn any(type_url: &str, body: &[u8]) -> Value {
    if type_url.is_empty() && body.is_empty() {
        return json!({});
    }
    let descriptor = types::pool().get_message_by_name(type_url.rsplit('/').next().unwrap_or_default());
    let Some(Ok(inner)) = descriptor.map(|d| DynamicMessage::decode(d, body)) else {
        return json!({"@type": type_url, "@base64": STANDARD.encode(body)});
    };
    let mut out = Map::from_iter([("@type".to_owned(), type_url.into())]);
    match message(&inner) {
        Value::Object(fields) if !is_well_known(&inner) => out.extend(fields),
        other => {
            out.insert("value".to_owned(), other);
        }
    }
    Value::Object(out)
}

fn message(message: &DynamicMessage) -> Value {
    let descriptor = message.descriptor();
    if descriptor.full_name() == "google.protobuf.Any" {
        let url = message.get_field_by_name("type_url");
        let body = message.get_field_by_name("value");
        let url = url.as_ref().and_then(|v| v.as_str()).unwrap_or_default();
        return any(url, body.as_ref().and_then(|v| v.as_bytes()).map_or(&[], |b| b));
    }
    if is_well_known(message) {
        return well_known(message);
    }
    let mut out = BTreeMap::new();
    for (field, value) in message.fields() {
        let mut data = field_value(&field, value);
        if let Value::Array(items) = &mut data
            && order::is_free(descriptor.full_name(), field.name())
        {
            items.sort_by_cached_key(order::key);
        }
        out.insert(field.name().to_owned(), data);
    }
    for (extension, value) in message.extensions() {
        out.insert(format!("[{}]", extension.full_name()), single(&extension.kind(), value));
    }
    let unknown: Vec<Value> = message.unknown_fields().map(unknown_field).collect();
    if !unknown.is_empty() {
        out.insert("@unknown".to_owned(), unknown.into());
    }
    Value::Object(Map::from_iter(out))
}

fn is_well_known(message: &DynamicMessage) -> bool {
    is_well_known_name(&message.descriptor())
}

fn is_well_known_name(descriptor: &MessageDescriptor) -> bool {
    descriptor.package_name() == "google.protobuf" && WELL_KNOWN.contains(&descriptor.name())
}

fn well_known(message: &DynamicMessage) -> Value {
    let json = serde_json::to_value(message).unwrap_or_else(|e| json!({"@error": e.to_string()}));
    match message.descriptor().name() {
        "Struct" | "Value" | "ListValue" => whole_numbers(json),
        _ => json,
    }
}

/// Numbers of a Struct are always doubles; those without a fraction are written as integers.
fn whole_numbers(value: Value) -> Value {
    match value {
        Value::Number(n) => match n.as_f64() {
            Some(f) if n.is_f64() && f.fract() == 0.0 && f.abs() < 1e15 => json!(f as i64),
            _ => Value::Number(n),
        },
        Value::Array(items) => items.into_iter().map(whole_numbers).collect(),
        Value::Object(map) => map.into_iter().map(|(k, v)| (k, whole_numbers(v))).collect(),
        other => other,
    }
}

fn field_value(field: &FieldDescriptor, value: &prost_reflect::Value) -> Value {
    match value {
        prost_reflect::Value::List(items) => items.iter().map(|item| single(&field.kind(), item)).collect(),
        prost_reflect::Value::Map(entries) => {
            let kind = map_value_kind(field);
            let pairs = entries.iter().map(|(k, v)| (map_key(k), kind.as_ref().map_or(Value::Null, |k| single(k, v))));
            let mut ordered: BTreeMap<String, Value> = pairs.collect();
            for key in RUN_VALUES {
                if let Some(value) = ordered.get_mut(*key).filter(|v| v.as_str().is_none_or(|s| !s.is_empty())) {
                    *value = "*".into();
                }
            }
            Value::Object(Map::from_iter(ordered))
        }
        _ => single(&field.kind(), value),
    }
}

fn map_value_kind(field: &FieldDescriptor) -> Option<Kind> {
    field.kind().as_message().map(|entry| entry.map_entry_value_field().kind())
}

fn map_key(key: &MapKey) -> String {
    match key {
        MapKey::Bool(k) => k.to_string(),
        MapKey::I32(k) => k.to_string(),
        MapKey::I64(k) => k.to_string(),
        MapKey::U32(k) => k.to_string(),
        MapKey::U64(k) => k.to_string(),
        MapKey::String(k) => k.clone(),
    }
}

fn single(kind: &Kind, value: &prost_reflect::Value) -> Value {
    use prost_reflect::Value as Proto;
    match value {
        Proto::Bool(v) => json!(v),
        Proto::I32(v) => json!(v),
        Proto::U32(v) => json!(v),
        Proto::I64(v) => json!(v.to_string()),
        Proto::U64(v) => json!(v.to_string()),
        // The shortest text of a float, as a double: 0.1 and not 0.10000000149.
        Proto::F32(v) if v.is_finite() => json!(v.to_string().parse::<f64>().unwrap_or_default()),
        Proto::F64(v) if v.is_finite() => json!(v),
        Proto::F32(v) => json!(v.to_string().to_lowercase()),
        Proto::F64(v) => json!(v.to_string().to_lowercase()),
        Proto::String(v) => json!(v),
        Proto::Bytes(v) => json!(STANDARD.encode(v)),
        Proto::EnumNumber(v) => kind.as_enum().map_or(json!(v), |e| enum_name(e, *v)),
        Proto::Message(v) => message(v),
        Proto::List(_) | Proto::Map(_) => Value::Null,
    }
}

/// The recorder knows Istio's stats filter by field numbers only, so its enums stay numbers.
fn enum_name(descriptor: &EnumDescriptor, number: i32) -> Value {
    if descriptor.package_name() == "stats" {
        return json!(number);
    }
    descriptor.get_value(number).map_or(json!(number), |v| json!(v.name()))
}

fn unknown_field(field: &UnknownField) -> Value {
    let mut bytes = Vec::new();
    field.encode(&mut bytes);
    json!([field.number(), field.wire_type() as u8, STANDARD.encode(bytes)])
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    fn listener(chains: &[&str]) -> Vec<u8> {
        let chains: Vec<Value> = chains.iter().map(|name| json!({"name": name})).collect();
        let form = json!({
            "@type": "type.googleapis.com/envoy.config.listener.v3.Listener", "name": "l", "filter_chains": chains,
        });
        encode(&form).unwrap()
    }

    #[test]
    fn order_without_meaning_is_removed() {
        let url = "type.googleapis.com/envoy.config.listener.v3.Listener";
        assert_eq!(json(url, &listener(&["b", "a"])), json(url, &listener(&["a", "b"])));
    }

    #[test]
    fn unknown_types_and_fields_are_kept() {
        assert_eq!(json("x/some.Type", b"ab"), json!({"@type": "x/some.Type", "@base64": "YWI="}));
        let cluster = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
        assert_eq!(json(cluster, &[0xf8, 0x7f, 0x01])["@unknown"], json!([[2047, 0, "+H8B"]]));
    }

    #[test]
    fn well_known_types_in_any_have_a_value() {
        let url = "type.googleapis.com/google.protobuf.StringValue";
        let text = "x".to_owned();
        assert_eq!(json(url, &text.encode_to_vec()), json!({"@type": url, "value": "x"}));
    }
}
