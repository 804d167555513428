//! Walks objects by their schema: the fields that an object sets, the difference of two objects, and their merge.

use serde_json::{Map, Value};

use super::field_set::{FieldSet, PathElement, sorted};
use crate::schema::{ListKind, Schema};

/// The difference of two objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Comparison {
    /// Fields that were added or changed.
    pub(super) changed: FieldSet,
    pub(super) removed: FieldSet,
}

/// The path element of a list item; `None` if the list is atomic or the item has no key.
pub(super) fn element(item: &Value, list: Schema<'_>) -> Option<PathElement> {
    match list.list_kind() {
        ListKind::Atomic => None,
        ListKind::Set => Some(PathElement::Item(item.to_string())),
        ListKind::Map(keys) => {
            let fields = item.as_object()?;
            let mut found = Map::new();
            for key in keys {
                if let Some(value) = fields.get(key).or_else(|| list.items().default_of(key)) {
                    found.insert(key.to_owned(), value.clone());
                }
            }
            (!found.is_empty()).then(|| PathElement::Key(sorted(&found)))
        }
    }
}

/// Whether a list is walked by its items. A list with items that have no keys or the same is one value.
fn is_granular(items: &[Value], list: Schema<'_>) -> bool {
    if list.list_kind() == ListKind::Atomic {
        return false;
    }
    let mut seen = std::collections::BTreeSet::new();
    items.iter().all(|item| element(item, list).is_some_and(|element| seen.insert(element)))
}

/// The fields that an object sets.
pub(super) fn fields_of(value: &Value, schema: Schema<'_>) -> FieldSet {
    let mut set = FieldSet::default();
    collect(value, schema, &mut set);
    set
}

fn collect(value: &Value, schema: Schema<'_>, set: &mut FieldSet) {
    match value {
        Value::Object(fields) if !fields.is_empty() && !schema.is_atomic_map() => {
            for (name, value) in fields {
                collect(value, schema.field_or_any(name), set.child(PathElement::Field(name.clone())));
            }
        }
        Value::Array(items) if !items.is_empty() && is_granular(items, schema) => {
            for item in items {
                let Some(element) = element(item, schema) else { continue };
                let below = set.child(element);
                below.is_member = true;
                if item.is_object() && !schema.items().is_atomic_map() {
                    collect(item, schema.items(), below);
                }
            }
        }
        _ => set.is_member = true,
    }
}

/// Compares two objects. Null is an object that does not exist.
pub(super) fn compare(before: &Value, after: &Value, schema: Schema<'_>) -> Comparison {
    let mut comparison = Comparison::default();
    let existing = |object| Some(object).filter(|object: &&Value| !object.is_null());
    walk(existing(before), existing(after), schema, &mut comparison.changed, &mut comparison.removed);
    prune(&mut comparison.changed);
    prune(&mut comparison.removed);
    comparison
}

fn walk(
    before: Option<&Value>,
    after: Option<&Value>,
    schema: Schema<'_>,
    changed: &mut FieldSet,
    removed: &mut FieldSet,
) {
    if before == after {
        return;
    }
    let (is_new, is_gone) = (before.is_none(), after.is_none());
    match (children(before, schema), children(after, schema)) {
        (Some(old), Some(new)) => {
            let mut names: Vec<&PathElement> = old.iter().map(|(name, _)| name).collect();
            names.extend(new.iter().map(|(name, _)| name).filter(|name| !old.iter().any(|(known, _)| known == *name)));
            for name in names {
                let find = |list: &[(PathElement, &'_ Value)]| list.iter().position(|(known, _)| known == name);
                let (old, new) = (find(&old).map(|at| old[at].1), find(&new).map(|at| new[at].1));
                let below = below(schema, name);
                let (more, less) = (changed.child(name.clone()), removed.child(name.clone()));
                walk(old, new, below, more, less);
            }
            changed.is_member |= is_new;
            removed.is_member |= is_gone;
        }
        _ if is_gone => removed.is_member = true,
        _ => changed.is_member = true,
    }
}

fn below<'a>(schema: Schema<'a>, element: &PathElement) -> Schema<'a> {
    match element {
        PathElement::Field(name) => schema.field_or_any(name),
        PathElement::Key(_) | PathElement::Item(_) => schema.items(),
    }
}

