//! Strategic merge of a partial pod over a pod, by Kubernetes' rules for pod templates: lists in the table below are
//! merged by their key, all others are replaced; null deletes; `$patch` directives are followed.

use serde_json::Value;

use crate::pod::JsonMap;

/// Lists that are merged, with the field that identifies an entry; "" for lists of plain values.
const MERGE_KEYS: &[(&str, &str)] = &[
    ("containers", "name"),
    ("initContainers", "name"),
    ("ephemeralContainers", "name"),
    ("volumes", "name"),
    ("imagePullSecrets", "name"),
    ("secrets", "name"),
    ("hostAliases", "ip"),
    ("topologySpreadConstraints", "topologyKey"),
    ("resourceClaims", "name"),
    ("env", "name"),
    (PORTS, "containerPort"),
    ("volumeMounts", "mountPath"),
    ("volumeDevices", "devicePath"),
    ("ownerReferences", "uid"),
    ("conditions", "type"),
    ("finalizers", ""),
];

/// Ports of containers and of Services have different keys.
const PORTS: &str = "ports";
const SERVICE_PORT: &str = "port";
const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const ELEMENT_ORDER: &str = "$setElementOrder/";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";

/// Merges `patch` over `base` in place.
pub(crate) fn merge(base: &mut JsonMap, patch: JsonMap) {
    match patch.get(DIRECTIVE).and_then(Value::as_str) {
        Some("delete") => return base.clear(),
        Some("replace") => {
            *base = without_directives(patch);
            return;
        }
        _ => {}
    }
    if let Some(retained) = patch.get(RETAIN_KEYS).and_then(Value::as_array) {
        base.retain(|key, _| retained.iter().any(|name| name.as_str() == Some(key)));
    }
    for (key, value) in patch {
        if key == DIRECTIVE || key == RETAIN_KEYS || key.starts_with(ELEMENT_ORDER) {
            continue;
        }
        if let Some(list) = key.strip_prefix(DELETE_PRIMITIVES) {
            delete_primitives(base, list, &value);
            continue;
        }
        merge_field(base, &key, value);
    }
}

fn merge_field(base: &mut JsonMap, key: &str, value: Value) {
    match value {
        Value::Null => {
            base.shift_remove(key);
        }
        Value::Object(patch) => match base.get_mut(key) {
            Some(Value::Object(map)) => merge(map, patch),
            _ => {
                let mut made = JsonMap::new();
                merge(&mut made, patch);
                base.insert(key.to_owned(), Value::Object(made));
            }
        },
        Value::Array(patch) => {
            let merge_key = merge_key(key, &patch);
            let merged = match (merge_key, base.shift_remove(key)) {
                (Some(merge_key), Some(Value::Array(list))) => merge_lists(list, patch, merge_key),
                (Some(merge_key), _) => merge_lists(Vec::new(), patch, merge_key),
                (None, _) => patch.into_iter().filter(|entry| !entry.is_null()).map(cleaned).collect(),
            };
            base.insert(key.to_owned(), Value::Array(merged));
        }
        plain => {
            base.insert(key.to_owned(), plain);
        }
    }
}

fn merge_key(field: &str, entries: &[Value]) -> Option<&'static str> {
    if field == PORTS && entries.iter().any(|entry| entry.get(SERVICE_PORT).is_some()) {
        return Some(SERVICE_PORT);
    }
    MERGE_KEYS.iter().find(|(name, _)| *name == field).map(|(_, merge_key)| *merge_key)
}

fn delete_primitives(base: &mut JsonMap, list: &str, deleted: &Value) {
    let (Some(Value::Array(list)), Some(deleted)) = (base.get_mut(list), deleted.as_array()) else { return };
    list.retain(|entry| !deleted.contains(entry));
}

fn merge_lists(base: Vec<Value>, patch: Vec<Value>, merge_key: &str) -> Vec<Value> {
    if merge_key.is_empty() {
        let mut list = base;
        for entry in patch {
            if !list.contains(&entry) {
                list.push(entry);
            }
        }
        return list;
    }
    if patch.iter().any(|entry| directive(entry) == Some("replace")) {
        return patch.into_iter().filter(|entry| directive(entry).is_none()).map(cleaned).collect();
    }
    let order: Vec<Value> = base.iter().filter_map(|entry| entry.get(merge_key).cloned()).collect();
    let mut base: Vec<Value> = base;
    let mut patched: Vec<Value> = Vec::new();
    for entry in patch {
        let Some(key) = entry.get(merge_key).cloned() else {
            if !entry.is_null() {
                patched.push(cleaned(entry));
            }
            continue;
        };
        let same = |known: &Value| known.get(merge_key) == Some(&key);
        if directive(&entry) == Some("delete") {
            base.retain(|known| !same(known));
            patched.retain(|known| !same(known));
            continue;
        }
        let Value::Object(entry) = entry else { continue };
        if let Some(Value::Object(known)) = patched.iter_mut().find(|known| same(known)) {
            merge(known, entry);
            continue;
        }
        let mut merged = match base.iter().position(same) {
            Some(at) => base.remove(at),
            None => Value::Object(JsonMap::new()),
        };
        if let Value::Object(known) = &mut merged {
            merge(known, entry);
        }
        patched.push(merged);
    }
    interleaved(base, patched, &order, merge_key)
}

