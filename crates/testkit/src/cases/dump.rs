//! All resources of some proxies on one server, and the comparison of two servers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::fetch::{CanonicalForms, FetchedResources, ResourceLookup, fetch};
use super::outcome::{Outcome, compare};
use super::{CaseProxy, KINDS, report};
use crate::canonical;

/// The resources of each proxy, in canonical form.
#[derive(Debug, Default, PartialEq)]
pub struct Dump(BTreeMap<String, FetchedResources>);

impl Dump {
    /// Fetches everything that Envoys with these nodes would subscribe to.
    pub fn take(answers: &ResourceLookup, proxies: &[CaseProxy]) -> Dump {
        let forms = CanonicalForms::default();
        Dump(proxies.iter().map(|proxy| (proxy.name.clone(), fetch(answers, proxy, &forms))).collect())
    }

    /// Names of a proxy's resources of a type.
    pub fn names(&self, proxy: &str, kind: &str) -> Vec<&str> {
        self.of(proxy, kind).iter().map(|resource| canonical::name(resource)).collect()
    }

    /// Combines several rounds of a server whose output is not deterministic: for each resource the version that equals
    /// `other`'s if it occurred in any round, else the last version.
    pub fn nearest(rounds: Vec<Dump>, other: &Dump) -> Dump {
        let mut rounds = rounds.into_iter().rev();
        let Some(mut last) = rounds.next() else { return Dump::default() };
        let earlier: Vec<Dump> = rounds.collect();
        for (proxy, got) in &mut last.0 {
            for (kind, resources) in got {
                for resource in resources {
                    let version =
                        |dump: &Dump| dump.of(proxy, kind).iter().find(|r| is_named_like(r, resource)).cloned();
                    let wanted = version(other);
                    if wanted.is_some() && earlier.iter().any(|round| version(round) == wanted) {
                        *resource = wanted.unwrap_or_default();
                    }
                }
            }
        }
        last
    }

    /// Resources that differ, as `proxy type name`.
    pub fn differing(&self, other: &Dump) -> Vec<String> {
        let Comparison(outcomes) = self.compare(other);
        let faults = outcomes.iter().flat_map(|outcome| &outcome.faults);
        faults.map(|fault| format!("{} {} {}", fault.proxy, fault.kind, fault.name)).collect()
    }

    fn of(&self, proxy: &str, kind: &str) -> &[Arc<Value>] {
        self.0.get(proxy).and_then(|got| got.get(kind)).map_or(&[], Vec::as_slice)
    }

    /// Compares with the resources of another server.
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

/// Comparison of two servers, by proxy.
pub struct Comparison(Vec<Outcome>);

impl Comparison {
    /// Number of equal resources, and of all resources.
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
        assert_eq!(one.differing(&dump(&[("a", 1), ("b", 1)])), ["client clusters c"]);
        assert_eq!(one.names("client", "clusters"), ["a", "b", "c"]);
    }

    #[test]
    fn a_version_of_any_round_counts() {
        let rounds = || vec![dump(&[("a", 1), ("b", 1)]), dump(&[("a", 2), ("b", 1)])];
        assert_eq!(Dump::nearest(rounds(), &dump(&[("a", 1)])), dump(&[("a", 1), ("b", 1)]));
        assert_eq!(Dump::nearest(rounds(), &dump(&[("a", 3)])), dump(&[("a", 2), ("b", 1)]));
    }
}
