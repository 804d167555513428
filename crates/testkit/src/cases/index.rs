//! `INDEX.md`: every case by topic, with the description in its first line.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Case, CaseInput};

/// File name of the page.
pub(super) const FILE: &str = "INDEX.md";

/// The text of the index.
pub(super) fn page(cases: &[Case]) -> String {
    let mut topics: BTreeMap<&str, Vec<&Case>> = BTreeMap::new();
    for case in cases {
        topics.entry(&case.topic).or_default().push(case);
    }
    let mut page = format!(
        "# Index of the recorded cases\n\n{} cases. Each is a folder with its configuration, its proxies and what they \
         are served.\nWritten by `UPDATE=1 cargo test -p translate --test cases`.\n",
        cases.len()
    );
    for (topic, cases) in topics {
        let _ = write!(page, "\n## {topic}\n\n");
        for case in cases {
            let _ = writeln!(page, "- [{name}]({topic}/{name}): {}", shows(case), name = case.name);
        }
    }
    page
}

/// The description in the first line of a case.
fn shows(case: &Case) -> &str {
    let (CaseInput::Files(text) | CaseInput::Kubernetes(text)) = &case.world;
    let first = text.lines().next().unwrap_or_default();
    first.trim_start_matches('#').trim().trim_start_matches("shows:").trim()
}
