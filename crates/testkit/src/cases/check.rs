//! Runs the cases against a server. The list of unequal cases may only shrink.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::{env, fs};

use super::fetch::{CanonicalForms, FetchedResources, ResourceLookup, fetch, fetch_recorded};
use super::outcome::{Fault, FaultState, ListCheck, Outcome, compare};
use super::parallel::on_all_cores;
use super::report;
use super::selection::Selection;
use super::statuses::{self, CaseServer};
use super::update::update;
use super::{Case, CaseProxy, CaseStore, KINDS, index};

const LIST: &str = "UNEQUAL.txt";

thread_local! {
    /// Message of this thread's last panic, without a backtrace.
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs the selected cases and prints a report. `load` returns the server under test for a case. Program arguments or
/// `$PILOTAGE_CASES` select cases: topics or labels, separated by commas. `$PILOTAGE_TYPES` selects types; then the list
/// of unequal cases is not checked.
pub fn run<S: Into<CaseServer>>(load: impl Fn(&Case) -> S + Sync) -> ExitCode {
    let selection = Selection::from_caller();
    let store = CaseStore::read(|label| selection.accepts(label));
    panic::set_hook(Box::new(|info| LAST_PANIC.set(info.to_string().replace('\n', " "))));
    let load = |case: &Case| load(case).into();
    if env::var_os("UPDATE").is_some() {
        let rewritten = update(&store, &load, &selection);
        rewritten.unwrap_or_else(|e| panic!("could not rewrite the recorded cases: {e}"));
        let _ = panic::take_hook();
        return ExitCode::SUCCESS;
    }
    let outcomes = outcomes(&store.cases, &load, &selection);
    let _ = panic::take_hook();
    if selection.has_types() {
        report::print_types(&outcomes);
        return ExitCode::SUCCESS;
    }
    let list = fs::read_to_string(store.folder.join(LIST)).unwrap_or_default();
    let verdict = ListCheck::of(&outcomes, &list, &selection);
    report::print(&outcomes, &verdict, &selection);
    if env::var_os("PILOTAGE_SHRINK").is_some() && !verdict.became_equal.is_empty() {
        let text = without(&list, &verdict.became_equal);
        fs::write(store.folder.join(LIST), text).unwrap_or_else(|e| panic!("could not write {LIST}: {e}"));
        println!("{} taken out of {LIST}", verdict.became_equal.len());
    }
    let is_indexed = selection.has_cases() || has_fresh_index(&store);
    if verdict.holds() && is_indexed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether the index is up to date; prints how to update it.
fn has_fresh_index(store: &CaseStore) -> bool {
    let written = fs::read_to_string(store.folder.join(index::FILE)).unwrap_or_default();
    let is_fresh = written == index::page(&store.cases);
    if !is_fresh {
        println!("{} is not up to date: run UPDATE=1 cargo test -p translate --test cases", index::FILE);
    }
    is_fresh
}

fn without(list: &str, gone: &[String]) -> String {
    list.lines().filter(|l| !gone.iter().any(|g| g == l.trim())).map(|l| format!("{l}\n")).collect()
}

fn outcomes(cases: &[Case], load: &(impl Fn(&Case) -> CaseServer + Sync), selection: &Selection) -> Vec<Outcome> {
    let forms = CanonicalForms::default();
    let mut done = on_all_cores(cases, |case| outcome(case, load, selection, &forms));
    done.sort_by(|a, b| a.label.cmp(&b.label));
    done
}

/// A comparison with the recordings.
#[derive(Debug, Default)]
pub struct RecordingCheck {
    pub cases: usize,
    /// Resources and statuses, expected or received.
    pub resources: usize,
    /// A line for each difference.
    pub lines: Vec<String>,
}

/// Compares a server with the recordings of the wanted cases.
pub fn differences<S: Into<CaseServer>>(
    wanted: impl Fn(&Case) -> bool,
    load: impl Fn(&Case) -> S + Sync,
) -> RecordingCheck {
    let mut cases = CaseStore::read(|_| true).cases;
    cases.retain(wanted);
    let load = |case: &Case| load(case).into();
    let outcomes = outcomes(&cases, &load, &Selection::default());
    let lines = |outcome: &Outcome| {
        let of = outcome.faults.iter().flat_map(report::lines);
        of.map(|line| format!("{} {line}", outcome.label)).collect::<Vec<String>>()
    };
    RecordingCheck {
        cases: outcomes.len(),
        resources: outcomes.iter().flat_map(|outcome| outcome.counts.values()).map(|(_, all)| all).sum(),
        lines: outcomes.iter().flat_map(lines).collect(),
    }
}

/// Differences between two servers over the selected cases, one line each.
pub fn disagreements(
    wanted: impl Fn(&Case) -> bool,
    one: impl Fn(&Case) -> ResourceLookup + Sync,
    other: impl Fn(&Case) -> ResourceLookup + Sync,
) -> Vec<String> {
    let forms = CanonicalForms::default();
    let mut cases = CaseStore::read(|_| true).cases;
    cases.retain(wanted);
    let lines = on_all_cores(&cases, |case| {
        let mut outcome = Outcome::new(case);
        let (one, other) = (one(case), other(case));
        for proxy in &case.proxies {
            let (left, right) = (fetch(&one, proxy, &forms), fetch(&other, proxy, &forms));
            for (kind, _) in KINDS {
                let of = |got: &FetchedResources| got.get(kind).cloned().unwrap_or_default();
                compare(&mut outcome, &proxy.name, kind, &of(&left), &of(&right));
            }
        }
        outcome.faults.iter().flat_map(report::lines).map(|l| format!("{} {l}", outcome.label)).collect::<Vec<_>>()
    });
    lines.concat()
}

fn outcome(case: &Case, load: &impl Fn(&Case) -> CaseServer, selection: &Selection, forms: &CanonicalForms) -> Outcome {
    let mut outcome = Outcome::new(case);
    let server = catch_unwind(AssertUnwindSafe(|| load(case))).map_err(|_| LAST_PANIC.take());
    let answers = server.as_ref().map(|server| &server.answers);
    let fetch = |answers: &ResourceLookup, proxy: &CaseProxy| match selection.has_types() {
        true => fetch_recorded(answers, case, proxy, forms, |kind| selection.has_type(kind)),
        false => fetch(answers, proxy, forms),
    };
    for proxy in &case.proxies {
        let got = answers.map_err(Clone::clone).and_then(|answers| {
            catch_unwind(AssertUnwindSafe(|| fetch(answers, proxy))).map_err(|_| LAST_PANIC.take())
        });
        let got = got.unwrap_or_else(|text| {
            let state = FaultState::Failed(text);
            outcome.faults.push(Fault { proxy: proxy.name.clone(), kind: "all", name: String::new(), state });
            BTreeMap::new()
        });
        for (kind, url) in KINDS.into_iter().filter(|(kind, _)| selection.has_type(kind)) {
            let got = got.get(kind).map_or(&[][..], Vec::as_slice);
            compare(&mut outcome, &proxy.name, kind, &case.expected(&proxy.name, &url), got);
        }
    }
    if let Ok(CaseServer { statuses: Some(statuses), .. }) = &server
        && selection.has_type("statuses")
    {
        let expected = statuses::expected(&case.statuses);
        compare(&mut outcome, "", "statuses", &expected, &statuses::got(case, statuses));
    }
    outcome
}

#[cfg(test)]
mod tests {
    use api::{Resource, TypeUrl};

    use serde_json::Value;

    use super::*;
    use crate::canonical;

    /// A server that serves the recorded resources, modified by `change`.
    fn replay(case: &Case, change: fn(&mut Value)) -> ResourceLookup {
        let mut recorded: BTreeMap<(String, TypeUrl), Vec<Value>> = BTreeMap::new();
        for (proxy, kind) in case.proxies.iter().flat_map(|p| KINDS.map(|(_, kind)| (p, kind))) {
            let mut all: Vec<Value> = case.expected(&proxy.name, &kind).iter().map(|r| (**r).clone()).collect();
            all.iter_mut().for_each(change);
            recorded.insert((proxy.name.clone(), kind), all);
        }
        Box::new(move |proxy: &CaseProxy, kind: &TypeUrl, names: &[String]| {
            let all = recorded[&(proxy.name.clone(), kind.clone())].iter();
            let asked = all.filter(|r| names.is_empty() || names.iter().any(|n| n == canonical::name(r)));
            asked.map(|r| Resource::encoded(canonical::name(r), canonical::encode(r).unwrap())).collect()
        })
    }

    fn faults(topics: &[&str], change: fn(&mut Value)) -> Vec<(usize, String)> {
        let store = CaseStore::read(|label| topics.iter().any(|t| label.starts_with(t)));
        let outcomes = outcomes(&store.cases, &|case: &Case| replay(case, change).into(), &Selection::default());
        outcomes.iter().map(|o| (o.faults.len(), o.label.clone())).collect()
    }

    #[test]
    fn a_server_that_serves_the_recording_is_equal() {
        let found = faults(&["dns", "envoyfilter", "gateway"], |_| {});
        assert!(found.len() > 30 && found.iter().all(|(faults, _)| *faults == 0), "{found:?}");
    }

    #[test]
    fn a_server_that_serves_something_else_is_unequal() {
        let found = faults(&["routing/timeout"], |r| match r.get_mut("connect_timeout") {
            Some(timeout) if *timeout == "10s" => *timeout = "9s".into(),
            _ => {}
        });
        assert!(found.iter().all(|(faults, _)| *faults > 0), "{found:?}");
    }

    fn outcome(label: &str, equal: bool) -> Outcome {
        let fault = Fault { proxy: "p".into(), kind: "clusters", name: "c".into(), state: FaultState::Missing };
        let faults = if equal { vec![] } else { vec![fault] };
        Outcome { topic: "t".into(), label: label.into(), counts: BTreeMap::new(), faults }
    }

    #[test]
    fn a_server_that_panics_fails_every_resource() {
        let store = CaseStore::read(|label| label == "routing/timeout");
        let outcomes = outcomes(&store.cases, &|_: &Case| panic!("no response"), &Selection::default());
        assert!(outcomes[0].counts.values().all(|(equal, all)| *equal == 0 && *all > 0));
        assert!(matches!(outcomes[0].faults[0].state, FaultState::Failed(_)));
    }

    #[test]
    fn the_list_can_only_shrink() {
        let outcomes = [outcome("t/a", true), outcome("t/b", false), outcome("t/c", true), outcome("t/d", false)];
        let verdict = ListCheck::of(&outcomes, "# words\nt/c\nt/d\nt/gone\n", &Selection::default());
        assert_eq!(
            (&verdict.broken[..], &verdict.became_equal[..], &verdict.unknown[..]),
            (&["t/b".to_owned()][..], &["t/c".to_owned()][..], &["t/gone".to_owned()][..])
        );
        assert!(!verdict.holds());
        assert!(ListCheck::of(&outcomes[2..], "t/d\n", &Selection::default()).holds());
        assert_eq!(without("# words\nt/c\nt/d\n", &verdict.became_equal), "# words\nt/d\n");
    }
}
