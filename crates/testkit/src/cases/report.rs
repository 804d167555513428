//! What a run over the cases prints: a table per topic and type, and the differences that the
//! reader asked for. Short by default, whole for a single case.

use std::collections::{BTreeMap, BTreeSet};
use std::env;

use super::KINDS;
use super::check::{Fault, Outcome, State, Verdict};

/// Lines of differences per case when more than one case is shown.
const LINES: usize = 6;
/// Rows of the list of most frequent differences.
const CAUSES: usize = 15;

/// The cases a developer asked for; empty means all of them.
#[derive(Debug, Default)]
pub(super) struct Selection(Vec<String>);

impl Selection {
    /// From the program's arguments (options belong to the standard test runner) and the environment.
    pub(super) fn from_caller() -> Selection {
        let words = env::args().skip(1).filter(|a| !a.starts_with('-')).chain(env::var("PILOTAGE_CASES").ok());
        let split = words.flat_map(|w| w.split(',').map(|p| p.trim().to_owned()).collect::<Vec<_>>());
        Selection(split.filter(|p| !p.is_empty()).collect())
    }

    pub(super) fn accepts(&self, label: &str) -> bool {
        let matches = |wanted: &String| label == wanted || label.split('/').next() == Some(wanted) || wanted == "all";
        self.0.is_empty() || self.0.iter().any(matches)
    }

    fn is_given(&self) -> bool {
        !self.0.is_empty()
    }
}

pub(super) fn print(outcomes: &[Outcome], verdict: &Verdict, selection: &Selection) {
    let shown: Vec<&Outcome> = outcomes
        .iter()
        .filter(|o| !o.faults.is_empty() && (selection.is_given() || verdict.broken.contains(&o.label)))
        .collect();
    let limit = if outcomes.len() == 1 { usize::MAX } else { LINES };
    for outcome in &shown {
        print_faults(outcome, limit);
    }
    if shown.len() > 1 {
        print_causes(&shown);
    }
    print_table(outcomes);
    for label in &verdict.became_equal {
        println!("EQUAL NOW, take it out of UNEQUAL.txt (or run with PILOTAGE_SHRINK=1): {label}");
    }
    for label in &verdict.unknown {
        println!("UNEQUAL.txt names a case that does not exist: {label}");
    }
    let equal = outcomes.iter().filter(|o| o.faults.is_empty()).count();
    let listed = verdict.listed.len() - verdict.unknown.len();
    println!(
        "cases: {equal} of {} equal, {listed} listed as unequal, {} unequal and not listed",
        outcomes.len(),
        verdict.broken.len()
    );
    let word = if verdict.holds() { "ok" } else { "FAILED" };
    let failed = verdict.broken.len() + verdict.became_equal.len() + verdict.unknown.len();
    println!(
        "test result: {word}. {equal} passed; {failed} failed; {} ignored",
        outcomes.len() - equal - verdict.broken.len()
    );
}

fn print_faults(outcome: &Outcome, limit: usize) {
    let (equal, all) = outcome.counts.values().fold((0, 0), |sum, c| (sum.0 + c.0, sum.1 + c.1));
    println!("{}: {equal}/{all}", outcome.label);
    let lines: Vec<String> = outcome.faults.iter().flat_map(lines).collect();
    for line in lines.iter().take(limit) {
        println!("  {line}");
    }
    if lines.len() > limit {
        println!("  … {} more (PILOTAGE_CASES={} shows all)", lines.len() - limit, outcome.label);
    }
}

fn lines(fault: &Fault) -> Vec<String> {
    let Fault { proxy, kind, name, .. } = fault;
    match &fault.state {
        State::Missing => vec![format!("{proxy} {kind} {name}: missing")],
        State::Extra => vec![format!("{proxy} {kind} {name}: extra")],
        State::Failed(text) => vec![format!("{proxy}: {text}")],
        State::Different(places) => places.iter().map(|d| format!("{proxy} {kind} {name}: {d}")).collect(),
    }
}

/// The differing fields that most resources share: what to look at first.
fn print_causes(outcomes: &[&Outcome]) {
    let mut causes: BTreeMap<String, (usize, BTreeSet<&str>)> = BTreeMap::new();
    for outcome in outcomes {
        for fault in &outcome.faults {
            for cause in causes_of(fault) {
                let entry = causes.entry(format!("{} {cause}", fault.kind)).or_default();
                entry.0 += 1;
                entry.1.insert(&outcome.label);
            }
        }
    }
    let mut rows: Vec<(&String, &(usize, BTreeSet<&str>))> = causes.iter().collect();
    rows.sort_by(|a, b| (b.1.1.len(), b.1.0).cmp(&(a.1.1.len(), a.1.0)).then(a.0.cmp(b.0)));
    println!("most frequent (cases, resources):");
    for (cause, (resources, cases)) in rows.iter().take(CAUSES) {
        println!("  {:4} {resources:4}  {cause}", cases.len());
    }
}

fn causes_of(fault: &Fault) -> BTreeSet<String> {
    match &fault.state {
        State::Missing => BTreeSet::from(["missing".to_owned()]),
        State::Extra => BTreeSet::from(["extra".to_owned()]),
        State::Failed(text) => BTreeSet::from([text.clone()]),
        State::Different(places) => places.iter().map(|d| unlabelled(&d.path)).collect(),
    }
}

/// A path without what stands in its outer brackets.
fn unlabelled(path: &str) -> String {
    let mut depth = 0;
    let mut out = String::new();
    for c in path.chars() {
        match c {
            '[' => {
                out.push_str(if depth == 0 { "[]" } else { "" });
                depth += 1;
            }
            ']' => depth -= 1,
            c if depth == 0 => out.push(c),
            _ => {}
        }
    }
    out
}

fn print_table(outcomes: &[Outcome]) {
    let mut rows: BTreeMap<&str, Vec<&Outcome>> = BTreeMap::new();
    for outcome in outcomes {
        rows.entry(&outcome.topic).or_default().push(outcome);
    }
    let head: Vec<String> = KINDS.iter().map(|(kind, _)| format!("{kind:>11}")).collect();
    println!("{:14}{:>9}{}", "", "cases", head.concat());
    for (topic, of_topic) in &rows {
        println!("{topic:14}{}", row(of_topic));
    }
    if rows.len() > 1 {
        println!("{:14}{}", "all", row(&outcomes.iter().collect::<Vec<_>>()));
    }
}

fn row(outcomes: &[&Outcome]) -> String {
    let equal = outcomes.iter().filter(|o| o.faults.is_empty()).count();
    let mut line = format!("{:>9}", format!("{equal}/{}", outcomes.len()));
    for (kind, _) in KINDS {
        let counts = outcomes.iter().filter_map(|o| o.counts.get(kind));
        let (equal, all) = counts.fold((0, 0), |sum, c| (sum.0 + c.0, sum.1 + c.1));
        let cell = if all == 0 { "-".to_owned() } else { format!("{equal}/{all}") };
        line.push_str(&format!("{cell:>11}"));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::{Selection, unlabelled};

    #[test]
    fn labels_are_taken_out_of_paths() {
        assert_eq!(unlabelled(r#"hosts[a:80].routes[{"x":["y"]}].timeout"#), "hosts[].routes[].timeout");
    }

    #[test]
    fn topics_and_labels_select() {
        let selection = Selection(vec!["routing".into(), "dns/a".into()]);
        let accepted = ["routing/x", "dns/a", "dns/ab", "routing2/x"].map(|l| selection.accepts(l));
        assert_eq!(accepted, [true, true, false, false]);
    }
}
