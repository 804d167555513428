//! Fields that another manager owns. Server-side apply reports them as text, such as
//! `.spec.template.spec.containers[name="istio-proxy"].image`; they are left out of what we apply.

use kube::core::Status;
use serde_json::Value;

const REASON: &str = "FieldManagerConflict";

/// A field that is owned by another manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnedField {
    pub(super) path: String,
    /// Such as `conflict with "kubectl-edit" using apps/v1`.
    pub(super) message: String,
}

/// The conflicting fields; empty if the error is none of this kind.
pub(super) fn owned_fields(status: &Status) -> Vec<OwnedField> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let conflicts = causes.filter(|cause| cause.reason == REASON);
    conflicts.map(|cause| OwnedField { path: cause.field.clone(), message: cause.message.clone() }).collect()
}

/// Removes a field. False if the object does not have it, or the path cannot be understood.
pub(super) fn remove(object: &mut Value, path: &str) -> bool {
    match object {
        Value::Object(map) => {
            let Some(rest) = path.strip_prefix('.') else { return false };
            // Names may have dots, as those of labels have: the longest one that fits is meant.
            let fits = |name: &&String| {
                rest.strip_prefix(name.as_str()).is_some_and(|after| after.is_empty() || after.starts_with(['.', '[']))
            };
            let Some(name) = map.keys().filter(fits).max_by_key(|name| name.len()).cloned() else { return false };
            let after = &rest[name.len()..];
            if after.is_empty() {
                return map.remove(&name).is_some();
            }
            map.get_mut(&name).is_some_and(|inner| remove(inner, after))
        }
        Value::Array(list) => remove_from_list(list, path),
        _ => false,
    }
}

fn remove_from_list(list: &mut Vec<Value>, path: &str) -> bool {
    let Some((selector, after)) = selector(path) else { return false };
    let Some(at) = position(list, selector) else { return false };
    if after.is_empty() {
        list.remove(at);
        return true;
    }
    list.get_mut(at).is_some_and(|entry| remove(entry, after))
}

/// The text in the brackets at the beginning of a path, and the rest. Brackets within quotes do not count.
fn selector(path: &str) -> Option<(&str, &str)> {
    let inner = path.strip_prefix('[')?;
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, letter) in inner.char_indices() {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            ']' if !is_quoted => return Some((&inner[..at], &inner[at + 1..])),
            _ => {}
        }
    }
    None
}

/// The entry that a selector means: `0`, `="value"` or `name="a",port=80`.
fn position(list: &[Value], selector: &str) -> Option<usize> {
    if let Ok(at) = selector.parse::<usize>() {
        return (at < list.len()).then_some(at);
    }
    if let Some(value) = selector.strip_prefix('=') {
        let value: Value = serde_json::from_str(value).ok()?;
        return list.iter().position(|entry| *entry == value);
    }
    let keys = key_values(selector)?;
    let has = |entry: &Value, name: &str, value: &Value| match entry.get(name) {
        Some(found) => found == value,
        // The API server fills in the protocol of a port.
        None => name == "protocol" && value == "TCP",
    };
    list.iter().position(|entry| keys.iter().all(|(name, value)| has(entry, name, value)))
}

fn key_values(selector: &str) -> Option<Vec<(String, Value)>> {
    let mut keys = Vec::new();
    let mut rest = selector;
    while !rest.is_empty() {
        let (name, value) = rest.split_once('=')?;
        let mut values = serde_json::Deserializer::from_str(value).into_iter::<Value>();
        let parsed = values.next()?.ok()?;
        keys.push((name.to_owned(), parsed));
        rest = value.get(values.byte_offset()..)?;
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    (!keys.is_empty()).then_some(keys)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::remove;

    fn check(path: &str, expected: Option<Value>) {
        let mut object = json!({
            "metadata": {"labels": {"a.b/c": "1", "a": "2"}, "finalizers": ["x", "y]"]},
            "spec": {"ports": [{"port": 80, "name": "web"}, {"port": 81, "protocol": "UDP"}],
                "containers": [{"name": "istio-proxy", "image": "i", "env": [{"name": "A[", "value": "b"}]}]},
        });
        let before = object.clone();
        let is_removed = remove(&mut object, path);
        assert_eq!(is_removed, expected.is_some(), "{path}");
        let after = expected.unwrap_or(before);
        assert_eq!(object, after, "{path}");
    }

    fn without(edit: impl Fn(&mut Value)) -> Option<Value> {
        let mut object = json!({
            "metadata": {"labels": {"a.b/c": "1", "a": "2"}, "finalizers": ["x", "y]"]},
            "spec": {"ports": [{"port": 80, "name": "web"}, {"port": 81, "protocol": "UDP"}],
                "containers": [{"name": "istio-proxy", "image": "i", "env": [{"name": "A[", "value": "b"}]}]},
        });
        edit(&mut object);
        Some(object)
    }

    #[test]
    fn fields_are_found_by_their_path() {
        let labels = json!({"a": "2"});
        check(".metadata.labels.a.b/c", without(|o| o["metadata"]["labels"] = labels.clone()));
        check(".metadata.labels.a", without(|o| o["metadata"]["labels"] = json!({"a.b/c": "1"})));
        check(".metadata.finalizers[=\"y]\"]", without(|o| o["metadata"]["finalizers"] = json!(["x"])));
        check(".metadata.finalizers[0]", without(|o| o["metadata"]["finalizers"] = json!(["y]"])));
        check(".spec.ports[port=80,protocol=\"TCP\"].name", without(|o| o["spec"]["ports"][0] = json!({"port": 80})));
        check(
            ".spec.containers[name=\"istio-proxy\"].env[name=\"A[\"].value",
            without(|o| o["spec"]["containers"][0]["env"][0] = json!({"name": "A["})),
        );
        check(".spec.containers[name=\"istio-proxy\"]", without(|o| o["spec"]["containers"] = json!([])));
    }

    #[test]
    fn unknown_or_malformed_paths_change_nothing() {
        for path in [
            "",
            "spec",
            ".",
            ".none",
            ".spec.ports[",
            ".spec.ports[port=82].name",
            ".spec.ports[9]",
            ".spec.ports[port]",
            ".spec.ports[port=",
            ".spec.ports.name",
            ".metadata.labels[name=\"a\"]",
            ".spec.ports[=\"x\"]",
        ] {
            check(path, None);
        }
    }
}
