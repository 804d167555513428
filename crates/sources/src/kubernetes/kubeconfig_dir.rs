//! Remote clusters in a folder of files, as in early versions of Pilot: each file is a kubeconfig with the name of its
//! cluster, or a `Cluster` object that names a kubeconfig file. The folder is read at intervals; a cluster whose file
//! cannot be read is kept.

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use model::config::read_yaml;
use model::problem::{FileLocation, Problem, Subject};
use serde_json::Value;

use super::kubeconfig::KubeconfigEntry;
use crate::disk;

const PLATFORM: &str = "config.istio.io/platform";
const FILE: &str = "config.istio.io/accessConfigFile";

/// The folder and its last content.
#[derive(Clone, PartialEq)]
pub(super) struct KubeconfigDir {
    path: PathBuf,
    /// By file name.
    entries: BTreeMap<String, ClusterFile>,
    problems: Vec<Problem>,
}

#[derive(Clone, PartialEq, Eq)]
struct ClusterFile {
    cluster: String,
    kubeconfig: Vec<u8>,
}

impl KubeconfigDir {
    pub(super) fn new(path: &Path) -> KubeconfigDir {
        KubeconfigDir { path: path.to_owned(), entries: BTreeMap::new(), problems: Vec::new() }
    }

    /// Reads the folder. An entry is removed only if its file is gone.
    pub(super) fn read(&self) -> KubeconfigDir {
        let mut now = KubeconfigDir { problems: Vec::new(), entries: BTreeMap::new(), ..self.clone() };
        let names = match names(&self.path) {
            Ok(names) => names,
            Err(error) => {
                now.entries = self.entries.clone();
                now.problems.push(fault(&self.path, format!("could not read the folder of kubeconfigs: {error}")));
                return now;
            }
        };
        for name in names {
            let file = self.path.join(&name);
            let entry = match entry(&self.path, &file) {
                Ok(Some(entry)) => entry,
                Ok(None) => continue,
                Err(error) => {
                    now.problems.push(fault(&file, error.to_string()));
                    let Some(known) = self.entries.get(&name) else { continue };
                    known.clone()
                }
            };
            match now.entries.values().any(|known| known.cluster == entry.cluster) {
                true => now.problems.push(fault(&file, FileError::Duplicate(entry.cluster).to_string())),
                false => _ = now.entries.insert(name, entry),
            }
        }
        now
    }

    /// Kubeconfigs by cluster.
    pub(super) fn kubeconfigs(&self) -> BTreeMap<String, KubeconfigEntry> {
        let found = self.entries.iter().map(|(name, entry)| {
            let found_at = self.path.join(name).to_string_lossy().into_owned();
            let encoded = BASE64_STANDARD.encode(&entry.kubeconfig);
            (entry.cluster.clone(), KubeconfigEntry { found_at, encoded })
        });
        found.collect()
    }

    pub(super) fn problems(&self) -> Vec<Problem> {
        self.problems.clone()
    }
}

fn fault(path: &Path, message: String) -> Problem {
    let location = FileLocation { file: path.to_string_lossy().into(), line: 0 };
    Problem { location: Some(location), ..Problem::error(Subject::Source("clusters".into()), message) }
}

/// File names, without hidden ones: mounted volumes have their own.
fn names(folder: &Path) -> std::io::Result<Vec<String>> {
    let name = |path: PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let is_file = |path: &Path| disk::target(path).is_ok_and(|(metadata, _)| metadata.is_file());
    let listed = disk::list(folder)?.entries.into_iter().filter_map(|(path, _)| name(path));
    let mut names: Vec<String> = listed.filter(|name| !name.starts_with('.') && is_file(&folder.join(name))).collect();
    // `Cluster` objects before the kubeconfigs that they may name.
    names.sort_by_key(|name| !name.ends_with(".yaml"));
    Ok(names)
}

/// Why a file is not used. The messages contain nothing of its text, which may be credentials.
#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error("could not read the file: {0}")]
    Io(#[from] io::Error),
    #[error("the file is being written")]
    BeingWritten,
    #[error("could not parse the file: not UTF-8")]
    NotText,
    #[error("could not parse the file: not YAML{}", .0.map(|(line, column)| format!(" at line {line}, column {column}")).unwrap_or_default())]
    NotYaml(Option<(u64, u64)>),
    #[error("the platform {0:?} is not supported, only Kubernetes")]
    Platform(String),
    #[error("the annotation {FILE} names no kubeconfig")]
    NoKubeconfig,
    #[error("the annotation {FILE} names a file outside of the folder")]
    Outside,
    #[error("{file}: {error}")]
    Kubeconfig { file: String, error: Box<FileError> },
    #[error("another file already names the cluster {0}")]
    Duplicate(String),
}

