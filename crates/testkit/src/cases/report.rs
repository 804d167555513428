//! Report of a run over the cases: a table by topic and type, and differences. Differences are shortened unless a single
//! case is selected.

use std::collections::{BTreeMap, BTreeSet};

use super::KINDS;
use super::outcome::{Fault, FaultState, ListCheck, Outcome};
use super::selection::Selection;

/// Maximum lines of differences per case if several cases are shown.
const LINES: usize = 6;
/// Maximum number of cases whose differences are shown.
const CASES: usize = 20;
/// Rows of the list of most frequent differences.
const CAUSES: usize = 15;

/// Prints differences of selected and broken cases, the table, and deviations from the list.
pub(super) fn print(outcomes: &[Outcome], verdict: &ListCheck, selection: &Selection) {
    let wanted = |o: &&Outcome| selection.has_cases() || verdict.broken.contains(&o.label);
    print_differences(&outcomes.iter().filter(wanted).collect::<Vec<_>>());
    print_table(outcomes);
    for label in &verdict.became_equal {
        println!("EQUAL NOW, remove it from UNEQUAL.txt (or run with PILOTAGE_SHRINK=1): {label}");
    }
    for label in &verdict.unknown {
        println!("UNEQUAL.txt names a case that does not exist: {label}");
    }
    let (all, equal) = (outcomes.len(), outcomes.iter().filter(|o| o.faults.is_empty()).count());
    let (listed, broken) = (verdict.listed.len() - verdict.unknown.len(), verdict.broken.len());
    println!("cases: {equal} of {all} equal, {listed} listed as unequal, {broken} unequal and not listed");
    let failed = broken + verdict.became_equal.len() + verdict.unknown.len();
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {word}. {equal} passed; {failed} failed; {} ignored", all - equal - broken);
}

/// Prints a comparison of two servers: every difference, the most frequent causes, and the table.
pub(super) fn print_all(outcomes: &[Outcome]) {
    let unequal: Vec<&Outcome> = outcomes.iter().filter(|o| !o.faults.is_empty()).collect();
    unequal.iter().for_each(|outcome| print_faults(outcome, usize::MAX));
    if !unequal.is_empty() {
        print_causes(&unequal);
    }
    print_table(outcomes);
}

/// Prints a run over some types: differences and table.
pub(super) fn print_types(outcomes: &[Outcome]) {
    print_differences(&outcomes.iter().collect::<Vec<_>>());
    print_table(outcomes);
}

fn print_differences(outcomes: &[&Outcome]) {
    let limit = if outcomes.len() == 1 { usize::MAX } else { LINES };
    let mut unequal: Vec<&Outcome> = outcomes.iter().copied().filter(|o| !o.faults.is_empty()).collect();
    // Cases with the fewest differences come last, next to the table.
    unequal.sort_by_key(|o| std::cmp::Reverse(o.faults.len()));
    let hidden = unequal.len().saturating_sub(CASES);
    if hidden > 0 {
        println!("… {hidden} more cases");
    }
    for outcome in &unequal[hidden..] {
        print_faults(outcome, limit);
    }
    if unequal.len() > 1 {
        print_causes(&unequal);
    }
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

/// The lines that describe a fault.
pub(super) fn lines(fault: &Fault) -> Vec<String> {
    let Fault { proxy, kind, name, .. } = fault;
    match &fault.state {
        FaultState::Missing => vec![format!("{proxy} {kind} {name}: missing")],
        FaultState::Extra => vec![format!("{proxy} {kind} {name}: extra")],
        FaultState::Failed(text) => vec![format!("{proxy}: {text}")],
        FaultState::Different(places) => places.iter().map(|d| format!("{proxy} {kind} {name}: {d}")).collect(),
    }
}

/// Prints the most frequent differing fields.
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
        FaultState::Missing => BTreeSet::from(["missing".to_owned()]),
        FaultState::Extra => BTreeSet::from(["extra".to_owned()]),
        FaultState::Failed(text) => BTreeSet::from([text.clone()]),
        FaultState::Different(places) => places.iter().map(|d| unlabelled(&d.path)).collect(),
    }
}

/// A path without the labels in its outer brackets.
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
    use super::unlabelled;

    #[test]
    fn labels_are_removed_from_paths() {
        assert_eq!(unlabelled(r#"hosts[a:80].routes[{"x":["y"]}].timeout"#), "hosts[].routes[].timeout");
    }
}
