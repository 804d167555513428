//! Why the options of a registry cannot be used, whether they come from flags or from a file.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    #[error("no address is given")]
    NoAddress,
    #[error("no service is given")]
    NoService,
    #[error("{field} is missing: {reason}")]
    Missing { field: &'static str, reason: &'static str },
    #[error("{field} {value:?} is not {expected}")]
    Invalid { field: &'static str, value: String, expected: &'static str },
    #[error("host {template:?} does not contain {{{placeholder}}}")]
    HostWithoutPlaceholder { template: String, placeholder: String },
    #[error("service {0:?} has both srv and name: give one")]
    SrvAndName(String),
    #[error("give --{0}, or describe it in the file of --registryConfig")]
    MissingFlag(&'static str),
    #[error("describe it in the file of --registryConfig")]
    NotByFlags,
    #[error("could not read {}: {error}", file.display())]
    Unreadable { file: PathBuf, error: io::Error },
    #[error("could not parse {}: {reason}", file.display())]
    Unparsable { file: PathBuf, reason: String },
    #[error("could not use {}: it does not set {}", file.display(), fields.join(", "))]
    UnsetFields { file: PathBuf, fields: Vec<&'static str> },
}