/// Entries of both lists in the order that Kubernetes gives them: an entry of the base goes before one of the patch only
/// if both were in the base in that order.
fn interleaved(base: Vec<Value>, patched: Vec<Value>, order: &[Value], merge_key: &str) -> Vec<Value> {
    let place = |entry: &Value| order.iter().position(|key| entry.get(merge_key) == Some(key));
    let mut result = Vec::with_capacity(base.len() + patched.len());
    let mut base = base.into_iter().peekable();
    for entry in patched {
        let at = place(&entry);
        while let Some(next) = base.next_if(|next| matches!((place(next), at), (Some(l), Some(r)) if l < r)) {
            result.push(next);
        }
        result.push(entry);
    }
    result.extend(base);
    result
}

fn directive(entry: &Value) -> Option<&str> {
    entry.get(DIRECTIVE)?.as_str()
}

/// A value to add where there was none: without nulls and directives.
fn cleaned(value: Value) -> Value {
    match value {
        Value::Object(patch) => {
            let mut made = JsonMap::new();
            merge(&mut made, patch);
            Value::Object(made)
        }
        other => other,
    }
}

fn without_directives(patch: JsonMap) -> JsonMap {
    patch.into_iter().filter(|(key, value)| !key.starts_with('$') && !value.is_null()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    fn check(base: Value, patch: Value, expected: Value) {
        let (Value::Object(mut base), Value::Object(patch)) = (base, patch) else { panic!("objects") };
        super::merge(&mut base, patch);
        assert_eq!(Value::Object(base), expected);
    }

    #[test]
    fn lists_of_the_table_are_merged_by_key() {
        check(
            json!({"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}]}),
            json!({"containers": [{"name": "a", "env": [{"name": "X", "value": "2"}, {"name": "Y", "value": "3"}]}]}),
            json!({"containers": [
                {"name": "a", "env": [{"name": "X", "value": "2"}, {"name": "Y", "value": "3"}]}, {"name": "b"}]}),
        );
    }

    #[test]
    fn ports_of_services_are_merged_by_their_number() {
        check(
            json!({"ports": [{"port": 80, "name": "web"}, {"port": 443}]}),
            json!({"ports": [{"port": 80, "nodePort": 30080}]}),
            json!({"ports": [{"port": 80, "name": "web", "nodePort": 30080}, {"port": 443}]}),
        );
    }

    #[test]
    fn other_lists_are_replaced() {
        check(json!({"args": ["a", "b"]}), json!({"args": ["c"]}), json!({"args": ["c"]}));
        check(
            json!({"tolerations": [{"key": "a"}]}),
            json!({"tolerations": [{"key": "b"}]}),
            json!({"tolerations": [{"key": "b"}]}),
        );
    }

    #[test]
    fn new_entries_come_before_entries_that_only_the_base_has() {
        check(
            json!({"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}),
            json!({"containers": [{"name": "x"}, {"name": "b", "image": "i"}]}),
            json!({"containers": [{"name": "x"}, {"name": "a"}, {"name": "b", "image": "i"}, {"name": "c"}]}),
        );
    }

    #[test]
    fn null_deletes_a_field_and_is_not_added() {
        check(json!({"a": 1, "b": 2}), json!({"a": null, "c": {"d": null, "e": 1}}), json!({"b": 2, "c": {"e": 1}}));
    }

    #[test]
    fn directives_are_followed_and_not_kept() {
        check(
            json!({"env": [{"name": "X"}, {"name": "Y"}]}),
            json!({"env": [{"name": "X", "$patch": "delete"}], "$setElementOrder/env": [{"name": "Y"}]}),
            json!({"env": [{"name": "Y"}]}),
        );
        check(
            json!({"securityContext": {"runAsUser": 1}}),
            json!({"securityContext": {"$patch": "replace", "runAsGroup": 2}}),
            json!({"securityContext": {"runAsGroup": 2}}),
        );
        check(
            json!({"finalizers": ["a", "b"]}),
            json!({"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"]}),
            json!({"finalizers": ["b", "c"]}),
        );
        check(
            json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
            json!({"volumes": [{"name": "v", "$retainKeys": ["name", "secret"], "secret": {"secretName": "s"}}]}),
            json!({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}),
        );
    }

    #[test]
    fn the_last_of_equal_keys_in_a_patch_counts() {
        check(
            json!({}),
            json!({"env": [{"name": "X", "value": "1"}, {"name": "X", "value": "2"}]}),
            json!({"env": [{"name": "X", "value": "2"}]}),
        );
    }
}
