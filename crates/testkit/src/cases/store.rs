//! Reads `tests/cases`: every distinct resource is parsed once and shared by the cases.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::{Case, Expected, KINDS, RECORDED_ENV, World};
use crate::canonical;

pub struct Store {
    pub folder: PathBuf,
    pub cases: Vec<Case>,
}

type Resources = BTreeMap<String, Arc<Value>>;

impl Store {
    /// The cases of this project whose label `wanted` accepts.
    pub fn read(wanted: impl Fn(&str) -> bool) -> Store {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases");
        Self::read_from(&folder, wanted).unwrap_or_else(|e| panic!("could not read the recorded cases: {e}"))
    }

    fn read_from(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<Store, String> {
        let resources = resources(folder)?;
        let mut cases = Vec::new();
        for topic in folders(folder)?.iter().filter(|t| !t.ends_with("resources")) {
            for case in folders(topic)? {
                if wanted(&format!("{}/{}", name(topic), name(&case))) {
                    let read = read_case(&name(topic), &case, &resources);
                    cases.push(read.map_err(|e| format!("{}: {e}", case.display()))?);
                }
            }
        }
        Ok(Store { folder: folder.to_owned(), cases })
    }
}

fn read_case(topic: &str, folder: &Path, resources: &Resources) -> Result<Case, String> {
    let optional = |file: &str| fs::read_to_string(folder.join(file)).ok();
    let needed = |file: &str| text(&folder.join(file));
    let world = match optional("kube.yaml") {
        Some(objects) => World::Kubernetes(objects),
        None => World::Files(needed("config.yaml")?),
    };
    let mut env: BTreeMap<String, String> = RECORDED_ENV.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    if let Some(text) = optional("env.yaml") {
        let own: BTreeMap<String, Value> = serde_saphyr::from_str(&text).map_err(|e| format!("env.yaml: {e}"))?;
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
        proxies: serde_saphyr::from_str(&needed("proxies.yaml")?).map_err(|e| format!("proxies.yaml: {e}"))?,
        statuses: match optional("status.json") {
            Some(text) => serde_json::from_str(&text).map_err(|e| format!("status.json: {e}"))?,
            None => Vec::new(),
        },
        expected: expected(&needed("expected.txt")?, resources)?,
    })
}

/// Lines of `PROXY TYPE HASH NAME`; the name is for the reader only.
fn expected(text: &str, resources: &Resources) -> Result<Vec<Expected>, String> {
    let line = |line: &str| {
        let mut words = line.splitn(4, ' ');
        let (Some(proxy), Some(kind), Some(hash)) = (words.next(), words.next(), words.next()) else {
            return Err(format!("expected.txt: could not read {line:?}"));
        };
        let resource = resources.get(hash).ok_or_else(|| format!("expected.txt: no resource {hash}"))?;
        Ok(Expected { proxy: proxy.to_owned(), kind: kind.to_owned(), resource: Arc::clone(resource) })
    };
    text.lines().map(line).collect()
}

fn resources(folder: &Path) -> Result<Resources, String> {
    let mut found = Resources::new();
    for (kind, _) in KINDS {
        let file = folder.join(format!("resources/{kind}.jsonl"));
        for line in text(&file)?.lines() {
            let (hash, resource): (String, Value) =
                serde_json::from_str(line).map_err(|e| format!("{}: {e}", file.display()))?;
            let closed = line.contains("\"@unknown\"") || line.contains("\"@base64\"");
            found.insert(hash, Arc::new(if closed { canonical::opened(resource) } else { resource }));
        }
    }
    Ok(found)
}

fn text(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn folders(path: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut found: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).filter(|p| p.is_dir()).collect();
    found.sort();
    Ok(found)
}

fn name(path: &Path) -> String {
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}
