//! Earlier versions of changed configuration objects, kept as long as a connected client may still reject the change.
//! All snapshots share one history; it is shortened when clients accept changes or disconnect.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use model::config::{Key, Kind, Meta, Object};
use parking_lot::{Mutex, MutexGuard};
use tracing::info;

/// Steps kept. Only steps that change objects count, so many changes of endpoints do not displace them.
const MOST_STEPS: usize = 256;

/// Bytes of earlier objects kept. A client that never answers keeps everything since it connected; this limit is 256
/// edits of an object of 32 KB. Parsed objects would need 50 to 200 MB.
const MOST_BYTES: usize = 8 << 20;

/// A changed object with its earlier version: `None` if it did not exist.
pub type Replaced = (Key, Option<Object>);

/// The last changes of objects.
#[derive(Debug, Default)]
pub struct History(Mutex<Steps>);

#[derive(Debug, Default)]
struct Steps {
    steps: VecDeque<Step>,
    bytes: usize,
    /// Changes up to this snapshot number are no longer known.
    forgotten: u64,
    /// Snapshot numbers that connected clients have accepted, each with the number of clients.
    accepted: BTreeMap<u64, usize>,
    /// The limit was reported since the history was last empty.
    is_reported: bool,
}

#[derive(Debug)]
struct Step {
    number: u64,
    bytes: usize,
    replaced: Box<[(Key, Former)]>,
}

/// An earlier object. Encoded it needs a twentieth of the memory, and its size is known.
#[derive(Clone, Debug)]
pub(crate) enum Former {
    /// It did not exist, as most objects of a first list.
    Absent,
    Encoded(Arc<(Arc<Meta>, Box<[u8]>)>),
    /// An object of a kind without a message.
    Whole(Box<Object>),
}

impl History {
    /// Adds the step that led to this snapshot. Without connected clients it is dropped at once.
    pub fn record<'a>(&self, number: u64, replaced: impl Iterator<Item = (&'a Key, Option<&'a Object>)>) {
        if self.lock().is_forgotten(number) {
            return;
        }
        // Encoded outside the lock, which clients take with every answer.
        let replaced: Box<[(Key, Former)]> = replaced.map(|(key, before)| (key.clone(), Former::of(before))).collect();
        let bytes = replaced.iter().map(|(_, former)| former.bytes()).sum();
        let dropped = {
            let mut steps = self.lock();
            steps.bytes += bytes;
            steps.steps.push_back(Step { number, bytes, replaced });
            steps.shorten()
        };
        drop(dropped);
    }

    /// Objects that changed after a snapshot and up to another, with their earlier versions, the last changed first.
    /// `None` if the history does not reach back that far.
    pub fn between(&self, number: u64, last: u64) -> Option<Vec<Replaced>> {
        // Decoded outside the lock.
        let found = self.lock().between(number, last)?;
        let object = |(key, former): (Key, Former)| (key.clone(), former.object(key.kind));
        Some(found.into_iter().map(object).collect())
    }

    /// Keeps changes after this snapshot for a client that connects now.
    pub fn follow(self: &Arc<History>, number: u64) -> Follower {
        *self.lock().accepted.entry(number).or_default() += 1;
        Follower { history: self.clone(), accepted: number }
    }

    /// Moves a client from one snapshot to another, or removes it.
    fn moved(&self, from: u64, to: Option<u64>) {
        let dropped = {
            let mut steps = self.lock();
            if let Some(number) = to {
                *steps.accepted.entry(number).or_default() += 1;
            }
            if let Some(clients) = steps.accepted.get_mut(&from) {
                *clients -= 1;
                if *clients == 0 {
                    steps.accepted.remove(&from);
                }
            }
            steps.shorten()
        };
        // Dropped after the lock is released.
        drop(dropped);
    }

    /// Bytes of earlier objects kept.
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    fn lock(&self) -> MutexGuard<'_, Steps> {
        self.0.lock()
    }
}

impl Steps {
    /// Whether a change need not be recorded, because no connected client can reject it.
    fn is_forgotten(&mut self, number: u64) -> bool {
        let is_forgotten = self.accepted.is_empty();
        if is_forgotten {
            self.forgotten = number;
        }
        is_forgotten
    }

