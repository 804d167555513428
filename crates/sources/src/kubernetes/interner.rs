//! One copy of every text and label set that many objects share: pods of one Deployment differ in little.

use std::collections::{BTreeMap, HashSet};

use model::labels::Labels;
use model::names::Text;

/// Texts and label sets in use. What only the interner still holds goes when it has doubled.
#[derive(Clone, Debug, Default)]
pub(super) struct Interner {
    texts: HashSet<Text>,
    sets: HashSet<Labels>,
    due: usize,
}

const FIRST_SWEEP: usize = 4096;

impl Interner {
    pub(super) fn text(&mut self, text: &str) -> Text {
        if let Some(known) = self.texts.get(text) {
            return known.clone();
        }
        self.sweep();
        let text = Text::from(text);
        self.texts.insert(text.clone());
        text
    }

    /// A shared set of these labels, its words shared too.
    pub(super) fn labels(&mut self, labels: Option<&BTreeMap<String, String>>) -> Labels {
        let Some(map) = labels else { return Labels::default() };
        let pairs: Vec<(Text, Text)> = map.iter().map(|(k, v)| (self.text(k), self.text(v))).collect();
        self.set(pairs.into_iter().collect())
    }

    /// The one copy of this set.
    pub(super) fn set(&mut self, labels: Labels) -> Labels {
        if let Some(known) = self.sets.get(&labels) {
            return known.clone();
        }
        self.sets.insert(labels.clone());
        labels
    }

    fn sweep(&mut self) {
        if self.texts.len() + self.sets.len() < self.due.max(FIRST_SWEEP) {
            return;
        }
        self.sets.retain(|labels| !labels.is_unshared());
        self.texts.retain(|text| std::sync::Arc::strong_count(text) > 1);
        self.due = (self.texts.len() + self.sets.len()) * 2;
    }
}

#[cfg(test)]
mod tests {
    use super::Interner;

    #[test]
    fn equal_words_are_kept_once_and_unused_ones_go() {
        let mut interner = Interner::default();
        let kept = interner.text("kept");
        assert!(std::sync::Arc::ptr_eq(&kept, &interner.text("kept")));
        for i in 0..3 * super::FIRST_SWEEP {
            interner.text(&i.to_string());
        }
        assert!(interner.texts.len() <= super::FIRST_SWEEP, "{}", interner.texts.len());
        assert!(interner.texts.contains("kept"));
    }
}
