//! What a check before an installation finds.

use serde::Serialize;

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum PreLevel {
    Ok,
    Warning,
    /// The installation would fail.
    Error,
}

/// The result of one check.
#[derive(Debug, Serialize)]
pub(super) struct PreFinding {
    pub(super) level: PreLevel,
    pub(super) check: &'static str,
    pub(super) text: String,
}

impl PreFinding {
    pub(super) fn new(level: PreLevel, check: &'static str, text: impl Into<String>) -> PreFinding {
        PreFinding { level, check, text: text.into() }
    }
}
