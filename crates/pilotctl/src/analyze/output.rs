//! Prints findings as text, JSON or YAML.

use anyhow::{Context, Result};
use clap::ValueEnum;
use model::analysis::Finding;
use model::problem::Severity;
use serde::Deserialize;
use serde_json::Value;

/// A finding as it is shown, of files or of a server.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ShownFinding {
    pub(super) code: String,
    level: String,
    pub(super) origin: String,
    #[serde(default)]
    reference: Option<String>,
    message: String,
    #[serde(default)]
    documentation_url: Option<String>,
}

impl ShownFinding {
    pub(super) fn new(finding: &Finding) -> ShownFinding {
        let json = finding.to_json();
        let text = |key: &str| json.get(key).and_then(Value::as_str).map(str::to_owned);
        ShownFinding {
            code: finding.code.to_string(),
            level: finding.level().to_owned(),
            origin: finding.origin(),
            reference: text("reference"),
            message: finding.message.clone(),
            documentation_url: text("documentationUrl"),
        }
    }

    pub(super) fn severity(&self) -> Severity {
        match self.level.as_str() {
            "Error" => Severity::Error,
            "Warning" => Severity::Warning,
            _ => Severity::Info,
        }
    }

    /// Upstream's format. A finding about a file names it once.
    fn line(&self) -> String {
        let place = match &self.reference {
            Some(reference) if reference.starts_with(&self.origin) => reference.clone(),
            Some(reference) => format!("{} {reference}", self.origin),
            None => self.origin.clone(),
        };
        format!("{} [{}] ({place}) {}\n", self.level, self.code, self.message)
    }

    fn to_json(&self) -> Value {
        let mut fields = serde_json::Map::new();
        let mut put = |key: &str, value: Option<&str>| {
            fields.extend(value.map(|value| (key.to_owned(), Value::from(value))));
        };
        put("code", Some(&self.code));
        put("documentationUrl", self.documentation_url.as_deref());
        put("level", Some(&self.level));
        put("message", Some(&self.message));
        put("origin", Some(&self.origin));
        put("reference", self.reference.as_deref());
        Value::Object(fields)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    Log,
    Json,
    Yaml,
}

/// The findings in a format, ending with a newline.
pub(super) fn text(findings: &[&ShownFinding], format: OutputFormat) -> Result<String> {
    let documents = || findings.iter().map(|finding| finding.to_json()).collect::<Value>();
    Ok(match format {
        OutputFormat::Log => findings.iter().map(|finding| finding.line()).collect(),
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
