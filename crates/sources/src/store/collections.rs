//! The objects that a config server has sent, by collection. Converts resources into changes: only differences are
//! passed on, and an invalid object leaves the last valid one of its name in use.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::time::Duration;

use api::istio::mcp::v1alpha1::Resource;
use model::change::Change;
use model::config::validate::validate;
use model::config::{Key, Kind, Object, envelope};
use model::names::Str;
use model::problem::{Problem, Severity, Subject};
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::source::{ChangeSender, SourceError};

/// Servers may not respond for collections that they do not know. These are waited for this long after the first
/// response.
const GRACE: Duration = Duration::from_secs(10);
const KEEPING: &str = "; keeping the last good version";

/// All collections of one server.
#[derive(Debug)]
pub(super) struct Collections {
    /// The server's name, for messages.
    from: Str,
    by_name: BTreeMap<Str, CollectionState>,
    published_problems: Vec<Problem>,
    /// Until then the first response of each collection is waited for.
    grace: Option<Instant>,
    is_synced: bool,
}

/// One collection, by resource name.
#[derive(Debug)]
struct CollectionState {
    kind: Kind,
    is_answered: bool,
    objects: BTreeMap<String, Object>,
    problems: BTreeMap<String, Vec<Problem>>,
}

impl Collections {
    pub(super) fn new(from: Str, names: impl IntoIterator<Item = (Str, Kind)>) -> Collections {
        let collection_state = |(name, kind)| {
            (name, CollectionState { kind, is_answered: false, objects: BTreeMap::new(), problems: BTreeMap::new() })
        };
        let by_name = names.into_iter().map(collection_state).collect();
        Collections { from, by_name, published_problems: Vec::new(), grace: None, is_synced: false }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &Str> {
        self.by_name.keys()
    }

    /// Collections without a response.
    fn unanswered(&self) -> Vec<&str> {
        self.by_name
            .iter()
            .filter(|(_, collection_state)| !collection_state.is_answered)
            .map(|(name, _)| &**name)
            .collect()
    }

    /// Waits for the server's next response. If the grace period ends first, the source is in sync without the
    /// collections that have none.
    pub(super) async fn next<T>(
        &mut self,
        response: impl Future<Output = T>,
        sender: &ChangeSender,
    ) -> Result<T, SourceError> {
        let mut response = pin!(response);
        if let Some(until) = self.grace.filter(|_| !self.is_synced) {
            match tokio::time::timeout_at(until, &mut response).await {
                Ok(response) => return Ok(response),
                Err(_) => self.publish(Vec::new(), sender).await?,
            }
        }
        Ok(response.await)
    }

    /// Records that the server responded.
    pub(super) fn responded(&mut self, sender: &ChangeSender, backoff: &mut Backoff) {
        self.grace.get_or_insert_with(|| Instant::now() + GRACE);
        backoff.reset();
        sender.health().mark_reachable();
    }

    /// Sends changes with the current problems, and `Synced` once all collections are complete.
    pub(super) async fn publish(&mut self, mut changes: Vec<Change>, sender: &ChangeSender) -> Result<(), SourceError> {
        let unanswered = self.unanswered();
        let is_late = self.grace.is_some_and(|until| until <= Instant::now());
        let is_complete = unanswered.is_empty() || is_late;
        let complaint = (is_late && !unanswered.is_empty()).then(|| {
            let message = format!("the server did not respond for {}: treated as empty", unanswered.join(", "));
            Problem::warning(Subject::Source(self.from.clone()), message)
        });
        self.publish_problems(&mut changes, complaint);
        if is_complete && !std::mem::replace(&mut self.is_synced, true) {
            changes.push(Change::Synced);
        }
        sender.send(changes).await
    }

    /// The versions of the known objects of a collection, by name.
    pub(super) fn versions(&self, collection: &str) -> BTreeMap<String, String> {
        let objects = self.by_name.get(collection).into_iter().flat_map(|collection_state| &collection_state.objects);
        objects.map(|(name, object)| (name.clone(), object.meta.resource_version.to_string())).collect()
    }

    /// Replaces a whole collection.
    pub(super) fn replace(&mut self, collection: &str, all: &[Resource]) -> Vec<Change> {
        let Some(collection_state) = self.by_name.get(collection) else { return Vec::new() };
        let listed: BTreeSet<&str> = all.iter().map(name_of).collect();
        let known = collection_state.objects.keys().chain(collection_state.problems.keys());
        let gone: BTreeSet<String> = known.filter(|name| !listed.contains(name.as_str())).cloned().collect();
        self.update(collection, all, gone.iter().map(String::as_str))
    }

    /// Applies changes to a collection.
    pub(super) fn update<'a>(
        &mut self,
        collection: &str,
        changed: &[Resource],
        removed: impl IntoIterator<Item = &'a str>,
    ) -> Vec<Change> {
        let mut changes = Vec::new();
        let from = self.from.clone();
        let Some(collection_state) = self.by_name.get_mut(collection) else { return changes };
        collection_state.is_answered = true;
        let mut gone = Vec::new();
        for name in removed {
            collection_state.problems.remove(name);
            gone.extend(collection_state.objects.remove(name).map(|object| object.key()));
        }
        for resource in changed {
            changes.extend(collection_state.put(resource, &from).map(Change::Applied));
        }
        changes.extend(gone.into_iter().map(|key| self.without(key)));
        changes
    }

