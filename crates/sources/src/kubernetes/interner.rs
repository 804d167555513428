//! Stores equal strings, label sets and other values once: pods of one Deployment have most of them in common.

use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use model::labels::{Label, Labels};
use model::names::Str;

/// Strings and label sets in use. Unused ones are removed whenever the number has doubled.
#[derive(Clone, Debug, Default)]
pub(super) struct Interner {
    texts: HashSet<Str>,
    labels: InternPool<(Str, Str)>,
    sets: HashSet<Labels>,
    due: usize,
}

const FIRST_SWEEP: usize = 4096;

impl Interner {
    pub(super) fn text(&mut self, text: &str) -> Str {
        if let Some(known) = self.texts.get(text) {
            return known.clone();
        }
        self.sweep();
        let text = Str::from(text);
        self.texts.insert(text.clone());
        text
    }

    /// The shared copy of this label.
    pub(super) fn label(&mut self, key: &str, value: &str) -> Label {
        let label = (self.text(key), self.text(value));
        self.labels.share(label)
    }

    /// The shared copy of this label set.
    pub(super) fn labels(&mut self, labels: Option<&BTreeMap<String, String>>) -> Labels {
        let Some(map) = labels else { return Labels::default() };
        let set: Labels = map.iter().map(|(key, value)| self.label(key, value)).collect();
        if let Some(known) = self.sets.get(&set) {
            return known.clone();
        }
        self.sets.insert(set.clone());
        set
    }

    fn sweep(&mut self) {
        if self.texts.len() + self.sets.len() < self.due.max(FIRST_SWEEP) {
            return;
        }
        self.sets.retain(|labels| !labels.is_unshared());
        self.texts.retain(|text| Str::strong_count(text) > Some(1));
        self.due = (self.texts.len() + self.sets.len()) * 2;
    }
}

/// Values of one type, each stored once. Unused ones are removed whenever the number has doubled.
#[derive(Clone, Debug)]
pub(super) struct InternPool<T> {
    values: HashSet<Arc<T>>,
    due: usize,
}

impl<T> Default for InternPool<T> {
    fn default() -> Self {
        InternPool { values: HashSet::new(), due: FIRST_SWEEP }
    }
}

impl<T: Eq + Hash> InternPool<T> {
    /// The shared copy of this value.
    pub(super) fn share(&mut self, value: T) -> Arc<T> {
        if let Some(known) = self.values.get(&value) {
            return Arc::clone(known);
        }
        if self.values.len() >= self.due {
            self.values.retain(|value| Arc::strong_count(value) > 1);
            self.due = FIRST_SWEEP.max(self.values.len() * 2);
        }
        let value = Arc::new(value);
        self.values.insert(Arc::clone(&value));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::{InternPool, Interner, Str};

    #[test]
    fn equal_values_are_stored_once_and_unused_ones_removed() {
        let mut pool = InternPool::default();
        let kept = pool.share(0);
        assert!(std::sync::Arc::ptr_eq(&kept, &pool.share(0)));
        (1..3 * super::FIRST_SWEEP).for_each(|i| drop(pool.share(i)));
        assert!(pool.values.len() <= super::FIRST_SWEEP && pool.values.contains(&0), "{}", pool.values.len());
    }

    #[test]
    fn equal_strings_are_stored_once_and_unused_ones_removed() {
        let mut interner = Interner::default();
        let kept = interner.text("kept");
        assert!(Str::ptr_eq(&kept, &interner.text("kept")));
        for i in 0..3 * super::FIRST_SWEEP {
            interner.text(&i.to_string());
        }
        assert!(interner.texts.len() <= super::FIRST_SWEEP, "{}", interner.texts.len());
        assert!(interner.texts.contains("kept"));
    }
}
