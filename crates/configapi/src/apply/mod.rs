//! Field managers: who set which field (`managedFields`), and server-side apply with its conflicts. The rules are those of
//! upstream's structured merge.

mod field_set;
mod typed;

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::field_cause::FieldCause;
use crate::object;
use crate::schema::Schema;
use field_set::{FieldSet, PathElement, shown};

/// The most managers that update; the oldest are joined.
const MAX_UPDATERS: usize = 10;
/// The name of joined managers.
const JOINED: &str = "ancient-changes";
/// Fields that have no manager.
const UNMANAGED: &[&[&str]] = &[
    &["apiVersion"],
    &["kind"],
    &["metadata", "name"],
    &["metadata", "namespace"],
    &["metadata", "creationTimestamp"],
    &["metadata", "deletionTimestamp"],
    &["metadata", "deletionGracePeriodSeconds"],
    &["metadata", "selfLink"],
    &["metadata", "uid"],
    &["metadata", "generation"],
    &["metadata", "generateName"],
    &["metadata", "managedFields"],
    &["metadata", "resourceVersion"],
];

/// Who makes a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldManager {
    pub(crate) name: String,
    pub(crate) api_version: String,
    /// `status`, or empty for the object itself.
    pub(crate) subresource: &'static str,
    pub(crate) time: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Apply,
    Update,
}

/// One entry of `managedFields`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ManagedEntry {
    manager: String,
    operation: Operation,
    api_version: String,
    subresource: String,
    time: String,
    fields: FieldSet,
}

impl ManagedEntry {
    fn new(manager: &FieldManager, operation: Operation, fields: FieldSet) -> ManagedEntry {
        ManagedEntry {
            manager: manager.name.clone(),
            operation,
            api_version: manager.api_version.clone(),
            subresource: manager.subresource.to_owned(),
            time: manager.time.clone(),
            fields,
        }
    }

    fn parse(json: &Value) -> Option<ManagedEntry> {
        let text = |key: &str| json.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let operation = match text("operation").as_str() {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return None,
        };
        Some(ManagedEntry {
            manager: text("manager"),
            operation,
            api_version: text("apiVersion"),
            subresource: text("subresource"),
            time: text("time"),
            fields: FieldSet::parse(json.get("fieldsV1")?),
        })
    }

    fn to_json(&self) -> Value {
        let operation = if self.operation == Operation::Apply { "Apply" } else { "Update" };
        let mut json = json!({
            "manager": self.manager,
            "operation": operation,
            "apiVersion": self.api_version,
            "time": self.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": self.fields.to_json(),
        });
        if !self.subresource.is_empty() {
            json["subresource"] = self.subresource.clone().into();
        }
        json
    }

    fn is_of(&self, manager: &FieldManager, operation: Operation) -> bool {
        self.manager == manager.name
            && self.operation == operation
            && self.subresource == manager.subresource
            && (operation == Operation::Apply || self.api_version == manager.api_version)
    }
}

/// The managers of an object; `None` if there are none or an entry is malformed.
fn managers(object: &Value) -> Option<Vec<ManagedEntry>> {
    let entries = object.get("metadata")?.get("managedFields")?.as_array()?;
    let parsed: Option<Vec<ManagedEntry>> = entries.iter().map(ManagedEntry::parse).collect();
    parsed.filter(|entries| !entries.is_empty())
}

/// Whether a client asks that managers are forgotten: it sends one empty entry.
fn forgets_managers(object: &Value) -> bool {
    object.pointer("/metadata/managedFields") == Some(&json!([{}]))
}

/// Records in `after` who manages its fields, after a create (`before` is null), an update or a patch.
pub(crate) fn record_update(before: &Value, after: &mut Value, manager: &FieldManager, schema: Schema<'_>) {
    if forgets_managers(after) {
        object::set_meta(after, "managedFields", None);
        return;
    }
    let sent = if manager.subresource.is_empty() { managers(after) } else { None };
    let mut entries = sent.or_else(|| managers(before)).unwrap_or_default();
    let comparison = typed::compare(&unmanaged(before), &unmanaged(after), schema);
    let (changed, removed) = (managed(comparison.changed), comparison.removed);
    for entry in &mut entries {
        if !entry.is_of(manager, Operation::Update) {
            entry.fields = entry.fields.difference(&changed).difference(&removed);
        }
    }
    let own = entries.iter().position(|entry| entry.is_of(manager, Operation::Update));
    match own {
        Some(at) => {
            let fields = entries[at].fields.union(&changed).difference(&removed);
            if fields != entries[at].fields {
                entries[at].fields = fields;
                entries[at].time.clone_from(&manager.time);
            }
        }
        None if !changed.is_empty() => entries.push(ManagedEntry::new(manager, Operation::Update, changed)),
        None => {}
    }
    store(after, entries);
}

