//! Findings of validation, with the path of their field.

use std::fmt::{self, Display, Write as _};

use crate::config::problem::{ProblemCode, Severity};

/// The result of checking a rule.
pub(super) type Rule = Result<(), Violation>;

/// How a value violates a rule, for users.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Violation(String);

impl From<String> for Violation {
    fn from(message: String) -> Violation {
        Violation(message)
    }
}

impl From<&str> for Violation {
    fn from(message: &str) -> Violation {
        Violation(message.to_owned())
    }
}

impl Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Maximum number of findings per object.
const MOST_FINDINGS: usize = 50;

/// Findings of one object, in the order of the rules.
#[derive(Default)]
pub(super) struct Report {
    path: String,
    found: Vec<RuleFinding>,
}

/// A violated rule.
pub(super) struct RuleFinding {
    pub(super) severity: Severity,
    /// The part of the object, such as `http[0].route[1]`; empty for all of it.
    pub(super) path: String,
    /// The path and the rule.
    pub(super) message: String,
    /// `None` for the usual code of the severity.
    pub(super) code: Option<ProblemCode>,
}

impl Report {
    /// The object is not used.
    pub(super) fn error(&mut self, message: impl Display) {
        self.add(Severity::Error, message);
    }

    /// The object is used, but part of it has no effect.
    pub(super) fn warn(&mut self, message: impl Display) {
        self.add(Severity::Warning, message);
    }

    /// The same with another code than the usual one.
    pub(super) fn warn_as(&mut self, code: ProblemCode, message: impl Display) {
        self.add_coded(Severity::Warning, message, Some(code));
    }

    /// The object works; there is something to know about it.
    pub(super) fn info(&mut self, message: impl Display) {
        self.add(Severity::Info, message);
    }

    /// Adds a finding of another check.
    pub(super) fn finding(&mut self, severity: Severity, message: impl Display) {
        self.add(severity, message);
    }

    pub(super) fn error_if(&mut self, broken: bool, message: impl Display) {
        if broken {
            self.error(message);
        }
    }

    pub(super) fn warn_if(&mut self, broken: bool, message: impl Display) {
        if broken {
            self.warn(message);
        }
    }

    /// Adds the error of a rule.
    pub(super) fn check(&mut self, rule: Rule) {
        if let Err(message) = rule {
            self.error(message);
        }
    }

    /// Runs checks on a part of the object; its path is added to their findings.
    pub(super) fn within(&mut self, part: impl Display, checks: impl FnOnce(&mut Report)) {
        let before = self.path.len();
        let _ = match before {
            0 => write!(self.path, "{part}"),
            _ => write!(self.path, ".{part}"),
        };
        checks(self);
        self.path.truncate(before);
    }

    /// Runs checks on each item of a list.
    pub(super) fn each<T>(&mut self, name: &str, items: &[T], mut checks: impl FnMut(&mut Report, &T)) {
        for (index, item) in items.iter().enumerate() {
            self.within(format_args!("{name}[{index}]"), |report| checks(report, item));
        }
    }

    /// Runs checks on an optional message.
    pub(super) fn given<T>(&mut self, name: &str, part: Option<&T>, checks: impl FnOnce(&mut Report, &T)) {
        if let Some(part) = part {
            self.within(name, |report| checks(report, part));
        }
    }

    pub(super) fn into_findings(self) -> Vec<RuleFinding> {
        self.found
    }

    fn add(&mut self, severity: Severity, message: impl Display) {
        self.add_coded(severity, message, None);
    }

    fn add_coded(&mut self, severity: Severity, message: impl Display, code: Option<ProblemCode>) {
        // The first error is always kept: it decides whether the object is used.
        let room = self.found.len() < MOST_FINDINGS;
        if !room && (severity < Severity::Error || self.found.iter().any(|known| known.severity == Severity::Error)) {
            return;
        }
        let text = match self.path.is_empty() {
            true => message.to_string(),
            false => format!("{}: {message}", self.path),
        };
        self.found.push(RuleFinding { severity, path: self.path.clone(), message: text, code });
    }
}
