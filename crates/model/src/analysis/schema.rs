//! Problems of parsing and validation, under the codes of `istioctl analyze`.

use super::Finding;
use crate::config::problem::Severity;
use crate::snapshot::Snapshot;

/// Errors, warnings and deprecated kinds.
pub(super) fn problems(snapshot: &Snapshot, found: &mut Vec<Finding>) {
    for problem in snapshot.problems.values().flatten() {
        let (code, severity, message) = match problem.severity {
            Severity::Error => ("IST0106", Severity::Error, format!("Schema validation error: {}", problem.message)),
            Severity::Warning => {
                ("IST0133", Severity::Warning, format!("Schema validation warning: {}", problem.message))
            }
            Severity::Info if problem.message.starts_with("the kind is Istio 0.8's") => {
                ("IST0002", Severity::Warning, format!("Deprecated: {}", problem.message))
            }
            Severity::Info => continue,
        };
        let (origin, location) = (problem.about.to_string().into(), problem.location.clone());
        found.push(Finding { code, severity, origin, location, message });
    }
}
