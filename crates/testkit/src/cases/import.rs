//! Copies cases from the recorder's folders, which have resources as JSON lists, into `tests/cases`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::error::CaseError;
use super::expected::{self, ExpectedResource, SharedResources};
use super::store::{self, STATUSES, folders, name, text};
use super::{CaseProxy, proxies, statuses};
use crate::canonical;

/// Files that are copied unchanged.
const INPUTS: &[&str] = &["config.yaml", "kube.yaml", "mesh.yaml", "networks.yaml", "env.yaml", "no_envoy"];

/// Copies the cases below `from`: those of the named topics, or all cases with a `config.yaml`. A copied topic replaces
/// the one of the same name. Returns the number of copied cases.
pub fn import(from: &Path, topics: &[String]) -> Result<usize, CaseError> {
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
                fs::remove_dir_all(&target).map_err(CaseError::io(&target))?;
            }
            copy(&case, &target.join(name(&case)), &shared)?;
            count += 1;
        }
    }
    Ok(count)
}

fn copy(case: &Path, target: &Path, shared: &SharedResources) -> Result<(), CaseError> {
    for file in INPUTS {
        if let Ok(text) = fs::read_to_string(case.join(file)) {
            expected::write(&target.join(file), &text)?;
        }
    }
    let file = case.join("proxies.yaml");
    let proxies: Vec<CaseProxy> = expected::parse(&text(&file)?, &file)?;
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
fn answers(folder: &Path) -> Result<Vec<ExpectedResource>, CaseError> {
    let mut found = Vec::new();
    for proxy in folders(folder)? {
        let mut files: Vec<_> =
            fs::read_dir(&proxy).map_err(CaseError::io(&proxy))?.flatten().map(|e| e.path()).collect();
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

fn json<T: serde::de::DeserializeOwned>(file: &Path) -> Result<T, CaseError> {
    serde_json::from_str(&text(file)?).map_err(CaseError::parse(file))
}
