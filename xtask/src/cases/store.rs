//! Every distinct recorded resource once: a file per type, a line `["HASH",{…}]` per resource,
//! sorted by name and hash so that two recordings differ in few lines.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_64;

const FOLDER: &str = "resources";

/// Type to its resources: (name, hash) to compact JSON.
#[derive(Default)]
pub(crate) struct Store {
    types: BTreeMap<String, BTreeMap<(String, String), String>>,
}

impl Store {
    pub(crate) fn read(cases: &Path) -> Result<Store> {
        let mut store = Store::default();
        let folder = cases.join(FOLDER);
        if !folder.exists() {
            return Ok(store);
        }
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let kind = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
            for (at, line) in fs::read_to_string(&path)?.lines().enumerate() {
                let (_, resource): (String, Value) =
                    serde_json::from_str(line).with_context(|| format!("could not read {kind} line {}", at + 1))?;
                store.add(&kind, resource);
            }
        }
        Ok(store)
    }

    /// The hash under which the resource can be found.
    pub(crate) fn add(&mut self, kind: &str, resource: Value) -> String {
        let name = ["name", "cluster_name"].iter().find_map(|k| resource[k].as_str()).unwrap_or_default().to_owned();
        let text = sorted(resource).to_string();
        let hash = format!("{:016x}", xxh3_64(text.as_bytes()));
        self.types.entry(kind.to_owned()).or_default().insert((name, hash.clone()), text);
        hash
    }

    /// Drops what nothing refers to.
    pub(crate) fn keep(&mut self, references: &BTreeSet<String>) {
        for resources in self.types.values_mut() {
            resources.retain(|(_, hash), _| references.contains(hash));
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.types.values().map(BTreeMap::len).sum()
    }

    pub(crate) fn write(&self, cases: &Path) -> Result<()> {
        fs::create_dir_all(cases.join(FOLDER))?;
        for (kind, resources) in &self.types {
            let lines: String = resources.iter().map(|((_, hash), text)| format!("[\"{hash}\",{text}]\n")).collect();
            fs::write(cases.join(FOLDER).join(format!("{kind}.jsonl")), lines)?;
        }
        Ok(())
    }
}

/// The same value with the keys of every object in order.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let ordered: BTreeMap<String, Value> = map.into_iter().map(|(k, v)| (k, sorted(v))).collect();
            Value::Object(Map::from_iter(ordered))
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn equal_resources_are_stored_once() {
        let mut store = Store::default();
        let one = store.add("clusters", json!({"name": "a", "x": {"c": 1, "b": 2}}));
        let same = store.add("clusters", json!({"x": {"b": 2, "c": 1}, "name": "a"}));
        let other = store.add("clusters", json!({"name": "a", "x": {"c": 1, "b": 3}}));
        assert!(one == same && one != other);
        store.keep(&BTreeSet::from([one]));
        assert_eq!(store.len(), 1);
    }
}
