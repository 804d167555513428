//! Arguments that every program has, and how values of flags are read.

use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgAction, Args};
use serde::{Deserialize, Serialize};

use crate::version;

/// Prints why a command line was not taken and gives the code to end with. Help is no failure.
pub fn print_usage_error(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS }
}

/// What is logged and how.
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
    /// What is printed.
    pub fn text(&self) -> String {
        match (&*self.output, self.short) {
            ("json", _) => version::info().to_string(),
            (_, true) => version::VERSION.to_owned(),
            _ => version::line(),
        }
    }
}

/// A duration as Go writes it.
pub fn duration(text: &str) -> Result<Duration, String> {
    let parsed = model::duration::parse(text).ok_or("not a duration such as 30s or 1h30m")?;
    Duration::try_from(parsed).map_err(|_| "a duration must not be negative".to_owned())
}