    fn between(&self, number: u64, last: u64) -> Option<Vec<(Key, Former)>> {
        if number < self.forgotten {
            return None;
        }
        let mut found: BTreeMap<&Key, (u64, &Former)> = BTreeMap::new();
        for step in self.steps.iter().filter(|step| step.number > number && step.number <= last) {
            for (key, before) in &step.replaced {
                found.entry(key).or_insert((step.number, before)).0 = step.number;
            }
        }
        let mut found: Vec<_> = found.into_iter().collect();
        found.sort_by_key(|(_, (changed, _))| std::cmp::Reverse(*changed));
        Some(found.into_iter().map(|(key, (_, former))| (key.clone(), former.clone())).collect())
    }

    /// Drops the oldest steps: those that all clients have accepted, and those above the limits.
    fn shorten(&mut self) -> Vec<Step> {
        let accepted = self.accepted.keys().next().copied().unwrap_or(u64::MAX);
        let mut dropped = Vec::new();
        while let Some(first) = self.steps.front() {
            let is_over = self.bytes > MOST_BYTES || self.steps.len() > MOST_STEPS;
            if first.number > accepted && !is_over {
                break;
            }
            if first.number > accepted && !std::mem::replace(&mut self.is_reported, true) {
                info!(
                    number = first.number,
                    "a client has not answered for long; dropping earlier versions of changed objects, so if it rejects \
                     one, only its message shows which"
                );
            }
            let Some(step) = self.steps.pop_front() else { break };
            self.bytes -= step.bytes;
            self.forgotten = step.number;
            dropped.push(step);
        }
        self.is_reported &= !self.steps.is_empty();
        dropped
    }
}

impl Former {
    pub(crate) fn of(object: Option<&Object>) -> Former {
        let Some(object) = object else { return Former::Absent };
        match object.spec.encode() {
            Some(bytes) => Former::Encoded(Arc::new((object.meta.clone(), bytes.into()))),
            None => Former::Whole(Box::new(object.clone())),
        }
    }

    pub(crate) fn object(&self, kind: Kind) -> Option<Object> {
        match self {
            Former::Absent => None,
            Former::Encoded(encoded) => {
                let spec = kind.decode(&encoded.1).expect("these bytes were encoded from a spec of this kind");
                Some(Object { meta: encoded.0.clone(), spec })
            }
            Former::Whole(object) => Some(Object::clone(object)),
        }
    }

    /// Approximate bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        /// Memory of parsed objects as a multiple of their JSON.
        const PARSED: usize = 8;
        let own = size_of::<(Key, Former)>();
        own + match self {
            Former::Absent => 0,
            Former::Encoded(encoded) => meta_bytes(&encoded.0) + encoded.1.len(),
            Former::Whole(object) => meta_bytes(&object.meta) + object.spec.to_json().to_string().len() * PARSED,
        }
    }
}

fn meta_bytes(meta: &Meta) -> usize {
    /// Bytes of a string and its entry in a map.
    const TEXT: usize = 64;
    let labels = meta.labels.iter().map(|(key, value)| key.len() + value.len() + TEXT);
    let annotations = meta.annotations.iter().map(|(key, value)| key.len() + value.len() + TEXT);
    size_of::<Meta>() + labels.chain(annotations).sum::<usize>()
}

/// A connected client's position in the history: changes after the snapshot it has accepted are kept for it.
#[derive(Debug)]
pub struct Follower {
    history: Arc<History>,
    accepted: u64,
}

