//! Strategic merge patches, which kubectl sends for core kinds: like merge patches, but lists whose items have a key are
//! merged, and directives delete, replace and order.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::schema::Schema;

const DIRECTIVE: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const DELETE_SCALARS: &str = "$deleteFromPrimitiveList/";

/// Applies a strategic merge patch.
pub(crate) fn strategic_patch(object: &Value, body: &[u8], schema: Schema<'_>) -> Result<Value, ApiError> {
    let patch: Value = serde_json::from_slice(body)
        .map_err(|error| ApiError::bad_request(format!("could not decode the strategic merge patch: {error}")))?;
    let Some(patch) = patch.as_object() else {
        return Err(ApiError::bad_request("a strategic merge patch must be a JSON object"));
    };
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        merge(fields, patch, schema);
    }
    Ok(object)
}

fn merge(fields: &mut Map<String, Value>, patch: &Map<String, Value>, schema: Schema<'_>) {
    if patch.get(DIRECTIVE).and_then(Value::as_str) == Some("replace") {
        *fields = plain(patch);
        return;
    }
    if let Some(kept) = patch.get(RETAIN).and_then(Value::as_array) {
        fields.retain(|name, _| kept.iter().any(|kept| kept.as_str() == Some(name)));
    }
    for (name, value) in patch {
        if let Some(list) = name.strip_prefix(DELETE_SCALARS) {
            if let (Some(Value::Array(items)), Some(gone)) = (fields.get_mut(list), value.as_array()) {
                items.retain(|item| !gone.contains(item));
            }
            continue;
        }
        if name.starts_with('$') {
            continue;
        }
        let below = schema.field_or_any(name);
        match value {
            Value::Null => _ = fields.shift_remove(name),
            Value::Object(part) if part.get(DIRECTIVE).and_then(Value::as_str) == Some("delete") => {
                fields.shift_remove(name);
            }
            Value::Object(part) => {
                let known = fields.entry(name.clone()).or_insert_with(|| Value::Object(Map::new()));
                if !known.is_object() {
                    *known = Value::Object(Map::new());
                }
                if let Some(known) = known.as_object_mut() {
                    merge(known, part, below);
                }
            }
            Value::Array(items) => {
                let known = fields.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
                fields.insert(name.clone(), Value::Array(merge_list(known, items, below)));
            }
            scalar => _ = fields.insert(name.clone(), scalar.clone()),
        }
    }
    for (name, order) in patch.iter().filter_map(|(name, order)| Some((name.strip_prefix(ORDER)?, order))) {
        if let (Some(Value::Array(items)), Some(order)) = (fields.get_mut(name), order.as_array()) {
            sort(items, order, schema.field_or_any(name));
        }
    }
}

fn merge_list(mut known: Vec<Value>, patch: &[Value], schema: Schema<'_>) -> Vec<Value> {
    let directive = |item: &Value| item.get(DIRECTIVE).and_then(Value::as_str).map(str::to_owned);
    if schema.merges_scalars() {
        let new: Vec<&Value> = patch.iter().filter(|item| !known.contains(item)).collect();
        known.extend(new.into_iter().cloned());
        return known;
    }
    let Some(key) = schema.merge_key() else { return patch.to_vec() };
    if patch.iter().any(|item| directive(item).as_deref() == Some("replace")) {
        return patch.iter().filter(|item| directive(item).is_none()).cloned().collect();
    }
    for item in patch {
        let at = known.iter().position(|known| known.get(key).is_some() && known.get(key) == item.get(key));
        match (at, directive(item).as_deref(), item.as_object()) {
            (Some(at), Some("delete"), _) => _ = known.remove(at),
            (None, Some("delete"), _) => {}
            (Some(at), _, Some(part)) => {
                if let Some(fields) = known[at].as_object_mut() {
                    merge(fields, part, schema.items());
                }
            }
            (None, _, Some(part)) => {
                let mut fields = Map::new();
                merge(&mut fields, part, schema.items());
                known.push(Value::Object(fields));
            }
            (_, _, None) => known.push(item.clone()),
        }
    }
    known
}

/// Puts items into the order of the patch. Items that it does not name come last.
fn sort(items: &mut [Value], order: &[Value], schema: Schema<'_>) {
    let place = |item: &Value| {
        let is_it = |wanted: &&Value| match schema.merge_key() {
            Some(key) => wanted.get(key) == item.get(key),
            None => **wanted == *item,
        };
        order.iter().position(|wanted| is_it(&wanted)).unwrap_or(usize::MAX)
    };
    items.sort_by_key(place);
}

/// The fields without directives.
fn plain(patch: &Map<String, Value>) -> Map<String, Value> {
    patch.iter().filter(|(name, _)| !name.starts_with('$')).map(|(name, value)| (name.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::strategic_patch;
    use crate::resource::ResourceTable;
    use crate::schema::Schema;

    fn patched(patch: Value) -> Value {
        let schema = &ResourceTable::get().by_kind("v1", "Service").expect("a core kind").schema;
        let service = json!({
            "metadata": {"labels": {"a": "1"}, "finalizers": ["x"]},
            "spec": {"ports": [{"port": 80, "name": "http"}, {"port": 90, "name": "grpc"}], "clusterIPs": ["10.0.0.1"]},
        });
        strategic_patch(&service, patch.to_string().as_bytes(), Schema::of(schema)).expect("a patch")
    }

    #[test]
    fn items_with_a_key_are_merged_deleted_and_ordered() {
        let after = patched(json!({"spec": {
            "$setElementOrder/ports": [{"port": 70}, {"port": 80}],
            "ports": [{"port": 80, "name": "web"}, {"port": 70}, {"port": 90, "$patch": "delete"}],
        }}));
        assert_eq!(after["spec"]["ports"], json!([{"port": 70}, {"port": 80, "name": "web"}]));
    }

    #[test]
    fn other_lists_are_replaced_and_scalars_are_merged_where_the_schema_says_so() {
        let after = patched(json!({"metadata": {"finalizers": ["y"]}, "spec": {"clusterIPs": ["10.0.0.2"]}}));
        assert_eq!(after["metadata"]["finalizers"], json!(["x", "y"]));
        assert_eq!(after["spec"]["clusterIPs"], json!(["10.0.0.2"]));
        let after = patched(json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x"]}}));
        assert_eq!(after["metadata"]["finalizers"], json!([]));
    }

    #[test]
    fn null_removes_and_directives_replace() {
        let after = patched(json!({"metadata": {"labels": null}, "spec": {"$patch": "replace", "type": "ClusterIP"}}));
        assert_eq!(after, json!({"metadata": {"finalizers": ["x"]}, "spec": {"type": "ClusterIP"}}));
    }
}