/// The parts of a value that are compared one by one; `None` if it is compared as a whole. An absent value has none.
fn children<'a>(value: Option<&'a Value>, schema: Schema<'_>) -> Option<Vec<(PathElement, &'a Value)>> {
    match value {
        None => Some(Vec::new()),
        Some(Value::Object(fields)) if !schema.is_atomic_map() => {
            Some(fields.iter().map(|(name, value)| (PathElement::Field(name.clone()), value)).collect())
        }
        Some(Value::Array(items)) if is_granular(items, schema) => {
            Some(items.iter().filter_map(|item| Some((element(item, schema)?, item))).collect())
        }
        Some(_) => None,
    }
}

/// Removes nodes without members.
fn prune(set: &mut FieldSet) {
    set.children.retain(|_, below| {
        prune(below);
        !below.is_empty()
    });
}

/// Merges an applied object over the current one.
pub(super) fn merge(live: &Value, applied: &Value, schema: Schema<'_>) -> Value {
    match (live, applied) {
        (Value::Object(old), Value::Object(new)) if !schema.is_atomic_map() => {
            let mut merged = old.clone();
            for (name, value) in new {
                let value = match old.get(name) {
                    Some(before) => merge(before, value, schema.field_or_any(name)),
                    None => value.clone(),
                };
                merged.insert(name.clone(), value);
            }
            Value::Object(merged)
        }
        (Value::Array(old), Value::Array(new)) if is_granular(old, schema) && is_granular(new, schema) => {
            Value::Array(merge_lists(old, new, schema))
        }
        _ => applied.clone(),
    }
}

/// Items in the order of the applied list. Items that only the current list has stay after their predecessors in it.
fn merge_lists(old: &[Value], new: &[Value], schema: Schema<'_>) -> Vec<Value> {
    let key = |item: &Value| element(item, schema);
    let is_in = |list: &[Value], item: &Value| list.iter().any(|other| key(other) == key(item));
    let mut merged: Vec<Value> = Vec::with_capacity(old.len() + new.len());
    let mut rest = old;
    for item in new {
        while let [first, others @ ..] = rest {
            if !is_in(new, first) {
                merged.push(first.clone());
            } else if !is_in(&merged, first) {
                break;
            }
            rest = others;
        }
        let before = old.iter().find(|before| key(before) == key(item));
        merged.push(before.map_or_else(|| item.clone(), |before| merge(before, item, schema.items())));
    }
    merged.extend(rest.iter().filter(|only| !is_in(new, only)).cloned());
    merged
}

/// Removes a field. Objects and lists that become empty by it are removed too, unless `keeps` says otherwise.
pub(super) fn remove(
    value: &mut Value,
    path: &[PathElement],
    at: usize,
    schema: Schema<'_>,
    keeps: &dyn Fn(&[PathElement]) -> bool,
) {
    let Some(step) = path.get(at) else { return };
    let is_last = at + 1 == path.len();
    match (value, step) {
        (Value::Object(fields), PathElement::Field(name)) => {
            if is_last {
                fields.shift_remove(name);
                return;
            }
            let Some(inner) = fields.get_mut(name) else { return };
            remove(inner, path, at + 1, schema.field_or_any(name), keeps);
            if is_hollow(inner) && !keeps(&path[..=at]) {
                fields.shift_remove(name);
            }
        }
        (Value::Array(items), step) => {
            let Some(found) = items.iter().position(|item| element(item, schema).as_ref() == Some(step)) else {
                return;
            };
            if is_last {
                items.remove(found);
            } else {
                remove(&mut items[found], path, at + 1, schema.items(), keeps);
            }
        }
        _ => {}
    }
}

fn is_hollow(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}
