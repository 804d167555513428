//! Config objects of one cluster, parsed and validated. Objects that fail validation are used anyway: upstream uses
//! everything that an API server stores.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use model::change::Change;
use model::config::parse::{self, Parsed};
use model::config::validate::validate;
use model::config::{Key, Object};
use model::names::{Namespace, Str};
use model::problem::{FileLocation, Problem, Subject};
use serde_json::Value;

/// The identity of a document: group and kind, namespace, name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DocumentId {
    /// `group/Kind`: an object has the same identity in every version.
    pub(super) kind: Str,
    pub(super) namespace: Namespace,
    pub(super) name: Str,
}

impl DocumentId {
    pub(super) fn of(json: &Value) -> DocumentId {
        let word = |json: &Value, key: &str| json.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let meta = json.get("metadata").unwrap_or(&Value::Null);
        DocumentId {
            kind: kind_id(&word(json, "apiVersion"), &word(json, "kind")),
            namespace: word(meta, "namespace").into(),
            name: word(meta, "name").into(),
        }
    }
}

/// `group/Kind`, without the version.
pub(super) fn kind_id(api_version: &str, kind: &str) -> Str {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    format!("{group}/{kind}").into()
}

/// All documents of a cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct ConfigDocuments {
    all: BTreeMap<DocumentId, ConfigDocument>,
    dirty: BTreeSet<DocumentId>,
    /// Objects that were sent, by document.
    published: BTreeMap<DocumentId, Vec<Key>>,
    problems_changed: bool,
    /// Problems that belong to no document, by topic.
    other_problems: BTreeMap<&'static str, Vec<Problem>>,
}

#[derive(Clone, Debug, Default)]
struct ConfigDocument {
    objects: Vec<Object>,
    problems: Vec<Problem>,
}

impl ConfigDocuments {
    /// Adds or replaces a document.
    pub(super) fn put(&mut self, json: &Value, place: &FileLocation) {
        let id = DocumentId::of(json);
        let document = read(json, place, &id);
        let before = self.all.get(&id);
        let same = before.is_some_and(|before| {
            before.objects.len() == document.objects.len()
                && before.objects.iter().zip(&document.objects).all(|(a, b)| a.means_the_same_as(b))
        });
        self.problems_changed |= before.map_or(&[][..], |b| &b.problems) != document.problems;
        self.all.insert(id.clone(), document);
        if !same {
            self.dirty.insert(id);
        }
    }

    pub(super) fn remove(&mut self, id: &DocumentId) {
        if let Some(gone) = self.all.remove(id) {
            self.problems_changed |= !gone.problems.is_empty();
            self.dirty.insert(id.clone());
        }
    }

    pub(super) fn clear(&mut self) {
        for id in self.all.keys().cloned().collect::<Vec<_>>() {
            self.remove(&id);
        }
    }

    /// Replaces the problems of a topic that belong to no document.
    pub(super) fn set_problems(&mut self, topic: &'static str, problems: Vec<Problem>) {
        let before = self.other_problems.insert(topic, problems).unwrap_or_default();
        self.problems_changed |= self.other_problems.get(topic) != Some(&before);
    }

    /// Whether a document may be added if there may be at most `most`.
    pub(super) fn has_room(&self, id: &DocumentId, most: usize) -> bool {
        self.all.len() < most || self.all.contains_key(id)
    }

    /// Documents of a kind.
    pub(super) fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a DocumentId> {
        self.all.keys().filter(move |id| *id.kind == *kind)
    }

    /// Makes the next `changes` decide again about every document of a namespace.
    pub(super) fn touch(&mut self, namespace: &Namespace) {
        self.dirty.extend(self.all.keys().filter(|id| id.namespace == *namespace).cloned());
    }

    pub(super) fn touch_all(&mut self) {
        self.dirty.extend(self.all.keys().cloned());
        self.problems_changed = true;
    }

    /// Adds the changes since the last call, of objects as `read` returns them.
    pub(super) fn changes(&mut self, read: impl Fn(&Object) -> Option<Object>, changes: &mut Vec<Change>) {
        for id in std::mem::take(&mut self.dirty) {
            let objects: Vec<Object> =
                self.all.get(&id).into_iter().flat_map(|d| &d.objects).filter_map(&read).collect();
            let keys: Vec<Key> = objects.iter().map(Object::key).collect();
            let before = match keys.is_empty() {
                true => self.published.remove(&id),
                false => self.published.insert(id, keys.clone()),
            };
            changes.extend(before.into_iter().flatten().filter(|key| !keys.contains(key)).map(Change::Deleted));
            changes.extend(objects.into_iter().map(Change::Applied));
        }
        if std::mem::take(&mut self.problems_changed) {
            let problems = self.all.values().flat_map(|document| &document.problems);
            changes.push(Change::Problems(problems.chain(self.other_problems.values().flatten()).cloned().collect()));
        }
    }
}

fn read(json: &Value, place: &FileLocation, id: &DocumentId) -> ConfigDocument {
    // A panic in the parser must cost this object only.
    let parsed = catch_unwind(AssertUnwindSafe(|| {
        let mut parsed = parse::value(json, place);
        parsed.problems.extend(parsed.objects.iter().flat_map(validate).collect::<Vec<_>>());
        parsed
    }));
    let Parsed { objects, problems } = parsed.unwrap_or_else(|_| Parsed {
        objects: Vec::new(),
        problems: vec![Problem::error(
            Subject::Document { kind: id.kind.clone(), namespace: Some(id.namespace.clone()), name: id.name.clone() },
            "could not parse the object: the parser panicked",
        )],
    });
    let kept = |mut object: Object| {
        Arc::make_mut(&mut object.meta).keeps_status = true;
        object
    };
    ConfigDocument { objects: objects.into_iter().map(kept).collect(), problems }
}
