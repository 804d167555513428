//! Problems of parsing and validation, under the codes of `istioctl analyze`.

use super::findings::Findings;
use super::{Finding, SOURCE};
use crate::config::problem::{ProblemCode, Severity};
use crate::snapshot::Snapshot;

/// Errors, warnings and deprecated kinds.
pub(super) fn problems(snapshot: &Snapshot, found: &mut Findings) {
    let of_sources = snapshot.problems.iter().filter(|(source, _)| &*source.0 != SOURCE);
    for problem in of_sources.flat_map(|(_, problems)| problems.iter()) {
        let (code, severity, message) = match problem.severity {
            Severity::Error => {
                (ProblemCode::SchemaError, Severity::Error, format!("Schema validation error: {}", problem.message))
            }
            Severity::Warning if problem.code == ProblemCode::UnreachableRule => {
                (problem.code, Severity::Warning, sentence(&problem.message))
            }
            Severity::Warning if problem.code == ProblemCode::IneffectiveMatch => {
                (problem.code, Severity::Info, sentence(&problem.message))
            }
            Severity::Warning => (
                ProblemCode::SchemaWarning,
                Severity::Warning,
                format!("Schema validation warning: {}", problem.message),
            ),
            Severity::Info if problem.code == ProblemCode::Deprecated => {
                (ProblemCode::Deprecated, Severity::Warning, format!("Deprecated: {}", problem.message))
            }
            Severity::Info => continue,
        };
        let (about, location) = (problem.about.clone(), problem.location.clone());
        found.push(Finding { code, severity, location, field: String::new(), about, message });
    }
}

/// The message as upstream writes it, where it is not part of a schema warning.
fn sentence(message: &str) -> String {
    format!("{}.", message.replacen("virtualService", "VirtualService", 1))
}
