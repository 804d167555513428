//! Prints findings as text, JSON or YAML.

use anyhow::{Context, Result};
use clap::ValueEnum;
use model::analysis::Finding;
use serde_json::Value;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    Log,
    Json,
    Yaml,
}

/// The findings in a format, ending with a newline.
pub(super) fn text(findings: &[&Finding], format: OutputFormat) -> Result<String> {
    let documents = || findings.iter().map(|finding| finding.to_json()).collect::<Value>();
    Ok(match format {
        OutputFormat::Log => findings.iter().map(|finding| format!("{finding}\n")).collect(),
        OutputFormat::Json => {
            serde_json::to_string_pretty(&documents()).context("could not print the findings")? + "\n"
        }
        OutputFormat::Yaml => serde_saphyr::to_string(&documents()).context("could not print the findings")?,
    })
}

/// Message for files without findings.
pub(super) fn nothing_found(names: &[String]) -> String {
    match names {
        [one] => format!("✔ No validation issues found when analyzing {one}."),
        several => format!("✔ No validation issues found when analyzing:\n  - {}", several.join("\n  - ")),
    }
}
