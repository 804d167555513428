//! Reads `tests/cases`: the cases and their shared resources.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::error::CaseError;
use super::expected::{self, FOLDER, SharedResources};
use super::{Case, CaseInput, RECORDED_ENV, proxies};

/// File name of the statuses of a Kubernetes case: `KIND NAMESPACE/NAME` to status.
pub(super) const STATUSES: &str = "status.yaml";

pub struct CaseStore {
    pub folder: PathBuf,
    pub cases: Vec<Case>,
    pub(super) shared: SharedResources,
}

impl CaseStore {
    /// Reads the cases whose label `wanted` accepts. Panics if a file cannot be read.
    pub fn read(wanted: impl Fn(&str) -> bool) -> CaseStore {
        Self::read_from(&folder(), wanted).unwrap_or_else(|e| panic!("could not read the recorded cases: {e}"))
    }

    pub(super) fn read_from(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<CaseStore, CaseError> {
        let shared = SharedResources::read(folder)?;
        let mut cases = Vec::new();
        for topic in folders(folder)?.iter().filter(|t| !t.ends_with(FOLDER)) {
            for case in folders(topic)? {
                if wanted(&format!("{}/{}", name(topic), name(&case))) {
                    cases.push(read_case(&name(topic), &case, &shared)?);
                }
            }
        }
        Ok(CaseStore { folder: folder.to_owned(), cases, shared })
    }
}

/// `tests/cases` of this project.
pub(super) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases")
}

fn read_case(topic: &str, folder: &Path, shared: &SharedResources) -> Result<Case, CaseError> {
    let optional = |file: &str| fs::read_to_string(folder.join(file)).ok();
    let needed = |file: &str| text(&folder.join(file));
    let world = match optional("kube.yaml") {
        Some(objects) => CaseInput::Kubernetes(objects),
        None => CaseInput::Files(needed("config.yaml")?),
    };
    let mut env: BTreeMap<String, String> = RECORDED_ENV.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    if let Some(text) = optional("env.yaml") {
        let own: BTreeMap<String, Value> = expected::parse(&text, &folder.join("env.yaml"))?;
        env.extend(own.into_iter().map(|(k, v)| (k, v.as_str().map_or_else(|| v.to_string(), str::to_owned))));
    }
    Ok(Case {
        topic: topic.to_owned(),
        name: name(folder),
        folder: folder.to_owned(),
        world,
        mesh: optional("mesh.yaml"),
        networks: optional("networks.yaml"),
        env,
        proxies: proxies::read(&needed("proxies.yaml")?, &folder.join("proxies.yaml"))?,
        statuses: match optional(STATUSES) {
            Some(text) => expected::parse(&text, &folder.join(STATUSES))?,
            None => BTreeMap::new(),
        },
        expected: expected::read(&needed(expected::FILE)?, &folder.join(expected::FILE), shared)?,
    })
}

pub(super) fn text(path: &Path) -> Result<String, CaseError> {
    fs::read_to_string(path).map_err(CaseError::io(path))
}

pub(super) fn folders(path: &Path) -> Result<Vec<PathBuf>, CaseError> {
    let entries = fs::read_dir(path).map_err(CaseError::io(path))?;
    let mut found: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.is_dir()).collect();
    found.sort();
    Ok(found)
}

pub(super) fn name(path: &Path) -> String {
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}
