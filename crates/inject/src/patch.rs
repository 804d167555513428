//! JSON patches (RFC 6902): the difference of two values.

use serde_json::{Value, json};

use crate::pod::JsonMap;

/// Operations that turn `before` into `after`.
pub fn difference(before: &Value, after: &Value) -> Vec<Value> {
    let mut operations = Vec::new();
    compare(before, after, &mut String::new(), &mut operations);
    operations
}

fn compare(before: &Value, after: &Value, path: &mut String, operations: &mut Vec<Value>) {
    match (before, after) {
        _ if before == after => {}
        (Value::Object(before), Value::Object(after)) => compare_maps(before, after, path, operations),
        (Value::Array(before), Value::Array(after)) => compare_lists(before, after, path, operations),
        _ => operations.push(json!({"op": "replace", "path": path, "value": after})),
    }
}

fn compare_maps(before: &JsonMap, after: &JsonMap, path: &mut String, operations: &mut Vec<Value>) {
    let length = path.len();
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        step(path, key);
        operations.push(json!({"op": "remove", "path": path}));
        path.truncate(length);
    }
    for (key, value) in after {
        step(path, key);
        match before.get(key) {
            Some(known) => compare(known, value, path, operations),
            None => operations.push(json!({"op": "add", "path": path, "value": value})),
        }
        path.truncate(length);
    }
}

/// Equal entries at both ends stay; of those between, the first are compared and the rest removed or added.
fn compare_lists(before: &[Value], after: &[Value], path: &mut String, operations: &mut Vec<Value>) {
    let length = path.len();
    let shorter = before.len().min(after.len());
    let start = before.iter().zip(after).take_while(|(b, a)| b == a).count();
    let end = before.iter().rev().zip(after.iter().rev()).take(shorter - start).take_while(|(b, a)| b == a).count();
    let (old, new) = (&before[start..before.len() - end], &after[start..after.len() - end]);
    let both = old.len().min(new.len());
    for at in 0..both {
        step(path, &(start + at).to_string());
        compare(&old[at], &new[at], path, operations);
        path.truncate(length);
    }
    for at in (both..old.len()).rev() {
        step(path, &(start + at).to_string());
        operations.push(json!({"op": "remove", "path": path}));
        path.truncate(length);
    }
    for (at, value) in new.iter().enumerate().skip(both) {
        step(path, &(start + at).to_string());
        operations.push(json!({"op": "add", "path": path, "value": value}));
        path.truncate(length);
    }
}

fn step(path: &mut String, key: &str) {
    path.push('/');
    for c in key.chars() {
        match c {
            '~' => path.push_str("~0"),
            '/' => path.push_str("~1"),
            other => path.push(other),
        }
    }
}

/// Applies a patch; `None` if it does not fit. Used by tests.
#[cfg(test)]
pub(crate) fn apply(mut value: Value, operations: &[Value]) -> Option<Value> {
    for operation in operations {
        let path = operation["path"].as_str()?;
        if path.is_empty() {
            value = operation["value"].clone();
            continue;
        }
        let (parent, key) = path.rsplit_once('/')?;
        let key = key.replace("~1", "/").replace("~0", "~");
        match (value.pointer_mut(parent)?, operation["op"].as_str()?) {
            (Value::Object(map), "add") => drop(map.insert(key, operation["value"].clone())),
            (Value::Object(map), "replace") => *map.get_mut(&key)? = operation["value"].clone(),
            (Value::Object(map), "remove") => drop(map.shift_remove(&key)?),
            (Value::Array(list), "add") => list.insert(key.parse().ok()?, operation["value"].clone()),
            (Value::Array(list), "replace") => *list.get_mut(key.parse::<usize>().ok()?)? = operation["value"].clone(),
            (Value::Array(list), "remove") => drop(list.remove(key.parse().ok()?)),
            _ => return None,
        }
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};
    use serde_json::{Map, Value, json};

    use super::{apply, difference};

    #[test]
    fn only_what_differs_is_in_the_patch() {
        let before = json!({"a": {"x/y": 1, "z~": 2}, "list": [1, 2, 3], "same": true});
        let after = json!({"a": {"x/y": 2}, "list": [1, 9, 2, 3], "same": true, "new": []});
        let patch = difference(&before, &after);
        assert_eq!(
            patch,
            [
                json!({"op": "remove", "path": "/a/z~0"}),
                json!({"op": "replace", "path": "/a/x~1y", "value": 2}),
                json!({"op": "add", "path": "/list/1", "value": 9}),
                json!({"op": "add", "path": "/new", "value": []}),
            ]
        );
        assert_eq!(difference(&before, &before), Vec::<Value>::new());
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf =
            prop_oneof![Just(Value::Null), any::<u8>().prop_map(Value::from), "[a~/]{0,2}".prop_map(Value::from)];
        leaf.prop_recursive(4, 40, 5, |inner| {
            let map = proptest::collection::vec(("[a-c~/]{0,2}", inner.clone()), 0..5);
            prop_oneof![
                proptest::collection::vec(inner, 0..5).prop_map(Value::from),
                map.prop_map(|entries| Value::Object(entries.into_iter().collect::<Map<_, _>>())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_patch_applied_gives_the_other_value(before in values(), after in values()) {
            let patch = difference(&before, &after);
            assert_eq!(apply(before, &patch), Some(after));
        }
    }
}
