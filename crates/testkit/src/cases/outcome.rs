//! Results of comparing resources with a recording or with another server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::Case;
use super::selection::Selection;
use crate::canonical;
use crate::difference::{Difference, differences};

/// Result of one case.
pub(super) struct Outcome {
    pub(super) topic: String,
    pub(super) label: String,
    /// By type: the number of equal resources, and of all expected or received.
    pub(super) counts: BTreeMap<&'static str, (usize, usize)>,
    pub(super) faults: Vec<Fault>,
}

impl Outcome {
    pub(super) fn new(case: &Case) -> Outcome {
        Outcome::named(&case.topic, &case.label())
    }

    pub(super) fn named(topic: &str, label: &str) -> Outcome {
        Outcome { topic: topic.to_owned(), label: label.to_owned(), counts: BTreeMap::new(), faults: Vec::new() }
    }
}

/// One resource that differs from the recording.
pub(super) struct Fault {
    pub(super) proxy: String,
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) state: FaultState,
}

pub(super) enum FaultState {
    Missing,
    Extra,
    Different(Vec<Difference>),
    /// The server panicked.
    Failed(String),
}

/// The outcomes compared with the list of unequal cases.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ListCheck {
    pub(super) listed: BTreeSet<String>,
    /// Unequal, but not listed.
    pub(super) broken: Vec<String>,
    /// Equal, but listed.
    pub(super) became_equal: Vec<String>,
    /// Listed, but the case does not exist.
    pub(super) unknown: Vec<String>,
}

impl ListCheck {
    pub(super) fn of(outcomes: &[Outcome], list: &str, selection: &Selection) -> ListCheck {
        let lines = list.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
        let listed: BTreeSet<String> = lines.filter(|l| selection.accepts(l)).map(str::to_owned).collect();
        let mut verdict = ListCheck { unknown: listed.iter().cloned().collect(), listed, ..ListCheck::default() };
        for outcome in outcomes {
            verdict.unknown.retain(|l| *l != outcome.label);
            match (outcome.faults.is_empty(), verdict.listed.contains(&outcome.label)) {
                (true, true) => verdict.became_equal.push(outcome.label.clone()),
                (false, false) => verdict.broken.push(outcome.label.clone()),
                _ => {}
            }
        }
        verdict
    }

    pub(super) fn holds(&self) -> bool {
        self.broken.is_empty() && self.became_equal.is_empty() && self.unknown.is_empty()
    }
}

/// Compares two lists of resources by name.
pub(super) fn compare(
    outcome: &mut Outcome,
    proxy: &str,
    kind: &'static str,
    expected: &[Arc<Value>],
    got: &[Arc<Value>],
) {
    let (left, right) = (index(expected), index(got));
    let names: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
    for name in names {
        let count = outcome.counts.entry(kind).or_default();
        count.1 += 1;
        let state = match (left.get(name), right.get(name)) {
            (Some(a), Some(b)) if a == b => {
                count.0 += 1;
                continue;
            }
            (Some(a), Some(b)) => FaultState::Different(differences(a, b)),
            (Some(_), None) => FaultState::Missing,
            _ => FaultState::Extra,
        };
        outcome.faults.push(Fault { proxy: proxy.to_owned(), kind, name: name.clone(), state });
    }
}

/// By name; a repeated name gets a number so that it is not hidden.
fn index(resources: &[Arc<Value>]) -> BTreeMap<String, &Value> {
    let mut out = BTreeMap::new();
    for resource in resources {
        let name = canonical::name(resource);
        let fresh = (1..).map(|n| if n == 1 { name.to_owned() } else { format!("{name}#{n}") });
        if let Some(key) = fresh.into_iter().find(|k| !out.contains_key(k)) {
            out.insert(key, &**resource);
        }
    }
    out
}
