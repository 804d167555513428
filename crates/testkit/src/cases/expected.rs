//! `expected.yaml` of a case: the resources of each proxy by type and name. A resource of only a few cases is written
//! out; a resource that many cases share is a hash that refers to `resources/TYPE.yaml`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::KINDS;
use super::error::CaseError;
use crate::canonical;

/// File name of the expected resources of a case.
pub(super) const FILE: &str = "expected.yaml";
/// Folder of the shared resources.
pub(super) const FOLDER: &str = "resources";

/// One resource that a proxy gets.
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
    pub(super) fn read(cases: &Path) -> Result<SharedResources, CaseError> {
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

    /// Rewrites the files with the resources that a case still refers to.
    pub(super) fn write(&self, cases: &Path, referred: &BTreeSet<String>) -> Result<(), CaseError> {
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
pub(super) fn read(text: &str, file: &Path, shared: &SharedResources) -> Result<Vec<ExpectedResource>, CaseError> {
    let answers: ExpectedTable = parse(text, file)?;
    let mut expected = Vec::new();
    for (proxy, kinds) in answers {
        for (kind, resources) in kinds {
            for (name, resource) in resources {
                let resource = match resource {
                    Value::String(hash) => shared.0.get(&hash).cloned().ok_or_else(|| {
                        let path = file.to_owned();
                        CaseError::UnknownHash { path, kind: kind.clone(), hash: hash.clone(), name: name.clone() }
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
pub(super) fn text(expected: &[ExpectedResource], shared: &SharedResources) -> Result<String, CaseError> {
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

pub(super) fn parse<T: serde::de::DeserializeOwned>(text: &str, file: &Path) -> Result<T, CaseError> {
    serde_saphyr::from_str(text).map_err(CaseError::parse(file))
}

/// Block style; only multi-line strings are block scalars.
pub(super) fn yaml(value: &impl Serialize) -> Result<String, CaseError> {
    let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
    Ok(serde_saphyr::to_string_with_options(value, options)?)
}

pub(super) fn write(file: &Path, text: &str) -> Result<(), CaseError> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).map_err(CaseError::io(folder))?;
    }
    fs::write(file, text).map_err(CaseError::io(file))
}
