//! `pilotctl analyze`: what is likely wrong with configuration in files, with the codes, formats and exit status of
//! `istioctl analyze`. The checks are `model::analysis`; nothing is asked of a running mesh.

mod files;
mod gather;
mod output;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use model::analysis::{self, Finding};
use model::problem::Severity;

/// Upstream's exit status for findings.
pub(crate) const FOUND_ISSUES: u8 = 79;

#[derive(Args)]
pub(crate) struct AnalyzeOptions {
    /// Files and folders with configuration; `-` reads standard input
    files: Vec<PathBuf>,

    /// How to print findings
    #[arg(short, long, value_enum, default_value_t = output::OutputFormat::Log)]
    output: output::OutputFormat,

    /// The least severity that makes the exit status 79
    #[arg(long, value_enum, ignore_case = true, default_value_t = SeverityLevel::Error)]
    failure_threshold: SeverityLevel,

    /// The least severity that is printed
    #[arg(long, value_enum, ignore_case = true, default_value_t = SeverityLevel::Info)]
    output_threshold: SeverityLevel,

    /// Leave out a code for some objects, as `IST0101=VirtualService cart.shop`; `*` stands for anything
    #[arg(short = 'S', long)]
    suppress: Vec<String>,

    /// Namespace of objects in files that name none
    #[arg(short, long, default_value = "default")]
    namespace: String,

    /// File with the mesh configuration
    #[arg(long = "meshConfigFile")]
    mesh_config: Option<PathBuf>,

    /// List the checks and do nothing else
    #[arg(short = 'L', long)]
    list_analyzers: bool,

    /// Do not complain about documents that cannot be read
    #[arg(long)]
    ignore_unknown: bool,

    /// Only files are analysed; accepted for scripts that say so
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

/// Prints findings; gives the exit status.
pub(crate) fn run(options: &AnalyzeOptions) -> Result<u8> {
    if options.list_analyzers {
        for (name, description, _) in analysis::CHECKS {
            println!("* {name}:\n  {description}");
        }
        return Ok(0);
    }
    if options.use_kube {
        bail!("could not look at a cluster: only files can be analysed; leave --use-kube out");
    }
    if options.files.is_empty() {
        bail!("could not find anything to analyse: name files or folders");
    }
    let suppressions = options.suppress.iter().map(|text| Suppression::parse(text)).collect::<Result<Vec<_>>>()?;
    let read = files::read(&options.files, &options.namespace, options.mesh_config.as_deref(), options.ignore_unknown)?;
    let mut found = analysis::analyze(&read.world);
    found.retain(|finding| !suppressions.iter().any(|suppression| suppression.covers(finding)));
    let shown: Vec<&Finding> =
        found.iter().filter(|finding| finding.severity >= options.output_threshold.severity()).collect();
    print!("{}", output::text(&shown, options.output)?);
    if shown.is_empty() {
        eprintln!("{}", output::nothing_found(&read.names));
    }
    // As in upstream, the exit status tells of findings only where a person reads them.
    let is_over = found.iter().any(|finding| finding.severity >= options.failure_threshold.severity());
    Ok(if is_over && options.output == output::OutputFormat::Log { FOUND_ISSUES } else { 0 })
}

/// Findings that are not to be told.
struct Suppression {
    code: String,
    kind: String,
    name: String,
}

impl Suppression {
    fn parse(text: &str) -> Result<Suppression> {
        let parts = text.split_once('=').and_then(|(code, object)| Some((code, object.split_once(' ')?)));
        let Some((code, (kind, name))) = parts else {
            bail!("could not read --suppress {text:?}: expected CODE=KIND NAME.NAMESPACE");
        };
        Ok(Suppression { code: code.to_owned(), kind: kind.to_owned(), name: name.to_owned() })
    }

    fn covers(&self, finding: &Finding) -> bool {
        let Some((kind, full_name)) = finding.origin.split_once(' ') else { return false };
        let Some((namespace, name)) = full_name.split_once('/') else { return false };
        self.code == finding.code && fits(&self.kind, kind) && fits(&self.name, &format!("{name}.{namespace}"))
    }
}

/// Whether a text fits a pattern in which `*` stands for anything.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(text) = text.strip_prefix(head) else { return false };
    let mut starts = (0..=text.len()).filter(|at| text.is_char_boundary(*at));
    starts.any(|at| fits(rest, &text[at..]))
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, text, expected) in [
            ("cart.shop", "cart.shop", true),
            ("*.shop", "cart.shop", true),
            ("c*t.s*", "cart.shop", true),
            ("*", "", true),
            ("*.shop", "cart.other", false),
            ("cart", "cart.shop", false),
        ] {
            assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
        }
    }
}
