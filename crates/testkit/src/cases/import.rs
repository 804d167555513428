//! Takes cases from the recorder's folders, whose answers are lists of resources in JSON, into `tests/cases`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::expected::{self, ExpectedResource, SharedResources};
use super::store::{self, STATUSES, folders, name};
use super::{CaseProxy, proxies, statuses};
use crate::canonical;

/// Copied as they are where a case has them.
const INPUTS: &[&str] = &["config.yaml", "kube.yaml", "mesh.yaml", "networks.yaml", "env.yaml", "no_envoy"];

/// Copies the cases below `from`: those of the named topics, or all that are made of files. A topic that is copied
/// replaces the one of that name. Returns how many cases were copied.
pub fn import(from: &Path, topics: &[String]) -> Result<usize, String> {
    let into = store::folder();
    let shared = SharedResources::read(&into)?;
    let (mut copied, mut count) = (BTreeSet::new(), 0);
    for topic in folders(from)? {
        for case in folders(&topic)? {
            let topic = name(&topic);
            let wanted = if topics.is_empty() { case.join("config.yaml").exists() } else { topics.contains(&topic) };
            if !wanted {
                continue;
            }
            let target = into.join(&topic);
            if copied.insert(topic) && target.exists() {
                fs::remove_dir_all(&target).map_err(|e| format!("{}: {e}", target.display()))?;
            }
            copy(&case, &target.join(name(&case)), &shared).map_err(|e| format!("{}: {e}", case.display()))?;
            count += 1;
        }
    }
    Ok(count)
}

fn copy(case: &Path, target: &Path, shared: &SharedResources) -> Result<(), String> {
    for file in INPUTS {
        if let Ok(text) = fs::read_to_string(case.join(file)) {
            expected::write(&target.join(file), &text)?;
        }
    }
    let file = case.join("proxies.yaml");
    let proxies: Vec<CaseProxy> = expected::parse(&read(&file)?, &file)?;
    expected::write(&target.join("proxies.yaml"), &proxies::text(&proxies)?)?;
    let answers = answers(&case.join("expected"))?;
    expected::write(&target.join(expected::FILE), &expected::text(&answers, shared)?)?;
    let statuses = case.join("expected/status.json");
    if statuses.exists() {
        let recorded: Vec<Value> = json(&statuses)?;
        let named: Vec<Arc<Value>> =
            recorded.iter().map(|entry| statuses::named(entry, entry, entry["status"].clone())).collect();
        let by_name: BTreeMap<String, Value> = statuses::by_name(&named);
        expected::write(&target.join(STATUSES), &expected::yaml(&by_name)?)?;
    }
    Ok(())
}

/// `PROXY/TYPE.json` files as expectations.
fn answers(folder: &Path) -> Result<Vec<ExpectedResource>, String> {
    let mut found = Vec::new();
    for proxy in folders(folder)? {
        let mut files: Vec<_> = fs::read_dir(&proxy).map_err(|e| e.to_string())?.flatten().map(|e| e.path()).collect();
        files.sort();
        for file in files {
            let kind = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
            let resources: Vec<Value> = json(&file)?;
            found.extend(resources.into_iter().map(|resource| ExpectedResource {
                proxy: name(&proxy),
                kind: kind.clone(),
                resource: Arc::new(canonical::opened(resource)),
            }));
        }
    }
    Ok(found)
}

fn json<T: serde::de::DeserializeOwned>(file: &Path) -> Result<T, String> {
    serde_json::from_str(&read(file)?).map_err(|e| format!("{}: {e}", file.display()))
}

fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))
}
