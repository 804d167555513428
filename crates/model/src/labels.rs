//! Labels of objects and workloads, shared and ordered, and the selector rule over them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::names::Text;

/// An ordered, shared set of labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Labels(Arc<BTreeMap<Text, Text>>);

impl Labels {
    pub fn get(&self, key: &str) -> Option<&Text> {
        self.0.get(key)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Text, &Text)> {
        self.0.iter()
    }

    /// Whether every label here stands in `other` too; as a selector, no labels select everything.
    pub fn is_subset_of(&self, other: &Labels) -> bool {
        self.0.iter().all(|(key, value)| other.get(key) == Some(value))
    }

    /// Whether nobody else holds this very set.
    pub fn is_unshared(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// These labels with one set or replaced.
    #[must_use]
    pub fn with(&self, key: impl Into<Text>, value: impl Into<Text>) -> Labels {
        let mut map = BTreeMap::clone(&self.0);
        map.insert(key.into(), value.into());
        Labels(Arc::new(map))
    }
}

impl<K: Into<Text>, V: Into<Text>> FromIterator<(K, V)> for Labels {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        Labels(Arc::new(pairs.into_iter().map(|(k, v)| (k.into(), v.into())).collect()))
    }
}

impl From<&BTreeMap<String, String>> for Labels {
    fn from(map: &BTreeMap<String, String>) -> Self {
        map.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect()
    }
}

/// Whether a selector given as a plain map selects a workload with these labels.
pub fn selects(selector: &BTreeMap<String, String>, labels: &Labels) -> bool {
    selector.iter().all(|(key, value)| labels.get(key).is_some_and(|v| **v == **value))
}
