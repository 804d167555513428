//! The `metadata` of a document.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::text::clip;
use super::{Meta, timestamp};
use crate::config::problem::FileLocation;
use crate::names::Str;
use crate::suggest;

/// Parses metadata; the second value are the mistakes in it. Without a namespace the object is in the empty one, as in
/// upstream's file store.
pub(super) fn read(json: Option<&Value>, location: FileLocation) -> (Meta, Vec<MetaMistake>) {
    let mut mistakes = Vec::new();
    let empty = Map::new();
    let entries = match json {
        Some(Value::Object(entries)) => entries,
        None | Some(Value::Null) => &empty,
        Some(_) => {
            mistakes.push("metadata is not an object".to_owned());
            &empty
        }
    };
    let misspelt = misspelt(entries);
    let created = created(entries, &mut mistakes);
    let mut text = |key: &str| scalar(entries.get(key), &format!("metadata.{key}"), &mut mistakes);
    let (name, namespace, resource_version) = (text("name"), text("namespace"), text("resourceVersion"));
    let labels = pairs(entries, "labels", &mut mistakes);
    let annotations = pairs(entries, "annotations", &mut mistakes);
    let meta = Meta {
        name: name.into(),
        namespace: namespace.into(),
        labels: labels.into_iter().collect(),
        annotations,
        created,
        resource_version: resource_version.into(),
        keeps_status: false,
        is_of_other_revision: false,
        auto_addresses: Vec::new(),
        health: None,
        generation: entries.get("generation").and_then(Value::as_i64).unwrap_or_default(),
        location: Some(location),
    };
    let of_values = mistakes.into_iter().map(|message| MetaMistake { key: None, hides_name: false, message });
    let mistakes = of_values.chain(misspelt).collect();
    (meta, mistakes)
}

/// A mistake in metadata.
pub(super) struct MetaMistake {
    /// The key that is misspelt.
    pub(super) key: Option<String>,
    /// Name or namespace are misspelt: it is not known which object this is.
    pub(super) hides_name: bool,
    pub(super) message: String,
}

/// Keys of Kubernetes' metadata.
const KNOWN: &[&str] = &[
    "name",
    "namespace",
    "labels",
    "annotations",
    "generateName",
    "creationTimestamp",
    "resourceVersion",
    "generation",
    "uid",
    "selfLink",
    "managedFields",
    "ownerReferences",
    "finalizers",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "clusterName",
];

/// Unknown keys that resemble a known one. Others may come from newer versions of Kubernetes.
fn misspelt(entries: &Map<String, Value>) -> Vec<MetaMistake> {
    let unknown = entries.keys().filter(|key| !KNOWN.contains(&key.as_str()));
    let mistake = |key: &String| {
        let meant = suggest::similar(key, KNOWN.iter().copied().filter(|known| !entries.contains_key(*known)))?;
        let message = format!("unknown field {:?}; did you mean {meant:?}?", format!("metadata.{}", clip(key)));
        Some(MetaMistake { key: Some(key.clone()), hides_name: ["name", "namespace"].contains(&meant), message })
    };
    unknown.filter_map(mistake).take(MOST).collect()
}

/// Maximum number of misspelt keys that are reported.
const MOST: usize = 20;

/// The automatic addresses in the status of a ServiceEntry.
pub(super) fn auto_addresses(status: Option<&Value>) -> Vec<(Str, Str)> {
    let listed = status.and_then(|status| status.get("addresses")).and_then(Value::as_array);
    let word = |entry: &Value, key: &str| entry.get(key).and_then(Value::as_str).map(Str::from);
    listed.into_iter().flatten().filter_map(|entry| Some((word(entry, "host")?, word(entry, "value")?))).collect()
}

/// Condition `Healthy` in the status of a WorkloadEntry; `None` if it is missing or unknown.
pub(super) fn health(status: Option<&Value>) -> Option<bool> {
    let conditions = status?.get("conditions")?.as_array()?;
    let condition = conditions.iter().find(|condition| condition.get("type").is_some_and(|kind| kind == "Healthy"))?;
    match condition.get("status")?.as_str()? {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    }
}

fn created(entries: &Map<String, Value>, mistakes: &mut Vec<String>) -> i64 {
    let text = match entries.get("creationTimestamp") {
        None | Some(Value::Null) => return 0,
        Some(value) => value.as_str().unwrap_or_default(),
    };
    let seconds = timestamp::parse(text).map(|(seconds, _)| seconds);
    if seconds.is_none() {
        mistakes.push("metadata.creationTimestamp is not an RFC 3339 timestamp".to_owned());
    }
    seconds.unwrap_or_default()
}

fn pairs(entries: &Map<String, Value>, key: &str, mistakes: &mut Vec<String>) -> BTreeMap<Str, Str> {
    match entries.get(key) {
        None | Some(Value::Null) => BTreeMap::new(),
        Some(Value::Object(map)) => map
            .iter()
            .map(|(name, value)| {
                let value = scalar(Some(value), &format!("metadata.{key}[{name:?}]"), mistakes);
                (name.as_str().into(), value.into())
            })
            .collect(),
        Some(_) => {
            mistakes.push(format!("metadata.{key} is not an object"));
            BTreeMap::new()
        }
    }
}

/// A string. Numbers and booleans become strings as in upstream, so `version: 1.10` is "1.1".
fn scalar(value: Option<&Value>, path: &str, mistakes: &mut Vec<String>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(value)) => value.to_string(),
        Some(Value::Number(number)) => number.to_string(),
        Some(_) => {
            mistakes.push(format!("{path} is not a string"));
            String::new()
        }
    }
}