    /// The change after a removal: another collection may have an object with the same key.
    fn without(&self, key: Key) -> Change {
        let others = self.by_name.values().filter(|collection_state| collection_state.kind == key.kind);
        let mut objects = others.flat_map(|collection_state| collection_state.objects.values());
        objects.find(|object| object.key() == key).cloned().map_or(Change::Deleted(key), Change::Applied)
    }

    /// Adds the current problems to the changes if they differ from the published ones.
    fn publish_problems(&mut self, changes: &mut Vec<Change>, further: Option<Problem>) {
        let of_objects =
            self.by_name.values().flat_map(|collection_state| collection_state.problems.values().flatten().cloned());
        let problems: Vec<Problem> = of_objects.chain(further).collect();
        if problems != self.published_problems {
            self.published_problems.clone_from(&problems);
            changes.push(Change::Problems(problems));
        }
    }
}

impl CollectionState {
    /// Stores the object of a resource. Returns it if it is valid and changed.
    fn put(&mut self, resource: &Resource, from: &Str) -> Option<Object> {
        let name = name_of(resource).to_owned();
        let about =
            || Subject::Document { kind: self.kind.as_str().into(), namespace: None, name: name.as_str().into() };
        let (object, mut problems) = match envelope::open(self.kind, resource, from) {
            Ok(object) => (Some(object.clone()), validate(&object)),
            Err(reason) => {
                let problem = Problem::error(about(), format!("could not read resource {name:?} of {from}: {reason}"));
                (None, vec![problem])
            }
        };
        let is_bad = problems.iter().any(|problem| problem.severity == Severity::Error);
        if is_bad && self.objects.contains_key(&name) {
            for problem in problems.iter_mut().filter(|problem| problem.severity == Severity::Error) {
                problem.message = format!("{}{KEEPING}", problem.message).into();
            }
        }
        if problems.is_empty() {
            self.problems.remove(&name);
        } else {
            self.problems.insert(name.clone(), problems);
        }
        let object = object.filter(|_| !is_bad)?;
        let is_new = self.objects.get(&name).is_none_or(|known| !known.means_the_same_as(&object));
        self.objects.insert(name, object.clone());
        is_new.then_some(object)
    }
}

fn name_of(resource: &Resource) -> &str {
    resource.metadata.as_ref().map_or("", |metadata| metadata.name.as_str())
}

#[cfg(test)]
mod tests {
    use api::istio::mcp::v1alpha1::Resource;
    use model::change::Change;
    use model::config::{Kind, envelope, parse};

    use super::Collections;

    fn rule(name: &str, host: &str) -> Resource {
        let text = format!(
            "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{host: {host:?}}}\n"
        );
        envelope::seal(&parse::documents(&text, "").objects[0]).unwrap()
    }

    fn published(changes: &[Change]) -> Vec<String> {
        let text = |change: &Change| match change {
            Change::Applied(object) => format!("+{}", object.meta.name),
            Change::Deleted(key) => format!("-{}", key.name),
            other => format!("{other:?}"),
        };
        changes.iter().map(text).collect()
    }

    fn collections(names: &[&str]) -> Collections {
        Collections::new("xds://a".into(), names.iter().map(|name| ((*name).into(), Kind::DestinationRule)))
    }

    #[test]
    fn only_differences_are_published() {
        let mut all = collections(&["rules"]);
        assert_eq!(all.unanswered(), ["rules"]);
        assert_eq!(published(&all.replace("rules", &[rule("a", "a.b"), rule("c", "c.d")])), ["+a", "+c"]);
        assert!(all.unanswered().is_empty());
        assert!(all.replace("rules", &[rule("a", "a.b"), rule("c", "c.d")]).is_empty());
        assert_eq!(published(&all.replace("rules", &[rule("a", "a.x")])), ["+a", "-c"]);
        assert_eq!(published(&all.update("rules", &[rule("e", "e.f")], ["shop/a"])), ["+e", "-a"]);
        assert!(all.replace("unknown", &[rule("a", "a.b")]).is_empty());
    }

    #[test]
    fn an_invalid_object_is_reported_and_the_last_valid_one_kept() {
        let mut all = collections(&["rules"]);
        all.replace("rules", &[rule("a", "a.b")]);
        assert!(all.replace("rules", &[rule("a", ""), rule("b", "")]).is_empty());
        let mut changes = Vec::new();
        all.publish_problems(&mut changes, None);
        let [Change::Problems(problems)] = &changes[..] else { panic!("{changes:?}") };
        let kept = problems.iter().filter(|p| p.message.ends_with(super::KEEPING)).count();
        assert_eq!((kept, problems.iter().any(|p| p.about.to_string().contains("shop/b"))), (1, true), "{problems:?}");
        assert_eq!(published(&all.replace("rules", &[])), ["-a"]);
        changes.clear();
        all.publish_problems(&mut changes, None);
        assert!(matches!(&changes[..], [Change::Problems(none)] if none.is_empty()), "{changes:?}");
    }

    #[test]
    fn an_object_of_two_collections_is_deleted_with_the_last() {
        let mut all = collections(&["one", "two"]);
        all.replace("one", &[rule("a", "a.b")]);
        all.replace("two", &[rule("a", "a.b")]);
        assert_eq!(published(&all.replace("one", &[])), ["+a"]);
        assert_eq!(published(&all.replace("two", &[])), ["-a"]);
    }
}
