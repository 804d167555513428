//! Fields that a JSON text has twice. The last one counts; responses report the others as they report unknown fields.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

/// The most fields that are reported, as in upstream.
const MOST: usize = 100;

/// Paths of the fields that are not the first of their name in their object. Empty if the text is not JSON.
pub(crate) fn duplicate_fields(text: &[u8]) -> Vec<String> {
    let mut scan = DuplicateScan::default();
    let mut json = serde_json::Deserializer::from_slice(text);
    match scan.deserialize(&mut json) {
        Ok(()) => scan.found,
        Err(_) => Vec::new(),
    }
}

#[derive(Default)]
struct DuplicateScan {
    /// Of the value that is read.
    path: String,
    found: Vec<String>,
}

impl<'de> DeserializeSeed<'de> for &mut DuplicateScan {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut DuplicateScan {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let (length, mut names) = (self.path.len(), BTreeSet::new());
        while let Some(name) = map.next_key::<String>()? {
            if length > 0 {
                self.path.push('.');
            }
            self.path.push_str(&name);
            if !names.insert(name) && self.found.len() < MOST {
                self.found.push(self.path.clone());
            }
            map.next_value_seed(&mut *self)?;
            self.path.truncate(length);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let length = self.path.len();
        for index in 0.. {
            // Writing to a string does not fail.
            let _ = write!(self.path, "[{index}]");
            if items.next_element_seed(&mut *self)?.is_none() {
                break;
            }
            self.path.truncate(length);
        }
        self.path.truncate(length);
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::duplicate_fields;

    #[test]
    fn fields_that_occur_twice_are_named_by_their_paths() {
        let text = br#"{"a": {"b": 1, "c": [{"d": 1.5}, {"d": null, "e": "x", "d": true}], "b": -2}, "b": 1, "a": 1}"#;
        assert_eq!(duplicate_fields(text), ["a.c[1].d", "a.b", "a"]);
        assert!(duplicate_fields(br#"{"a": [[], [{}]], "b": {"a": 1}}"#).is_empty());
        assert!(duplicate_fields(b"a: 1").is_empty());
        let many = format!("{{{}\"a\": 1}}", "\"a\": 1,".repeat(1000));
        assert_eq!(duplicate_fields(many.as_bytes()).len(), 100);
    }
}
