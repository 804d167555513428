//! Deterministic encoding of dynamic messages: prost-reflect writes maps in hash order, which differs between processes.

use std::collections::BTreeMap;

use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint};
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, ReflectMessage, Value};

/// Encodes fields by number and maps by key. Unknown fields are left out.
pub fn encode(message: &DynamicMessage) -> Vec<u8> {
    let mut fields: Vec<(FieldDescriptor, &Value)> = message.fields().collect();
    fields.sort_by_key(|(field, _)| field.number());
    let mut out = Vec::new();
    for (field, value) in fields {
        match (value, field.kind()) {
            (Value::Map(entries), Kind::Message(entry)) => {
                let (key_field, value_field) = (entry.map_entry_key_field(), entry.map_entry_value_field());
                for (key, value) in entries.iter().collect::<BTreeMap<_, _>>() {
                    let mut pair = DynamicMessage::new(entry.clone());
                    pair.set_field(&key_field, key.clone().into());
                    pair.set_field(&value_field, value.clone());
                    nest(&field, &pair, &mut out);
                }
            }
            (Value::List(items), Kind::Message(_)) => {
                items.iter().filter_map(Value::as_message).for_each(|item| nest(&field, item, &mut out));
            }
            (Value::Message(inner), _) => nest(&field, inner, &mut out),
            _ => {
                let mut single = DynamicMessage::new(message.descriptor());
                single.set_field(&field, value.clone());
                out.extend(single.encode_to_vec());
            }
        }
    }
    out
}

fn nest(field: &FieldDescriptor, message: &DynamicMessage, out: &mut Vec<u8>) {
    let bytes = encode(message);
    encode_key(field.number(), WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend(bytes);
}

#[cfg(test)]
mod tests {
    use prost_reflect::{DynamicMessage, ReflectMessage};
    use serde_json::json;

    use super::encode;
    use crate::config::message::read;

    #[test]
    fn encoding_is_the_same_every_time_and_loses_nothing() {
        let descriptor = api::reflect::istio().get_message_by_name("google.protobuf.Struct").unwrap();
        let json = json!({"a": 1, "b": {"c": [true, null, "x"], "d": {}}, "e": "f", "g": [], "h": 0});
        let messages: Vec<DynamicMessage> = (0..8).map(|_| read(&descriptor, &json, "").0).collect();
        let first = encode(&messages[0]);
        assert!(messages.iter().all(|message| encode(message) == first));
        assert_eq!(DynamicMessage::decode(messages[0].descriptor(), &*first), Ok(messages[0].clone()));
    }
}
