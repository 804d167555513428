//! Objects as JSON, and their stored text. The text has `metadata` first and lacks `apiVersion`, `kind` and
//! `resourceVersion`: these depend on the request and on the write, so `document` adds them without parsing.

use std::fmt::Write;

use serde_json::{Map, Value};

use crate::resource::ResourceInfo;
use crate::store::{StoredObject, TEXT_START};

/// Metadata that only the server sets.
pub(crate) const SERVER_FIELDS: [&str; 5] = ["uid", "creationTimestamp", "generation", "deletionTimestamp", "selfLink"];

/// The text to store of an object.
pub(crate) fn text(object: &Value) -> Box<str> {
    let mut metadata = object.get("metadata").cloned().unwrap_or_default();
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.shift_remove("resourceVersion");
    }
    let mut out = Map::new();
    out.insert("metadata".to_owned(), metadata);
    for (key, value) in object.as_object().into_iter().flatten() {
        if !["apiVersion", "kind", "metadata"].contains(&key.as_str()) {
            out.insert(key.clone(), value.clone());
        }
    }
    Value::Object(out).to_string().into()
}

/// The JSON document of a stored object in a version of its kind.
pub fn document(stored: &StoredObject, resource: &ResourceInfo, version: &str) -> String {
    let writer = DocumentWriter::new(resource, version);
    let mut out = String::with_capacity(writer.size(stored));
    writer.push(&mut out, stored);
    out
}

/// Writes the documents of one kind and version.
pub(crate) struct DocumentWriter {
    /// Up to the revision.
    start: String,
}

impl DocumentWriter {
    pub(crate) fn new(resource: &ResourceInfo, version: &str) -> DocumentWriter {
        let (api_version, kind) = (resource.api_version(version), &resource.kind);
        let start =
            format!("{{\"apiVersion\":\"{api_version}\",\"kind\":\"{kind}\",\"metadata\":{{\"resourceVersion\":\"");
        DocumentWriter { start }
    }

    /// An upper bound of the bytes of a document.
    pub(crate) fn size(&self, stored: &StoredObject) -> usize {
        // The revision has at most 20 digits.
        self.start.len() + stored.text.len() + 20
    }

    pub(crate) fn push(&self, out: &mut String, stored: &StoredObject) {
        let rest = stored.text.strip_prefix(TEXT_START).unwrap_or("}}");
        let end = if rest.starts_with('}') { "\"" } else { "\"," };
        out.push_str(&self.start);
        // Writing to a string does not fail.
        let _ = write!(out, "{}", stored.revision);
        out.push_str(end);
        out.push_str(rest);
    }
}

/// The parsed document of a stored object.
pub(crate) fn value(stored: &StoredObject, resource: &ResourceInfo, version: &str) -> Value {
    serde_json::from_str(&document(stored, resource, version)).unwrap_or_default()
}

/// The metadata of a stored object.
pub(crate) fn stored_metadata(stored: &StoredObject) -> Value {
    let mut object: Value = serde_json::from_str(&stored.text).unwrap_or_default();
    object.get_mut("metadata").map(Value::take).unwrap_or_default()
}

/// A text of the metadata; empty if absent.
pub(crate) fn meta<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get("metadata").and_then(|meta| meta.get(field)).and_then(Value::as_str).unwrap_or_default()
}

/// Sets a field of the metadata; `None` removes it.
pub(crate) fn set_meta(object: &mut Value, field: &str, value: Option<Value>) {
    if !object["metadata"].is_object() {
        object["metadata"] = Value::Object(Map::new());
    }
    let Some(metadata) = object["metadata"].as_object_mut() else { return };
    match value {
        Some(value) => _ = metadata.insert(field.to_owned(), value),
        None => _ = metadata.shift_remove(field),
    }
}

/// The time now, as metadata has it.
pub(crate) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A random UUID.
pub(crate) fn new_uid() -> String {
    let bits = fastrand::u128(..) & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// A name from a prefix, as upstream makes it.
pub(crate) fn generated_name(prefix: &str) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let prefix: String = prefix.chars().take(248).collect();
    let suffix: String = (0..5).map(|_| char::from(LETTERS[fastrand::usize(..LETTERS.len())])).collect();
    prefix + &suffix
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{document, new_uid, text};
    use crate::resource::ResourceTable;
    use crate::store::{ObjectKey, StoredObject};

    #[test]
    fn a_stored_object_is_shown_in_the_version_and_revision_asked_for() {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"},
            "metadata": {"name": "x", "resourceVersion": "old", "namespace": "shop"},
        });
        let stored = StoredObject { key: ObjectKey::new("configmaps", "shop", "x"), revision: 7, text: text(&object) };
        let table = ResourceTable::get();
        let resource = table.by_kind("v1", "ConfigMap").expect("a core kind");
        assert_eq!(
            document(&stored, resource, "v1"),
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"resourceVersion":"7","name":"x","namespace":"shop"},"data":{"a":"b"}}"#
        );
    }

    #[test]
    fn uids_are_random_uuids_of_version_4() {
        let uid = new_uid();
        let parts: Vec<usize> = uid.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12]);
        assert_eq!(uid.as_bytes()[14], b'4');
        assert!(b"89ab".contains(&uid.as_bytes()[19]), "{uid}");
        assert_ne!(uid, new_uid());
    }
}