/// The cluster of a file; `None` if the file is neither a kubeconfig nor a `Cluster`.
fn entry(folder: &Path, file: &Path) -> Result<Option<ClusterFile>, FileError> {
    let bytes = content(file)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| FileError::NotText)?;
    let document = read_yaml(text).map_err(|error| {
        // Only the position: the message may quote credentials.
        FileError::NotYaml(error.location().map(|at| (at.line(), at.column())))
    })?;
    let word = |pointer: &str| document.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    match word("/kind") {
        "Config" => {
            let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
            Ok(Some(ClusterFile { cluster: stem, kubeconfig: bytes }))
        }
        "Cluster" => {
            let annotation = |name: &str| {
                let all = document.pointer("/metadata/annotations");
                all.and_then(|all| all.get(name)).and_then(Value::as_str).unwrap_or_default()
            };
            let (platform, access) = (annotation(PLATFORM), annotation(FILE));
            if !platform.is_empty() && platform != "Kubernetes" {
                return Err(FileError::Platform(platform.to_owned()));
            }
            if access.is_empty() {
                return Err(FileError::NoKubeconfig);
            }
            if !is_inside(access) {
                return Err(FileError::Outside);
            }
            let kubeconfig = content(&folder.join(access))
                .map_err(|error| FileError::Kubeconfig { file: access.to_owned(), error: Box::new(error) })?;
            Ok(Some(ClusterFile { cluster: word("/metadata/name").to_owned(), kubeconfig }))
        }
        _ => Ok(None),
    }
}

/// Whether a relative path stays inside its folder. Symlinks are allowed: mounted volumes consist of them.
fn is_inside(path: &str) -> bool {
    Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

fn content(file: &Path) -> Result<Vec<u8>, FileError> {
    disk::bytes(file)?.map(|(_, bytes)| bytes).ok_or(FileError::BeingWritten)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::KubeconfigDir;

    const KUBECONFIG: &str = "apiVersion: v1\nkind: Config\n";

    fn clusters(folder: &KubeconfigDir) -> Vec<String> {
        folder.kubeconfigs().into_keys().collect()
    }

    fn write(folder: &Path, name: &str, text: &str) {
        fs::write(folder.join(name), text).unwrap();
    }

    #[test]
    fn kubeconfigs_and_clusters_that_name_them_are_found() {
        let place = tempfile::tempdir().unwrap();
        write(place.path(), "east.yaml", KUBECONFIG);
        fs::create_dir(place.path().join("keys")).unwrap();
        write(place.path(), "keys/north", KUBECONFIG);
        let annotations = "annotations: {config.istio.io/accessConfigFile: keys/north}";
        write(place.path(), "n.yaml", &format!("kind: Cluster\nmetadata:\n  name: north\n  {annotations}\n"));
        write(place.path(), "README", "nothing of interest");
        let folder = KubeconfigDir::new(place.path()).read();
        assert_eq!((clusters(&folder), folder.problems()), (vec!["east".to_owned(), "north".to_owned()], vec![]));
    }

    #[test]
    fn a_cluster_is_removed_with_its_file_and_kept_while_that_is_invalid() {
        let place = tempfile::tempdir().unwrap();
        write(place.path(), "east", KUBECONFIG);
        let folder = KubeconfigDir::new(place.path()).read();
        write(place.path(), "east", "kind: [");
        let broken = folder.read();
        assert_eq!((clusters(&broken), broken.problems().len()), (vec!["east".to_owned()], 1));
        fs::remove_file(place.path().join("east")).unwrap();
        assert_eq!(clusters(&broken.read()), [""; 0]);
        drop(place);
        let gone = folder.read();
        assert_eq!((clusters(&gone), gone.problems().len()), (vec!["east".to_owned()], 1), "the folder is gone");
    }

    #[test]
    fn hole_01_a_cluster_names_no_file_outside_of_the_folder() {
        let place = tempfile::tempdir().unwrap();
        let secret = tempfile::NamedTempFile::new().unwrap();
        fs::write(secret.path(), KUBECONFIG).unwrap();
        for access in [secret.path().to_str().unwrap(), "../kubeconfig", "keys/../../kubeconfig"] {
            let annotations = format!("annotations: {{config.istio.io/accessConfigFile: {access}}}");
            write(place.path(), "n.yaml", &format!("kind: Cluster\nmetadata:\n  name: north\n  {annotations}\n"));
            let folder = KubeconfigDir::new(place.path()).read();
            assert_eq!((clusters(&folder), folder.problems().len()), (vec![], 1), "{access}");
            assert!(folder.problems()[0].message.contains("outside of the folder"), "{:?}", folder.problems());
        }
    }

    #[test]
    fn hole_01_problems_of_files_contain_no_credential() {
        let place = tempfile::tempdir().unwrap();
        write(place.path(), "east", "kind: Config\ntoken: s3cret\nusers: [s3cret");
        let folder = KubeconfigDir::new(place.path()).read();
        assert_eq!(folder.problems().len(), 1);
        assert!(!format!("{:?}", folder.problems()).contains("s3cret"), "{:?}", folder.problems());
    }
}
