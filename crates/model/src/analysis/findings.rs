//! Collects findings within limits. Checks compare objects with each other, and one namespace may have thousands: without
//! limits, what they find and how long they take would grow with the pairs.

use std::collections::BTreeMap;
use std::fmt::Display;

use super::Finding;
use crate::config::problem::{ProblemCode, Severity, Subject};

/// Findings of one code.
const OF_CODE: usize = 1000;
/// Bytes of a message.
const MESSAGE: usize = 4096;
/// Names in a message.
const NAMES: usize = 20;
/// Comparisons that one check may make, about a second of work.
const COMPARISONS: usize = 20_000_000;

/// What checks have found.
#[derive(Debug)]
pub struct Findings {
    list: Vec<Finding>,
    by_code: BTreeMap<&'static str, usize>,
    /// The check that runs, and how many comparisons it may still make; `None` once it wanted more.
    check: &'static str,
    comparisons: Option<usize>,
    limits: Limits,
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    of_code: usize,
    comparisons: usize,
}

impl Default for Findings {
    fn default() -> Findings {
        Findings::within(Limits { of_code: OF_CODE, comparisons: COMPARISONS })
    }
}

impl Findings {
    fn within(limits: Limits) -> Findings {
        let (list, by_code) = Default::default();
        Findings { list, by_code, check: "", comparisons: Some(limits.comparisons), limits }
    }

    /// The next check begins.
    pub(super) fn begin(&mut self, check: &'static str) {
        (self.check, self.comparisons) = (check, Some(self.limits.comparisons));
    }

    /// Adds a finding, unless there are too many of its code.
    pub(super) fn push(&mut self, mut finding: Finding) {
        let code = finding.code.as_str();
        let count = self.by_code.entry(code).or_default();
        *count += 1;
        if *count > self.limits.of_code {
            if *count == self.limits.of_code + 1 {
                let message = format!("more than {} findings of {code}; the others are not listed", *count - 1);
                self.list.push(limit(message));
            }
            return;
        }
        if finding.message.len() > MESSAGE {
            finding.message.truncate(finding.message.floor_char_boundary(MESSAGE));
            finding.message.push('…');
        }
        self.list.push(finding);
    }

    /// Whether further findings of a code would be left out, so that a check can end.
    pub(super) fn is_full(&self, code: ProblemCode) -> bool {
        self.by_code.get(code.as_str()).is_some_and(|count| *count > self.limits.of_code)
    }

    /// Counts comparisons before they are made. False once the check has made as many as it may: it must end then, and a
    /// finding says so.
    pub(super) fn may_compare(&mut self, count: usize) -> bool {
        let Some(before) = self.comparisons else { return false };
        self.comparisons = before.checked_sub(count);
        if self.comparisons.is_none() {
            let (check, most) = (self.check, self.limits.comparisons);
            let message = format!("{check} was not completed: it would make more than {most} comparisons");
            self.list.push(limit(message));
        }
        self.comparisons.is_some()
    }

    /// All findings, most severe first, then by code and object.
    pub(super) fn sorted(mut self) -> Vec<Finding> {
        // Objects are written once each, not for every comparison.
        self.list.sort_by_cached_key(|finding| {
            let severity = std::cmp::Reverse(finding.severity);
            (severity, finding.code.as_str(), finding.origin(), finding.message.clone())
        });
        self.list.dedup();
        self.list
    }
}

impl Extend<Finding> for Findings {
    fn extend<T: IntoIterator<Item = Finding>>(&mut self, findings: T) {
        findings.into_iter().for_each(|finding| self.push(finding));
    }
}

fn limit(message: String) -> Finding {
    let (location, field, about) = (None, String::new(), Subject::Setting("analysis".into()));
    Finding { code: ProblemCode::Limit, severity: Severity::Warning, location, field, about, message }
}

/// The first names of a list, and how many there are beyond.
pub(super) fn joined<T: Display>(items: impl IntoIterator<Item = T>, separator: &str) -> String {
    let mut items = items.into_iter();
    let mut names: Vec<String> = items.by_ref().take(NAMES).map(|item| item.to_string()).collect();
    match items.count() {
        0 => {}
        more => names.push(format!("{more} more")),
    }
    names.join(separator)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(code: ProblemCode, message: &str) -> Finding {
        Finding { code, message: message.to_owned(), ..limit(String::new()) }
    }

    #[test]
    fn findings_of_one_code_are_limited_and_others_are_not() {
        let mut found = Findings::within(Limits { of_code: 2, comparisons: 0 });
        for number in 0..5 {
            found.push(finding(ProblemCode::ForeignHost, &format!("host {number}")));
        }
        found.push(finding(ProblemCode::PathSpelling, &"ä".repeat(MESSAGE)));
        assert!(found.is_full(ProblemCode::ForeignHost) && !found.is_full(ProblemCode::PathSpelling));
        let found = found.sorted();
        let starts = |start: &str| found.iter().filter(|finding| finding.message.starts_with(start)).count();
        assert_eq!(["host ", "more than 2 findings of PIL0001", "ä"].map(starts), [2, 1, 1], "{found:?}");
        assert!(found.iter().all(|finding| finding.message.len() <= MESSAGE + '…'.len_utf8()));
    }

    #[test]
    fn a_check_that_compares_too_much_ends_and_says_so_once() {
        let mut found = Findings::within(Limits { of_code: 2, comparisons: 10 });
        found.begin("a check");
        assert!(found.may_compare(10) && !found.may_compare(1) && !found.may_compare(1));
        found.begin("another check");
        assert!(found.may_compare(9) && found.may_compare(1));
        let messages: Vec<String> = found.sorted().into_iter().map(|finding| finding.message).collect();
        assert_eq!(messages, ["a check was not completed: it would make more than 10 comparisons"]);
    }

    #[test]
    fn long_lists_of_names_are_cut() {
        assert_eq!(joined(["a", "b"], ","), "a,b");
        let long = joined(0..1000, " ");
        assert!(long.starts_with("0 1 2 ") && long.ends_with("18 19 980 more"), "{long}");
    }
}
