//! Decodes the parts of recorded forms that the recorder could not decode (`@base64` and `@unknown`), if we know the
//! message or field.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use prost::encoding::{WireType, encode_key, encode_varint};
use prost_reflect::{DynamicMessage, Kind, MessageDescriptor};
use serde_json::{Map, Value};

use super::{any, is_well_known_name, message, types};

/// The recorded form with known parts decoded.
pub fn opened(recorded: Value) -> Value {
    match recorded {
        Value::Object(map) if map.contains_key("@type") => opened_any(map),
        other => other,
    }
}

fn opened_any(map: Map<String, Value>) -> Value {
    let url = map["@type"].as_str().unwrap_or_default();
    if let Some(bytes) = map.get("@base64").and_then(decoded) {
        return any(url, &bytes);
    }
    match types::pool().get_message_by_name(url.rsplit('/').next().unwrap_or_default()) {
        Some(descriptor) => opened_fields(&descriptor, map),
        None => Value::Object(map),
    }
}

fn opened_fields(descriptor: &MessageDescriptor, map: Map<String, Value>) -> Value {
    let unknown = map.get("@unknown").and_then(|entries| opened_unknown(descriptor, entries));
    let mut out = Map::new();
    for (key, value) in map.into_iter().filter(|(key, _)| unknown.is_none() || key != "@unknown") {
        let kind = descriptor.get_field_by_name(&key).map(|field| match field.kind() {
            Kind::Message(entry) if field.is_map() => entry.map_entry_value_field().kind(),
            kind => kind,
        });
        let is_map = descriptor.get_field_by_name(&key).is_some_and(|field| field.is_map());
        let value = match (kind, value) {
            (Some(Kind::Message(inner)), Value::Object(entries)) if is_map => {
                entries.into_iter().map(|(k, v)| (k, opened_message(&inner, v))).collect()
            }
            (Some(Kind::Message(inner)), Value::Array(items)) => {
                items.into_iter().map(|item| opened_message(&inner, item)).collect()
            }
            (Some(Kind::Message(inner)), value) => opened_message(&inner, value),
            (_, value) => value,
        };
        out.insert(key, value);
    }
    out.extend(unknown.unwrap_or_default());
    out.sort_keys();
    Value::Object(out)
}

fn opened_message(descriptor: &MessageDescriptor, value: Value) -> Value {
    match value {
        Value::Object(map) if map.contains_key("@type") => opened_any(map),
        Value::Object(map) if !is_well_known_name(descriptor) => opened_fields(descriptor, map),
        other => other,
    }
}

/// Decodes `[number, wire type, value]` entries; `None` if a field is unknown.
fn opened_unknown(descriptor: &MessageDescriptor, entries: &Value) -> Option<Map<String, Value>> {
    let mut bytes = Vec::new();
    for entry in entries.as_array()? {
        let number = u32::try_from(entry[0].as_u64()?).ok()?;
        match entry[1].as_u64()? {
            0 => {
                encode_key(number, WireType::Varint, &mut bytes);
                encode_varint(entry[2].as_u64()?, &mut bytes);
            }
            2 => {
                let content = decoded(&entry[2])?;
                encode_key(number, WireType::LengthDelimited, &mut bytes);
                encode_varint(content.len() as u64, &mut bytes);
                bytes.extend(content);
            }
            _ => return None,
        }
    }
    let opened = DynamicMessage::decode(descriptor.clone(), bytes.as_slice()).ok()?;
    match message(&opened) {
        Value::Object(fields) if !fields.contains_key("@unknown") => Some(fields),
        _ => None,
    }
}

fn decoded(value: &Value) -> Option<Vec<u8>> {
    STANDARD.decode(value.as_str()?).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::opened;

    const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

    #[test]
    fn a_field_that_we_know_is_opened() {
        let form = |budget| json!({"@type": CLUSTER, "circuit_breakers": {"thresholds": [{"retry_budget": budget}]}});
        let recorded = form(json!({"@unknown": [[3, 2, "CBQ="]], "min_retry_concurrency": 4}));
        assert_eq!(opened(recorded), form(json!({"budget_interval": "20s", "min_retry_concurrency": 4})));
    }

    #[test]
    fn a_message_that_we_know_is_opened() {
        let form = |config| json!({"@type": CLUSTER, "cluster_type": {"typed_config": config}});
        let string = "type.googleapis.com/google.protobuf.StringValue";
        let recorded = form(json!({"@type": string, "@base64": "CgF4"}));
        assert_eq!(opened(recorded), form(json!({"@type": string, "value": "x"})));
    }

    #[test]
    fn what_we_do_not_know_stays() {
        let recorded = json!({"@type": CLUSTER, "@unknown": [[2047, 0, 1]], "name": "x"});
        assert_eq!(opened(recorded.clone()), recorded);
        let recorded = json!({"@type": "x/some.Type", "name": "x"});
        assert_eq!(opened(recorded.clone()), recorded);
    }
}
