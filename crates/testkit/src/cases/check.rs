//! Runs the cases against a server and keeps the list of unequal ones honest: it can only shrink.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, thread};

use parking_lot::Mutex;
use serde_json::Value;

use super::fetch::{CanonicalForms, FetchedResources, ResourceLookup, fetch, fetch_recorded};
use super::report::{self, Selection};
use super::statuses::{self, CaseServer};
use super::update::update;
use super::{Case, CaseProxy, CaseStore, KINDS, index};
use crate::canonical;
use crate::difference::{Difference, differences};

const LIST: &str = "UNEQUAL.txt";

thread_local! {
    /// What the hook heard of this thread's last panic: place and words, without a backtrace.
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// How one case went.
pub(super) struct Outcome {
    pub(super) topic: String,
    pub(super) label: String,
    /// Type to (equal, all) of what was expected or received.
    pub(super) counts: BTreeMap<&'static str, (usize, usize)>,
    pub(super) faults: Vec<Fault>,
}

impl Outcome {
    fn new(case: &Case) -> Outcome {
        Outcome::named(&case.topic, &case.label())
    }

    pub(super) fn named(topic: &str, label: &str) -> Outcome {
        Outcome { topic: topic.to_owned(), label: label.to_owned(), counts: BTreeMap::new(), faults: Vec::new() }
    }
}

/// One resource that is not as recorded.
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

/// Runs every selected case and prints what a developer wants to know. `load` gives the server
/// under test with a case loaded. Cases are selected by program arguments or `$PILOTAGE_CASES`:
/// topics or labels, parted by commas; types by `$PILOTAGE_TYPES`, which leaves the list alone.
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

/// Whether the index lists these cases; says how to renew it.
fn has_fresh_index(store: &CaseStore) -> bool {
    let written = fs::read_to_string(store.folder.join(index::FILE)).unwrap_or_default();
    let is_fresh = written == index::page(&store.cases);
    if !is_fresh {
        println!("{} is not up to date: run UPDATE=1 cargo test -p translate --test cases", index::FILE);
    }
    is_fresh
}

/// What the list of unequal cases says about the outcomes.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ListCheck {
    pub(super) listed: BTreeSet<String>,
    /// Not listed, yet unequal.
    pub(super) broken: Vec<String>,
    /// Listed, yet equal.
    pub(super) became_equal: Vec<String>,
    /// Listed, but there is no such case.
    pub(super) unknown: Vec<String>,
}

impl ListCheck {
    fn of(outcomes: &[Outcome], list: &str, selection: &Selection) -> ListCheck {
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

fn without(list: &str, gone: &[String]) -> String {
    list.lines().filter(|l| !gone.iter().any(|g| g == l.trim())).map(|l| format!("{l}\n")).collect()
}

fn outcomes(cases: &[Case], load: &(impl Fn(&Case) -> CaseServer + Sync), selection: &Selection) -> Vec<Outcome> {
    let forms = CanonicalForms::default();
    let mut done = on_all_cores(cases, |case| outcome(case, load, selection, &forms));
    done.sort_by(|a, b| a.label.cmp(&b.label));
    done
}

/// Where two servers answer otherwise, as lines to read; over the wanted cases.
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

/// Spreads the cases over the cores.
pub(super) fn on_all_cores<T: Send>(cases: &[Case], run: impl Fn(&Case) -> T + Sync) -> Vec<T> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = run(case);
                    done.lock().push(result);
                }
            });
        }
    });
    done.into_inner()
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

#[cfg(test)]
mod tests {
    use api::{Resource, TypeUrl};

    use super::*;

    /// A server that answers what was recorded, after `change`.
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
            asked.map(|r| Resource::encoded(canonical::name(r), canonical::encode(r).unwrap().into())).collect()
        })
    }

    fn faults(topics: &[&str], change: fn(&mut Value)) -> Vec<(usize, String)> {
        let store = CaseStore::read(|label| topics.iter().any(|t| label.starts_with(t)));
        let outcomes = outcomes(&store.cases, &|case: &Case| replay(case, change).into(), &Selection::default());
        outcomes.iter().map(|o| (o.faults.len(), o.label.clone())).collect()
    }

    #[test]
    fn a_server_that_answers_as_recorded_is_equal() {
        let found = faults(&["dns", "envoyfilter", "gateway"], |_| {});
        assert!(found.len() > 30 && found.iter().all(|(faults, _)| *faults == 0), "{found:?}");
    }

    #[test]
    fn a_server_that_answers_otherwise_is_not() {
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
    fn a_server_that_panics_lacks_everything() {
        let store = CaseStore::read(|label| label == "routing/timeout");
        let outcomes = outcomes(&store.cases, &|_: &Case| panic!("no answer"), &Selection::default());
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