impl Follower {
    /// The client has accepted everything up to this snapshot.
    pub fn accepts(&mut self, number: u64) {
        if number != self.accepted {
            self.history.moved(self.accepted, Some(number));
            self.accepted = number;
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.history.moved(self.accepted, None);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use api::istio::networking::v1alpha3::VirtualService;
    use model::config::{Key, Kind, Meta, Object, Spec};
    use model::hashed::Hashed;

    use super::{History, MOST_BYTES, MOST_STEPS};

    fn key(name: &str) -> Key {
        Key { kind: Kind::VirtualService, namespace: "shop".into(), name: name.into() }
    }

    fn object(name: &str, host: &str) -> Object {
        let meta = Meta { name: name.into(), namespace: "shop".into(), ..Meta::default() };
        let spec = VirtualService { hosts: vec![host.to_owned()], ..VirtualService::default() };
        Object { meta: Arc::new(meta), spec: Spec::VirtualService(Hashed::from_message(spec)) }
    }

    /// Records that these objects appeared.
    fn record(history: &History, number: u64, names: &[&str]) {
        let keys: Vec<Key> = names.iter().map(|name| key(name)).collect();
        history.record(number, keys.iter().map(|key| (key, None)));
    }

    fn names(history: &History, number: u64, last: u64) -> Option<Vec<String>> {
        Some(history.between(number, last)?.into_iter().map(|(key, _)| key.name.to_string()).collect())
    }

    #[test]
    fn last_changed_comes_first_and_each_once() {
        let history = Arc::new(History::default());
        let _client = history.follow(0);
        record(&history, 1, &["a", "b"]);
        record(&history, 4, &["a"]);
        record(&history, 5, &["c"]);
        assert_eq!(names(&history, 0, 4).unwrap(), ["a", "b"]);
        assert_eq!(names(&history, 1, 4).unwrap(), ["a"]);
        assert!(names(&history, 4, 4).unwrap().is_empty());
        assert_eq!(names(&history, 4, 5).unwrap(), ["c"]);
    }

    #[test]
    fn objects_come_back_as_they_were() {
        let history = Arc::new(History::default());
        let _client = history.follow(0);
        let before = object("a", "old.example");
        history.record(1, [(&key("a"), Some(&before))].into_iter());
        history.record(2, [(&key("a"), Some(&object("a", "newer.example")))].into_iter());
        assert_eq!(history.between(0, 2).unwrap(), [(key("a"), Some(before))]);
    }

    #[test]
    fn what_is_forgotten_is_not_guessed() {
        let history = Arc::new(History::default());
        let _client = history.follow(0);
        let last = MOST_STEPS as u64 + 2;
        for number in 1..=last {
            record(&history, number, &[&format!("v{number}")]);
        }
        assert_eq!(names(&history, 1, last), None);
        assert_eq!(names(&history, 2, last).map(|names| names.len()), Some(MOST_STEPS));
    }

    #[test]
    fn hole_03_nothing_is_kept_without_a_client() {
        let history = Arc::new(History::default());
        let large = object("a", &"x".repeat(1 << 20));
        history.record(1, [(&key("a"), Some(&large))].into_iter());
        assert_eq!((history.bytes(), names(&history, 0, 1)), (0, None));
        let client = history.follow(1);
        history.record(2, [(&key("a"), Some(&large))].into_iter());
        assert!(history.bytes() > 1 << 20);
        drop(client);
        assert_eq!((history.bytes(), names(&history, 1, 2)), (0, None));
    }

    #[test]
    fn hole_03_what_all_clients_accepted_is_dropped() {
        let history = Arc::new(History::default());
        let (mut quick, mut slow) = (history.follow(0), history.follow(0));
        record(&history, 1, &["a"]);
        record(&history, 2, &["b"]);
        quick.accepts(2);
        assert_eq!(names(&history, 0, 2).unwrap(), ["b", "a"]);
        slow.accepts(1);
        assert_eq!(names(&history, 0, 2), None);
        assert_eq!(names(&history, 1, 2).unwrap(), ["b"]);
        slow.accepts(2);
        assert_eq!(history.bytes(), 0);
    }

    #[test]
    fn hole_03_a_client_that_never_answers_keeps_a_bounded_number_of_bytes() {
        let history = Arc::new(History::default());
        let _silent = history.follow(0);
        let large = object("a", &"x".repeat(1 << 20));
        for number in 1..=100 {
            history.record(number, [(&key("a"), Some(&large))].into_iter());
            assert!(history.bytes() <= MOST_BYTES);
        }
        assert_eq!(names(&history, 0, 100), None);
        assert_eq!(names(&history, 99, 100).unwrap(), ["a"]);
        let huge = object("b", &"x".repeat(MOST_BYTES));
        history.record(101, [(&key("b"), Some(&huge))].into_iter());
        assert_eq!((history.bytes(), names(&history, 100, 101)), (0, None));
    }
}
