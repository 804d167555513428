//! `expected.yaml` of a case: for each proxy and type, the resources by name. A resource that only few cases have is
//! written out; one that many cases share is a hash that refers to `resources/TYPE.yaml`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::KINDS;
use crate::canonical;

/// File name of the answers of a case.
pub(super) const FILE: &str = "expected.yaml";
/// Folder of the shared resources.
pub(super) const FOLDER: &str = "resources";

/// One resource that a proxy is answered.
#[derive(Clone, Debug)]
pub(super) struct ExpectedResource {
    pub(super) proxy: String,
    pub(super) kind: String,
    pub(super) resource: Arc<Value>,
}

/// Resources that many cases share, by hash.
#[derive(Debug, Default)]
pub(super) struct SharedResources(BTreeMap<String, Arc<Value>>);

impl SharedResources {
    /// Reads `resources/TYPE.yaml` of all types.
    pub(super) fn read(cases: &Path) -> Result<SharedResources, String> {
        let mut all = BTreeMap::new();
        for (kind, _) in KINDS {
            let file = cases.join(format!("{FOLDER}/{kind}.yaml"));
            let Ok(text) = fs::read_to_string(&file) else { continue };
            let of_kind: BTreeMap<String, Value> = parse(&text, &file)?;
            all.extend(of_kind.into_iter().map(|(hash, resource)| (hash, Arc::new(resource))));
        }
        Ok(SharedResources(all))
    }

    fn contains(&self, hash: &str) -> bool {
        self.0.contains_key(hash)
    }

    /// Rewrites the files with the resources that some case still refers to.
    pub(super) fn write(&self, cases: &Path, referred: &BTreeSet<String>) -> Result<(), String> {
        for (kind, url) in KINDS {
            let of_kind = |(hash, resource): &(&String, &Arc<Value>)| {
                resource["@type"] == url.as_str() && referred.contains(*hash)
            };
            let kept: BTreeMap<&String, &Value> = self.0.iter().filter(of_kind).map(|(h, r)| (h, &**r)).collect();
            let file = cases.join(format!("{FOLDER}/{kind}.yaml"));
            if kept.is_empty() {
                let _ = fs::remove_file(&file);
            } else {
                write(&file, &yaml(&kept)?)?;
            }
        }
        Ok(())
    }
}

/// Proxy to type to name to resource, or to the hash of a shared one.
type ExpectedTable = BTreeMap<String, BTreeMap<String, BTreeMap<String, Value>>>;

/// Reads `expected.yaml`.
pub(super) fn read(text: &str, file: &Path, shared: &SharedResources) -> Result<Vec<ExpectedResource>, String> {
    let answers: ExpectedTable = parse(text, file)?;
    let mut expected = Vec::new();
    for (proxy, kinds) in answers {
        for (kind, resources) in kinds {
            for (name, resource) in resources {
                let resource = match resource {
                    Value::String(hash) => shared.0.get(&hash).cloned().ok_or_else(|| {
                        format!("{}: {FOLDER}/{kind}.yaml has no resource {hash} ({name})", file.display())
                    })?,
                    written => Arc::new(written),
                };
                expected.push(ExpectedResource { proxy: proxy.clone(), kind: kind.clone(), resource });
            }
        }
    }
    Ok(expected)
}

/// The text of `expected.yaml`.
pub(super) fn text(expected: &[ExpectedResource], shared: &SharedResources) -> Result<String, String> {
    let mut answers = ExpectedTable::new();
    for ExpectedResource { proxy, kind, resource } in expected {
        let resources = answers.entry(proxy.clone()).or_default().entry(kind.clone()).or_default();
        let hash = hash(resource);
        let written = if shared.contains(&hash) { Value::String(hash) } else { Value::clone(resource) };
        resources.insert(key(resource, resources), written);
    }
    yaml(&answers)
}

/// Hashes of shared resources that an `expected.yaml` refers to.
pub(super) fn references(expected: &[ExpectedResource], shared: &SharedResources) -> BTreeSet<String> {
    expected.iter().map(|expected| hash(&expected.resource)).filter(|hash| shared.contains(hash)).collect()
}

/// The hash under which a resource is shared: that of its JSON with sorted keys.
pub(super) fn hash(resource: &Value) -> String {
    let mut sorted = resource.clone();
    sorted.sort_all_objects();
    format!("{:016x}", xxh3_64(sorted.to_string().as_bytes()))
}

/// The name of a resource; a repeated name gets a number.
fn key(resource: &Value, taken: &BTreeMap<String, Value>) -> String {
    let name = match canonical::name(resource) {
        "" => "-",
        name => name,
    };
    let mut names = (1..).map(|n| if n == 1 { name.to_owned() } else { format!("{name}#{n}") });
    names.find(|name| !taken.contains_key(name)).unwrap_or_default()
}

pub(super) fn parse<T: serde::de::DeserializeOwned>(text: &str, file: &Path) -> Result<T, String> {
    serde_saphyr::from_str(text).map_err(|e| format!("{}: {e}", file.display()))
}

/// Block style; only texts of several lines are block scalars.
pub(super) fn yaml(value: &impl Serialize) -> Result<String, String> {
    let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
    serde_saphyr::to_string_with_options(value, options).map_err(|e| e.to_string())
}

pub(super) fn write(file: &Path, text: &str) -> Result<(), String> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    fs::write(file, text).map_err(|e| format!("{}: {e}", file.display()))
}
