//! `pilotctl analyze`: reports likely mistakes in configuration files or of a running server, with the codes, formats and
//! exit status of `istioctl analyze`. The checks are in `model::analysis`.

pub(crate) mod cluster_objects;
mod files;
pub(crate) mod gather;
mod output;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use model::analysis;
use model::problem::Severity;

use model::snapshot::Snapshot;

use crate::control_plane::ControlPlaneOptions;
use output::ShownFinding;

/// Upstream's exit status for findings.
pub(crate) const FOUND_ISSUES: u8 = 79;

/// The mesh that files and folders describe.
pub(crate) fn world_of_files(paths: &[PathBuf], namespace: &str, mesh_config: Option<&Path>) -> Result<Snapshot> {
    files::read(paths, namespace, mesh_config, true).map(files::AnalyzedFiles::into_world)
}

#[derive(Args)]
pub(crate) struct AnalyzeOptions {
    /// Files and folders with configuration; `-` reads standard input
    files: Vec<PathBuf>,

    /// How to print findings
    #[arg(short, long, value_enum, default_value_t = output::OutputFormat::Log)]
    output: output::OutputFormat,

    /// Lowest severity that sets exit status 79
    #[arg(long, value_enum, ignore_case = true, default_value_t = SeverityLevel::Error)]
    failure_threshold: SeverityLevel,

    /// Lowest severity that is printed
    #[arg(long, value_enum, ignore_case = true, default_value_t = SeverityLevel::Info)]
    output_threshold: SeverityLevel,

    /// Suppress a code for some objects, as in `IST0101=VirtualService cart.shop`; `*` matches anything
    #[arg(short = 'S', long)]
    suppress: Vec<String>,

    /// Namespace of objects that do not name one
    #[arg(short, long, default_value = "default")]
    namespace: String,

    /// File with the mesh configuration
    #[arg(long = "meshConfigFile")]
    mesh_config: Option<PathBuf>,

    /// Analyze what a running pilot-discovery serves instead of files, at the address of its --httpAddr or
    /// --monitoringAddr, as in 127.0.0.1:8080
    #[arg(long, conflicts_with_all = ["files", "mesh_config", "ignore_unknown"])]
    server: Option<String>,

    /// List the checks and exit
    #[arg(short = 'L', long)]
    list_analyzers: bool,

    /// Do not report documents that cannot be parsed
    #[arg(long)]
    ignore_unknown: bool,

    /// Accepted as `false` for scripts written for istioctl: only files are analyzed
    #[arg(short = 'k', long, hide = true, default_value_t = false, action = clap::ArgAction::Set)]
    use_kube: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SeverityLevel {
    Info,
    Warning,
    Error,
}

impl SeverityLevel {
    fn severity(self) -> Severity {
        match self {
            SeverityLevel::Info => Severity::Info,
            SeverityLevel::Warning => Severity::Warning,
            SeverityLevel::Error => Severity::Error,
        }
    }
}

/// Prints findings; returns the exit status.
pub(crate) async fn run(options: &AnalyzeOptions) -> Result<u8> {
    if options.list_analyzers {
        for (name, description, _, _) in analysis::CHECKS {
            println!("* {name}:\n  {description}");
        }
        return Ok(0);
    }
    if options.use_kube {
        bail!("could not analyze a cluster: name files, or a running pilot-discovery with --server");
    }
    let suppressions = options.suppress.iter().map(|text| Suppression::parse(text)).collect::<Result<Vec<_>>>()?;
    let (mut found, analyzed) = findings(options).await?;
    found.retain(|finding| !suppressions.iter().any(|suppression| suppression.covers(finding)));
    let shown: Vec<&ShownFinding> =
        found.iter().filter(|finding| finding.severity() >= options.output_threshold.severity()).collect();
    print!("{}", output::text(&shown, options.output)?);
    if shown.is_empty() {
        eprintln!("{}", output::nothing_found(&analyzed));
    }
    // As in upstream, only the log format sets the exit status.
    let is_over = found.iter().any(|finding| finding.severity() >= options.failure_threshold.severity());
    Ok(if is_over && options.output == output::OutputFormat::Log { FOUND_ISSUES } else { 0 })
}

/// The findings, and the names of what was analyzed.
async fn findings(options: &AnalyzeOptions) -> Result<(Vec<ShownFinding>, Vec<String>)> {
    if let Some(server) = &options.server {
        let page = ControlPlaneOptions::at(server).page("/debug/analyze").await?;
        let found = serde_json::from_value(page).with_context(|| format!("could not read the answer of {server}"))?;
        return Ok((found, vec![server.clone()]));
    }
    if options.files.is_empty() {
        bail!("could not find anything to analyze: name files or folders, or a running server with --server");
    }
    let read = files::read(&options.files, &options.namespace, options.mesh_config.as_deref(), options.ignore_unknown)?;
    read.left_out().iter().for_each(|line| eprintln!("{line}"));
    let found = read.findings().iter().map(ShownFinding::new).collect();
    Ok((found, read.names().map(str::to_owned).collect()))
}

/// A pattern of findings that are not reported.
struct Suppression {
    code: String,
    kind: String,
    name: String,
}

impl Suppression {
    fn parse(text: &str) -> Result<Suppression> {
        let parts = text.split_once('=').and_then(|(code, object)| Some((code, object.split_once(' ')?)));
        let Some((code, (kind, name))) = parts else {
            bail!("could not parse --suppress {text:?}: expected CODE=KIND NAME.NAMESPACE");
        };
        Ok(Suppression { code: code.to_owned(), kind: kind.to_owned(), name: name.to_owned() })
    }

    fn covers(&self, finding: &ShownFinding) -> bool {
        let Some((kind, full_name)) = finding.origin.split_once(' ') else { return false };
        let Some((namespace, name)) = full_name.split_once('/') else { return false };
        self.code == finding.code && matches(&self.kind, kind) && matches(&self.name, &format!("{name}.{namespace}"))
    }
}

/// Whether a text matches a pattern in which `*` matches anything.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(text) = text.strip_prefix(head) else { return false };
    let mut starts = (0..=text.len()).filter(|at| text.is_char_boundary(*at));
    starts.any(|at| matches(rest, &text[at..]))
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_match_anything() {
        for (pattern, text, expected) in [
            ("cart.shop", "cart.shop", true),
            ("*.shop", "cart.shop", true),
            ("c*t.s*", "cart.shop", true),
            ("*", "", true),
            ("*.shop", "cart.other", false),
            ("cart", "cart.shop", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