/// The object after a server-side apply of `applied` to `live` (null if it does not exist).
pub(crate) fn apply(
    live: &Value,
    applied: &Value,
    manager: &FieldManager,
    is_forced: bool,
    schema: Schema<'_>,
) -> Result<Value, ApiError> {
    if applied.pointer("/metadata/managedFields").is_some_and(|fields| !fields.is_null()) {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    let mut entries = managers(live).unwrap_or_default();
    let current = unmanaged(live);
    let mut merged = if live.is_object() { typed::merge(&current, applied, schema) } else { applied.clone() };
    let fields = managed(typed::fields_of(applied, schema));
    let own = entries.iter().position(|entry| entry.is_of(manager, Operation::Apply));
    let last = own.map(|at| entries.remove(at));
    if let Some(last) = &last {
        remove_given_up(&mut merged, &last.fields, &fields, &entries, schema);
    }
    let comparison = typed::compare(&current, &unmanaged(&merged), schema);
    let conflicts: Vec<(usize, FieldSet)> = entries
        .iter()
        .enumerate()
        .filter_map(|(at, entry)| {
            let common = entry.fields.intersection(&comparison.changed);
            (!common.is_empty()).then_some((at, common))
        })
        .collect();
    if !is_forced && !conflicts.is_empty() {
        return Err(conflict_error(&entries, &conflicts));
    }
    for (at, common) in &conflicts {
        entries[*at].fields = entries[*at].fields.difference(common);
    }
    for entry in &mut entries {
        entry.fields = entry.fields.difference(&comparison.removed);
    }
    let mut entry = ManagedEntry::new(manager, Operation::Apply, fields);
    if let Some(last) = last.filter(|last| last.fields == entry.fields) {
        entry.time = last.time;
    }
    entries.insert(0, entry);
    store(&mut merged, entries);
    Ok(merged)
}

/// Removes fields that the manager applied before, does not apply now, and that no other manager has.
fn remove_given_up(merged: &mut Value, before: &FieldSet, now: &FieldSet, others: &[ManagedEntry], schema: Schema<'_>) {
    let kept = others.iter().fold(now.clone(), |all, entry| all.union(&entry.fields));
    let keeps = |path: &[PathElement]| kept.has_any(path);
    for path in before.difference(&kept).paths() {
        if !keeps(&path) {
            typed::remove(merged, &path, 0, schema, &keeps);
        }
    }
}

fn conflict_error(entries: &[ManagedEntry], conflicts: &[(usize, FieldSet)]) -> ApiError {
    let mut causes = Vec::new();
    let mut lines = Vec::new();
    for (at, fields) in conflicts {
        let entry = &entries[*at];
        let manager = match entry.operation {
            Operation::Apply => format!("conflict with {:?}", entry.manager),
            Operation::Update => {
                let part = match entry.subresource.as_str() {
                    "" => String::new(),
                    name => format!(" with subresource {name:?}"),
                };
                format!("conflict with {:?}{part} using {}", entry.manager, entry.api_version)
            }
        };
        let paths: Vec<String> = fields.paths().iter().map(|path| shown(path)).collect();
        causes.extend(paths.iter().map(|path| FieldCause {
            reason: "FieldManagerConflict",
            field: path.clone(),
            message: manager.clone(),
        }));
        match paths.as_slice() {
            [one] => lines.push(format!("{manager}: {one}")),
            many => lines.push(format!("{manager}:\n- {}", many.join("\n- "))),
        }
    }
    let number = causes.len();
    let word = if number == 1 { "conflict" } else { "conflicts" };
    ApiError::apply_conflict(format!("Apply failed with {number} {word}: {}", lines.join("\n")), &causes)
}

/// The object without `managedFields`.
fn unmanaged(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.shift_remove("managedFields");
    }
    object
}

/// The fields that have managers.
fn managed(mut fields: FieldSet) -> FieldSet {
    for path in UNMANAGED {
        fields.remove(path);
    }
    if let Some(metadata) = fields.children.get_mut(&PathElement::Field("metadata".to_owned())) {
        metadata.is_member = false;
        if metadata.is_empty() {
            fields.remove(&["metadata"]);
        }
    }
    fields.is_member = false;
    fields
}

/// Writes the managers into the metadata: managers that apply first, then by time.
fn store(object: &mut Value, mut entries: Vec<ManagedEntry>) {
    entries.retain(|entry| !entry.fields.is_empty());
    entries.sort_by(|a, b| {
        let rank = |entry: &ManagedEntry| entry.operation == Operation::Update;
        (rank(a), &a.time).cmp(&(rank(b), &b.time))
    });
    let updaters = entries.iter().filter(|entry| entry.operation == Operation::Update).count();
    for _ in MAX_UPDATERS..updaters {
        let Some(first) = entries.iter().position(|entry| entry.operation == Operation::Update) else { break };
        let oldest = entries.remove(first);
        if let Some(next) = entries.get_mut(first) {
            next.fields = next.fields.union(&oldest.fields);
            next.manager = JOINED.to_owned();
        }
    }
    let json: Vec<Value> = entries.iter().map(ManagedEntry::to_json).collect();
    object::set_meta(object, "managedFields", (!json.is_empty()).then_some(Value::Array(json)));
}

#[cfg(test)]
mod tests;
