//! Watches: the events of one resource as lines of JSON. A watch reads from the cache and stores no events.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::error::ApiError;
use crate::object;
use crate::output::OutputForm;
use crate::resource::ResourceInfo;
use crate::selector::{FieldSelector, LabelConditions};
use crate::store::cache::{Objects, WatchCache};
use crate::store::{ObjectKey, Revision, StoreEvent, StoredObject};

/// The interval of bookmarks, as in upstream.
const BOOKMARKS: Duration = Duration::from_secs(60);

/// Which objects a list or a watch has.
#[derive(Clone, Debug)]
pub(crate) struct ObjectFilter {
    pub(crate) resource: &'static ResourceInfo,
    /// Empty for all namespaces.
    pub(crate) namespace: String,
    pub(crate) labels: LabelConditions,
    pub(crate) fields: FieldSelector,
}

impl ObjectFilter {
    pub(crate) fn matches(&self, stored: &StoredObject) -> bool {
        let key = &stored.key;
        if *key.resource != *self.resource.id || !(self.namespace.is_empty() || *key.namespace == *self.namespace) {
            return false;
        }
        if self.fields.name().is_some_and(|name| *key.name != *name) {
            return false;
        }
        if !self.labels.is_empty() && !self.labels.matches(&object::stored_metadata(stored)) {
            return false;
        }
        self.fields.is_empty() || self.fields.matches(&object::value(stored, self.resource, "v1"))
    }

    /// The matching objects after a key, ordered by namespace and name.
    pub(crate) fn select<'a>(
        &'a self,
        objects: &'a Objects,
        after: Option<&ObjectKey>,
    ) -> impl Iterator<Item = &'a Arc<StoredObject>> {
        let start = ObjectKey::new(&self.resource.id, &self.namespace, "");
        let start = after.cloned().map_or(start.clone(), |after| after.max(start));
        let is_in = |key: &ObjectKey| {
            *key.resource == *self.resource.id && (self.namespace.is_empty() || *key.namespace == *self.namespace)
        };
        let after = after.cloned();
        objects
            .range(start..)
            .take_while(move |(key, _)| is_in(key))
            .filter(move |(key, _)| after.as_ref() != Some(*key))
            .map(|(_, stored)| stored)
            .filter(|stored| self.matches(stored))
    }
}

/// What a watch sends and when it ends.
#[derive(Clone, Debug)]
pub(crate) struct WatchPlan {
    pub(crate) filter: ObjectFilter,
    pub(crate) version: String,
    pub(crate) form: OutputForm,
    /// Events after this revision; `None` sends the current objects first.
    pub(crate) after: Option<Revision>,
    /// Whether a bookmark ends the current objects.
    pub(crate) marks_initial_end: bool,
    pub(crate) sends_bookmarks: bool,
    pub(crate) ends: Instant,
}

/// A running watch.
pub struct WatchStream {
    plan: WatchPlan,
    cache: Arc<WatchCache>,
    changes: watch::Receiver<Revision>,
    stop: CancellationToken,
    seen: Revision,
    ready: VecDeque<Bytes>,
    next_bookmark: Instant,
    is_over: bool,
}

impl WatchStream {
    pub(crate) fn new(plan: WatchPlan, cache: Arc<WatchCache>, stop: CancellationToken) -> WatchStream {
        let changes = cache.follow();
        let next_bookmark = Instant::now() + BOOKMARKS;
        let seen = plan.after.unwrap_or_default();
        let mut stream =
            WatchStream { plan, cache, changes, stop, seen, ready: VecDeque::new(), next_bookmark, is_over: false };
        if stream.plan.after.is_none() {
            stream.add_current();
        }
        stream
    }

    /// The current objects as added ones.
    fn add_current(&mut self) {
        let (objects, revision) = self.cache.current();
        let lines: Vec<Bytes> =
            self.plan.filter.select(&objects, None).map(|stored| self.line("ADDED", stored, stored.revision)).collect();
        self.ready.extend(lines);
        self.seen = revision;
        if self.plan.marks_initial_end {
            self.ready.push_back(self.bookmark(true));
        }
    }

    /// The next line; `None` at the end.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Some(line);
            }
            if self.is_over {
                return None;
            }
            self.changes.mark_unchanged();
            match self.cache.events_after(self.seen) {
                Ok((events, revision)) if revision > self.seen => {
                    let lines: Vec<Bytes> = events.iter().filter_map(|event| self.event(event)).collect();
                    self.ready.extend(lines);
                    self.seen = revision;
                    continue;
                }
                Ok(_) => {}
                Err(error) => {
                    self.is_over = true;
                    return Some(line_of("ERROR", &ApiError::of_revision(error).to_json().to_string()));
                }
            }
            tokio::select! {
                changed = self.changes.changed() => self.is_over |= changed.is_err(),
                () = self.stop.cancelled() => self.is_over = true,
                () = sleep_until(self.plan.ends) => {
                    self.is_over = true;
                    if self.plan.sends_bookmarks {
                        return Some(self.bookmark(false));
                    }
                }
                () = sleep_until(self.next_bookmark), if self.plan.sends_bookmarks => {
                    self.next_bookmark = Instant::now() + BOOKMARKS;
                    return Some(self.bookmark(false));
                }
            }
        }
    }

    /// A write as this watch sees it: an object that starts to match is added, one that ceases to match is deleted.
    fn event(&self, event: &StoreEvent) -> Option<Bytes> {
        let seen =
            |stored: &Option<Arc<StoredObject>>| stored.clone().filter(|stored| self.plan.filter.matches(stored));
        match (seen(&event.before), seen(&event.after)) {
            (None, Some(after)) => Some(self.line("ADDED", &after, event.revision)),
            (Some(_), Some(after)) => Some(self.line("MODIFIED", &after, event.revision)),
            (Some(before), None) => {
                let last = event.after.as_ref().unwrap_or(&before);
                Some(self.line("DELETED", last, event.revision))
            }
            (None, None) => None,
        }
    }

    fn line(&self, kind: &str, stored: &StoredObject, revision: Revision) -> Bytes {
        let shown;
        let stored = if stored.revision == revision {
            stored
        } else {
            shown = StoredObject { revision, ..stored.clone() };
            &shown
        };
        let text = object::document(stored, self.plan.filter.resource, &self.plan.version);
        let text = match self.plan.form {
            OutputForm::Json => text,
            _ => {
                let object: Value = serde_json::from_str(&text).unwrap_or_default();
                self.plan.form.one(&object, self.plan.filter.resource).to_string()
            }
        };
        line_of(kind, &text)
    }

    fn bookmark(&self, ends_initial: bool) -> Bytes {
        let resource = self.plan.filter.resource;
        let mut object = json!({
            "kind": resource.kind,
            "apiVersion": resource.api_version(&self.plan.version),
            "metadata": {"resourceVersion": self.seen.to_string(), "creationTimestamp": null},
        });
        if ends_initial {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        line_of("BOOKMARK", &object.to_string())
    }
}

fn line_of(kind: &str, object: &str) -> Bytes {
    Bytes::from(format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n"))
}
