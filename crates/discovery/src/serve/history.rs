//! What configuration objects were before they changed, for as long as a client may still refuse the change.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use model::config::{Key, Object};

/// Steps remembered. Only steps that change objects count, so a storm of endpoints does not push them out.
const REMEMBERED: usize = 256;

/// An object that changed, with what it was: `None` if it was not there.
pub type Replaced = (Key, Option<Object>);

/// The last changes of objects.
#[derive(Clone, Debug, Default)]
pub struct History {
    steps: VecDeque<Arc<Step>>,
    /// Of changes up to this epoch nothing is known any more.
    forgotten: u64,
}

#[derive(Debug)]
struct Step {
    epoch: u64,
    /// Most objects were not there before, as in a first list; those take one word.
    replaced: Box<[(Key, Option<Box<Object>>)]>,
}

impl History {
    /// The history with one more step, which led to this epoch.
    #[must_use]
    pub fn with(&self, epoch: u64, replaced: Vec<Replaced>) -> History {
        let mut next = self.clone();
        if next.steps.len() == REMEMBERED {
            next.forgotten = next.steps.pop_front().map_or(0, |step| step.epoch);
        }
        let replaced = replaced.into_iter().map(|(key, before)| (key, before.map(Box::new))).collect();
        next.steps.push_back(Arc::new(Step { epoch, replaced }));
        next
    }

    /// Objects that changed after an epoch with what they were in it, the last changed first.
    /// None when that is too long ago to tell.
    pub fn since(&self, epoch: u64) -> Option<Vec<Replaced>> {
        if epoch < self.forgotten {
            return None;
        }
        let mut found: BTreeMap<&Key, (u64, Option<&Object>)> = BTreeMap::new();
        for step in self.steps.iter().filter(|step| step.epoch > epoch) {
            for (key, before) in &step.replaced {
                found.entry(key).or_insert((step.epoch, before.as_deref())).0 = step.epoch;
            }
        }
        let mut found: Vec<_> = found.into_iter().collect();
        found.sort_by_key(|(_, (changed, _))| std::cmp::Reverse(*changed));
        Some(found.into_iter().map(|(key, (_, before))| (key.clone(), before.cloned())).collect())
    }
}

#[cfg(test)]
mod tests {
    use model::config::{Key, Kind};

    use super::{History, REMEMBERED};

    fn key(name: &str) -> Key {
        Key { kind: Kind::VirtualService, namespace: "shop".into(), name: name.into() }
    }

    fn names(history: &History, epoch: u64) -> Option<Vec<String>> {
        Some(history.since(epoch)?.into_iter().map(|(key, _)| key.name.to_string()).collect())
    }

    #[test]
    fn last_changed_comes_first_and_each_once() {
        let history = History::default();
        let history = history.with(1, vec![(key("a"), None), (key("b"), None)]).with(4, vec![(key("a"), None)]);
        assert_eq!(names(&history, 0).unwrap(), ["a", "b"]);
        assert_eq!(names(&history, 1).unwrap(), ["a"]);
        assert!(names(&history, 4).unwrap().is_empty());
    }

    #[test]
    fn what_is_forgotten_is_not_guessed() {
        let mut history = History::default();
        for epoch in 1..=REMEMBERED as u64 + 2 {
            history = history.with(epoch, vec![(key(&format!("v{epoch}")), None)]);
        }
        assert_eq!(names(&history, 1), None);
        assert_eq!(names(&history, 2).map(|names| names.len()), Some(REMEMBERED));
    }
}
