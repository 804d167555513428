//! Flags that every program has, and parsers of flag values.

use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgAction, Args};
use serde::{Deserialize, Serialize};

use crate::version;

/// Prints clap's message and returns the exit code: 2 for a bad command line, 0 for `--help`.
pub fn print_usage_error(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS }
}

/// Flags of the log.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
pub struct Logging {
    /// Level, or levels by scope: `default:info,ads:debug`; else $RUST_LOG
    #[arg(long = "log_output_level")]
    pub output_level: Option<String>,

    /// Write each log line as JSON
    #[arg(long = "log_as_json", num_args = 0..=1, require_equals = true, default_value = "false",
        default_missing_value = "true", action = ArgAction::Set)]
    pub as_json: bool,
}

/// Flags of `version`.
#[derive(Clone, Debug, Args)]
pub struct Version {
    /// `json` for JSON
    #[arg(long, short, default_value = "")]
    pub output: String,
    /// Print the version and nothing else
    #[arg(long, short)]
    pub short: bool,
}

impl Version {
    /// The text to print.
    pub fn text(&self) -> String {
        match (&*self.output, self.short) {
            ("json", _) => version::info().to_string(),
            (_, true) => version::VERSION.to_owned(),
            _ => version::line(),
        }
    }
}

/// Parses a duration in Go's notation.
pub fn duration(text: &str) -> Result<Duration, DurationError> {
    let parsed = model::duration::parse(text).ok_or(DurationError::Syntax)?;
    Duration::try_from(parsed).map_err(|_| DurationError::Negative)
}

/// Why a flag value is not a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    #[error("expected a duration, such as 30s or 1h30m")]
    Syntax,
    #[error("a duration must not be negative")]
    Negative,
}
