//! Selection of cases and types by program arguments and environment variables.

use std::env;

/// Selected cases and types; an empty list selects all.
#[derive(Debug, Default)]
pub(super) struct Selection {
    cases: Vec<String>,
    types: Vec<String>,
}

impl Selection {
    /// Reads program arguments (options belong to the standard test runner) and environment variables.
    pub(super) fn from_caller() -> Selection {
        let arguments = env::args().skip(1).filter(|a| !a.starts_with('-'));
        let cases = arguments.chain(env::var("PILOTAGE_CASES").ok()).flat_map(|w| words(&w)).collect();
        Selection { cases, types: env::var("PILOTAGE_TYPES").map(|w| words(&w)).unwrap_or_default() }
    }

    pub(super) fn accepts(&self, label: &str) -> bool {
        let matches = |wanted: &String| label == wanted || label.split('/').next() == Some(wanted) || wanted == "all";
        self.cases.is_empty() || self.cases.iter().any(matches)
    }

    pub(super) fn has_types(&self) -> bool {
        !self.types.is_empty()
    }

    pub(super) fn has_type(&self, kind: &str) -> bool {
        self.types.is_empty() || self.types.iter().any(|t| t == kind)
    }

    pub(super) fn has_cases(&self) -> bool {
        !self.cases.is_empty()
    }
}

fn words(text: &str) -> Vec<String> {
    text.split(',').map(|w| w.trim().to_owned()).filter(|w| !w.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::{Selection, words};

    #[test]
    fn topics_and_labels_select() {
        let selection = Selection { cases: words("routing, dns/a"), types: vec![] };
        let accepted = ["routing/x", "dns/a", "dns/ab", "routing2/x"].map(|l| selection.accepts(l));
        assert_eq!(accepted, [true, true, false, false]);
    }
}
