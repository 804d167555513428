//! Labels of objects and workloads, and label selectors.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::names::Str;

/// One label, shared by the sets that have it.
pub type Label = Arc<(Str, Str)>;

/// A set of labels, ordered by key. Workloads have mostly equal labels, so sets share single labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Labels(Arc<[Label]>);

impl Labels {
    pub fn get(&self, key: &str) -> Option<&Str> {
        let at = self.0.binary_search_by(|label| (*label.0).cmp(key)).ok()?;
        Some(&self.0[at].1)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In the order of keys.
    pub fn iter(&self) -> impl Iterator<Item = (&Str, &Str)> {
        self.0.iter().map(|label| (&label.0, &label.1))
    }

    /// The labels as stored, in the order of keys, so that another set can share them without a copy.
    pub fn shared(&self) -> impl Iterator<Item = &Label> {
        self.0.iter()
    }

    /// Whether `other` has every label of this set. An empty selector selects everything.
    pub fn is_subset_of(&self, other: &Labels) -> bool {
        self.iter().all(|(key, value)| other.get(key) == Some(value))
    }

    /// Whether this is the only reference to the set.
    pub fn is_unshared(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// These labels with one added or replaced.
    #[must_use]
    pub fn with(&self, key: impl Into<Str>, value: impl Into<Str>) -> Labels {
        self.shared().cloned().chain([Arc::new((key.into(), value.into()))]).collect()
    }
}

/// The last value of a key wins.
impl<K: Into<Str>, V: Into<Str>> FromIterator<(K, V)> for Labels {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        pairs.into_iter().map(|(k, v)| Arc::new((k.into(), v.into()))).collect()
    }
}

/// The last label of a key wins.
impl FromIterator<Label> for Labels {
    fn from_iter<I: IntoIterator<Item = Label>>(labels: I) -> Self {
        let mut ordered: Vec<Label> = labels.into_iter().collect();
        ordered.reverse();
        ordered.sort_by(|a, b| a.0.cmp(&b.0));
        ordered.dedup_by(|later, first| later.0 == first.0);
        Labels(ordered.into())
    }
}

impl From<&BTreeMap<String, String>> for Labels {
    fn from(map: &BTreeMap<String, String>) -> Self {
        map.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect()
    }
}

/// Whether a selector matches these labels.
pub fn selects(selector: &BTreeMap<String, String>, labels: &Labels) -> bool {
    selector.iter().all(|(key, value)| labels.get(key).is_some_and(|v| **v == **value))
}

#[cfg(test)]
mod tests {
    use super::Labels;

    #[test]
    fn labels_are_ordered_and_the_last_value_wins() {
        let labels: Labels = [("b", "1"), ("a", "2"), ("b", "3")].into_iter().collect();
        let pairs: Vec<(&str, &str)> = labels.iter().map(|(k, v)| (&**k, &**v)).collect();
        assert_eq!(pairs, [("a", "2"), ("b", "3")]);
        assert_eq!(labels.get("b").map(|v| &**v), Some("3"));
        assert_eq!(labels.get("c"), None);
        assert_eq!(labels.with("a", "4"), [("a", "4"), ("b", "3")].into_iter().collect());
    }
}
