//! Recorded cases: copies them into `tests/cases` in the compact form that testkit reads.
//! `tests/cases/README.md` describes the form.

mod store;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use store::Store;

use crate::workspace;

/// Copied as they are where a case has them.
const INPUTS: &[&str] =
    &["config.yaml", "kube.yaml", "mesh.yaml", "networks.yaml", "env.yaml", "proxies.yaml", "no_envoy"];
/// What a server writes back to its cluster; a Kubernetes case has one.
const STATUSES: &str = "status.json";
const REFERENCES: &str = "expected.txt";

/// Copies cases below `from`: those of the named topics, or all that are made of files.
/// A topic that is copied replaces the one of that name; the others stay.
pub(crate) fn import(root: &Path, from: &Path, topics: &[&str]) -> Result<()> {
    let into = root.join("tests/cases");
    let mut store = Store::read(&into)?;
    let mut copied = BTreeSet::new();
    let mut count = 0;
    for case in folders(from)?.iter().map(|t| folders(t)).collect::<Result<Vec<_>>>()?.concat() {
        let topic = name(case.parent().unwrap_or(&case));
        let wanted = if topics.is_empty() { case.join("config.yaml").exists() } else { topics.contains(&&*topic) };
        if !wanted {
            continue;
        }
        let target = into.join(&topic);
        if copied.insert(topic) && target.exists() {
            fs::remove_dir_all(&target)?;
        }
        copy(&case, &target.join(name(&case)), &mut store)
            .with_context(|| format!("could not copy {}", case.display()))?;
        count += 1;
    }
    if count == 0 {
        bail!("no case found below {}", from.display());
    }
    let references = references(&into)?;
    store.keep(&references);
    store.write(&into)?;
    println!("cases: {count} copied; {}", size(&into, &store)?);
    Ok(())
}

fn copy(case: &Path, target: &Path, store: &mut Store) -> Result<()> {
    fs::create_dir_all(target)?;
    for file in INPUTS.iter().filter(|f| case.join(f).exists()) {
        fs::copy(case.join(file), target.join(file))?;
    }
    let expected = case.join("expected");
    if expected.join(STATUSES).exists() {
        fs::copy(expected.join(STATUSES), target.join(STATUSES))?;
    }
    let mut text = String::new();
    for proxy in folders(&expected)? {
        for file in workspace::files(&proxy)? {
            let kind = file.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
            let resources: Vec<Value> = serde_json::from_slice(&fs::read(&file)?)?;
            for resource in resources {
                let label = resource["name"].as_str().or(resource["cluster_name"].as_str()).unwrap_or("-").to_owned();
                let hash = store.add(&kind, resource);
                writeln!(text, "{} {kind} {hash} {label}", name(&proxy))?;
            }
        }
    }
    Ok(fs::write(target.join(REFERENCES), text)?)
}

/// Every hash that some case refers to.
fn references(cases: &Path) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for file in workspace::files(cases)?.iter().filter(|f| f.ends_with(REFERENCES)) {
        let text = fs::read_to_string(file)?;
        found.extend(text.lines().filter_map(|l| l.split(' ').nth(2)).map(str::to_owned));
    }
    Ok(found)
}

fn size(cases: &Path, store: &Store) -> Result<String> {
    let mut total = 0;
    for file in workspace::files(cases)? {
        total += fs::metadata(file)?.len();
    }
    Ok(format!("{} distinct resources, {:.2} MB in all", store.len(), total as f64 / 1e6))
}

fn folders(path: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).with_context(|| format!("could not read {}", path.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn name(path: &Path) -> String {
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}
