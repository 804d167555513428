//! Errors of reading and writing recorded cases.

use std::io;
use std::path::{Path, PathBuf};

/// Why recorded cases could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    #[error("could not access {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("could not parse {}: {reason}", path.display())]
    Parse { path: PathBuf, reason: String },
    #[error("could not write YAML: {0}")]
    Yaml(#[from] serde_saphyr::ser::Error),
    #[error("proxy id {0:?} is not type~ip~pod.namespace~domain")]
    ProxyId(String),
    #[error("{}: resources/{kind}.yaml has no resource {hash} ({name})", path.display())]
    UnknownHash { path: PathBuf, kind: String, hash: String, name: String },
}

impl CaseError {
    /// Adds the path to an I/O error.
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> CaseError {
        let path = path.to_owned();
        move |source| CaseError::Io { path, source }
    }

    /// Adds the path to a YAML or JSON error.
    pub(super) fn parse<E: std::fmt::Display>(path: &Path) -> impl FnOnce(E) -> CaseError {
        let path = path.to_owned();
        move |error| CaseError::Parse { path, reason: error.to_string() }
    }
}
