//! All that a server tells some proxies, and where two servers tell them otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::check::{Outcome, compare};
use super::fetch::{CanonicalForms, FetchedResources, ResourceLookup, fetch};
use super::{CaseProxy, KINDS, report};
use crate::canonical;

/// What a server told each proxy, in canonical form.
#[derive(Debug, Default, PartialEq)]
pub struct Dump(BTreeMap<String, FetchedResources>);

impl Dump {
    /// Asks for everything that Envoys with these nodes would ask for.
    pub fn take(answers: &ResourceLookup, proxies: &[CaseProxy]) -> Dump {
        let forms = CanonicalForms::default();
        Dump(proxies.iter().map(|proxy| (proxy.name.clone(), fetch(answers, proxy, &forms))).collect())
    }

    /// The names of a type that a proxy was told.
    pub fn names(&self, proxy: &str, kind: &str) -> Vec<&str> {
        self.of(proxy, kind).iter().map(|resource| canonical::name(resource)).collect()
    }

    /// What a server told, where it tells this or that by chance: of several rounds, for each resource what `other`
    /// says too if it was ever told, else what was told last.
    pub fn nearest(rounds: Vec<Dump>, other: &Dump) -> Dump {
        let mut rounds = rounds.into_iter().rev();
        let Some(mut last) = rounds.next() else { return Dump::default() };
        let earlier: Vec<Dump> = rounds.collect();
        for (proxy, got) in &mut last.0 {
            for (kind, resources) in got {
                for resource in resources {
                    let told = |dump: &Dump| dump.of(proxy, kind).iter().find(|r| is_named_like(r, resource)).cloned();
                    let wanted = told(other);
                    if wanted.is_some() && earlier.iter().any(|round| told(round) == wanted) {
                        *resource = wanted.unwrap_or_default();
                    }
                }
            }
        }
        last
    }

    /// Resources that the two tell otherwise, as `proxy type name`.
    pub fn unlike(&self, other: &Dump) -> Vec<String> {
        let Comparison(outcomes) = self.compare(other);
        let faults = outcomes.iter().flat_map(|outcome| &outcome.faults);
        faults.map(|fault| format!("{} {} {}", fault.proxy, fault.kind, fault.name)).collect()
    }

    fn of(&self, proxy: &str, kind: &str) -> &[Arc<Value>] {
        self.0.get(proxy).and_then(|got| got.get(kind)).map_or(&[], Vec::as_slice)
    }

    /// Compares what another server told with this.
    pub fn compare(&self, other: &Dump) -> Comparison {
        let names: BTreeSet<&String> = self.0.keys().chain(other.0.keys()).collect();
        let outcomes = names.into_iter().map(|name| {
            let mut outcome = Outcome::named("servers", name);
            for (kind, _) in KINDS {
                compare(&mut outcome, name, kind, self.of(name, kind), other.of(name, kind));
            }
            outcome
        });
        Comparison(outcomes.collect())
    }
}

fn is_named_like(one: &Value, other: &Value) -> bool {
    canonical::name(one) == canonical::name(other)
}

/// What two servers have in common and what not, by proxy.
pub struct Comparison(Vec<Outcome>);

impl Comparison {
    /// Resources that are equal, and all that one of the two told.
    pub fn figures(&self) -> (usize, usize) {
        let counts = self.0.iter().flat_map(|outcome| outcome.counts.values());
        counts.fold((0, 0), |sum, (equal, all)| (sum.0 + equal, sum.1 + all))
    }

    /// Prints every difference and a table of the figures.
    pub fn print(&self) {
        report::print_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Arc, BTreeMap, Dump};

    fn dump(clusters: &[(&str, u32)]) -> Dump {
        let forms = clusters.iter().map(|(name, size)| Arc::new(json!({"name": name, "size": size})));
        Dump(BTreeMap::from([("client".to_owned(), BTreeMap::from([("clusters", forms.collect())]))]))
    }

    #[test]
    fn missing_extra_and_different_resources_are_not_equal() {
        let one = dump(&[("a", 1), ("b", 1), ("c", 1)]);
        assert_eq!(one.compare(&dump(&[("a", 1), ("b", 2), ("d", 1)])).figures(), (1, 4));
        assert_eq!(one.compare(&dump(&[("a", 1), ("b", 1), ("c", 1)])).figures(), (3, 3));
        assert_eq!(one.unlike(&dump(&[("a", 1), ("b", 1)])), ["client clusters c"]);
        assert_eq!(one.names("client", "clusters"), ["a", "b", "c"]);
    }

    #[test]
    fn what_was_ever_told_counts() {
        let rounds = || vec![dump(&[("a", 1), ("b", 1)]), dump(&[("a", 2), ("b", 1)])];
        assert_eq!(Dump::nearest(rounds(), &dump(&[("a", 1)])), dump(&[("a", 1), ("b", 1)]));
        assert_eq!(Dump::nearest(rounds(), &dump(&[("a", 3)])), dump(&[("a", 2), ("b", 1)]));
    }
}
