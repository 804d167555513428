//! Converts JSON to and from protobuf's Struct, and to the TypedStruct that carries config of Istio's own filters.

use api::wire::xds::r#type::v3::TypedStruct;
use api::{Any, Struct, Value, value};
use prost::Message;
use serde_json::{Map, Value as Json};

/// A JSON object as a Struct.
pub(crate) fn struct_of(fields: &Map<String, Json>) -> Struct {
    Struct { fields: fields.iter().map(|(key, json)| (key.clone(), value_of(json))).collect() }
}

fn value_of(json: &Json) -> Value {
    let kind = match json {
        Json::Null => value::Kind::NullValue(0),
        Json::Bool(flag) => value::Kind::BoolValue(*flag),
        Json::Number(number) => value::Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Json::String(text) => value::Kind::StringValue(text.clone()),
        Json::Array(items) => {
            value::Kind::ListValue(prost_types::ListValue { values: items.iter().map(value_of).collect() })
        }
        Json::Object(fields) => value::Kind::StructValue(struct_of(fields)),
    };
    Value { kind: Some(kind) }
}

/// A Struct as JSON; whole numbers have no decimal point.
pub(crate) fn json_of(message: &Struct) -> Json {
    Json::Object(message.fields.iter().map(|(key, value)| (key.clone(), json_value(value))).collect())
}

fn json_value(value: &Value) -> Json {
    match &value.kind {
        None | Some(value::Kind::NullValue(_)) => Json::Null,
        Some(value::Kind::BoolValue(flag)) => Json::Bool(*flag),
        Some(value::Kind::NumberValue(number)) => number_of(*number),
        Some(value::Kind::StringValue(text)) => Json::String(text.clone()),
        Some(value::Kind::ListValue(list)) => Json::Array(list.values.iter().map(json_value).collect()),
        Some(value::Kind::StructValue(fields)) => json_of(fields),
    }
}

fn number_of(number: f64) -> Json {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() <= EXACT {
        return Json::from(number as i64);
    }
    serde_json::Number::from_f64(number).map_or(Json::Null, Json::Number)
}

/// Config of a message type without a descriptor.
pub(crate) fn typed_struct(type_url: &str, config: &Json) -> Any {
    let value = config.as_object().map(struct_of);
    let message = TypedStruct { type_url: type_url.into(), value };
    // udpa's TypedStruct has the same fields, and old proxies know only that one.
    Any { type_url: "type.googleapis.com/udpa.type.v1.TypedStruct".into(), value: message.encode_to_vec() }
}
