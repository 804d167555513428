//! JSON as strict as Envoy's parser: no duplicate keys, limited nesting.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Envoy's nesting limit.
const DEEPEST: usize = 100;

/// Parses a document that must be an object.
pub(super) fn read(text: &str) -> serde_json::Result<Map<String, Value>> {
    let mut parser = serde_json::Deserializer::from_str(text);
    let value = NestingLimit(DEEPEST).deserialize(&mut parser)?;
    parser.end()?;
    match value {
        Value::Object(map) => Ok(map),
        _ => Err(serde_json::Error::custom("not an object")),
    }
}

/// A value with at most this many levels below it.
#[derive(Clone, Copy)]
struct NestingLimit(usize);

impl NestingLimit {
    fn below<E: Error>(self) -> Result<NestingLimit, E> {
        self.0.checked_sub(1).map(NestingLimit).ok_or_else(|| E::custom("nested too deeply"))
    }
}

impl<'de> DeserializeSeed<'de> for NestingLimit {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NestingLimit {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let below = self.below()?;
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(below)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let below = self.below()?;
        let mut values = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            let value = map.next_value_seed(below)?;
            if values.contains_key(&name) {
                return Err(A::Error::custom(format!("duplicate key {name:?}")));
            }
            values.insert(name, value);
        }
        Ok(Value::Object(values))
    }
}
