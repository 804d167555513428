//! Storage of objects: the contract of `Storage`, keys and values. `embedded` keeps them in one file, `etcd` in a cluster
//! that several processes share. `cache` has the current objects and the last events in memory, and answers all reads and
//! watches.

pub mod cache;
pub mod embedded;
pub mod etcd;
mod verify;

use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

use cache::{Objects, RevisionError, WatchCache};

/// The number of a write. Revisions of one storage only grow; they are the `resourceVersion`s of objects and lists.
pub type Revision = u64;

/// Identifies an object in the storage.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// The plural name with its group, such as `virtualservices.networking.istio.io`; `services` in the core group.
    pub resource: Box<str>,
    /// Empty for objects without a namespace.
    pub namespace: Box<str>,
    pub name: Box<str>,
}

impl ObjectKey {
    pub fn new(resource: &str, namespace: &str, name: &str) -> ObjectKey {
        ObjectKey { resource: resource.into(), namespace: namespace.into(), name: name.into() }
    }

    /// The key as text: `resource/namespace/name`. None of the parts has a slash.
    pub fn to_text(&self) -> String {
        format!("{}/{}/{}", self.resource, self.namespace, self.name)
    }

    pub fn from_text(text: &str) -> Option<ObjectKey> {
        let mut parts = text.split('/');
        let key = ObjectKey::new(parts.next()?, parts.next()?, parts.next()?);
        parts.next().is_none().then_some(key)
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.namespace {
            "" => write!(f, "{} {:?}", self.resource, self.name),
            namespace => write!(f, "{} \"{namespace}/{}\"", self.resource, self.name),
        }
    }
}

/// Every stored text starts with this.
pub(crate) const TEXT_START: &str = "{\"metadata\":{";

/// An object as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredObject {
    pub key: ObjectKey,
    /// The revision of its last write.
    pub revision: Revision,
    /// JSON without `apiVersion`, `kind` and `resourceVersion`.
    pub text: Box<str>,
}

impl StoredObject {
    fn size(&self) -> usize {
        self.text.len() + self.key.resource.len() + self.key.namespace.len() + self.key.name.len()
    }
}

/// One write as watchers see it. One of `before` and `after` is present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreEvent {
    pub revision: Revision,
    pub before: Option<Arc<StoredObject>>,
    pub after: Option<Arc<StoredObject>>,
}

impl StoreEvent {
    /// The key of the object.
    pub fn key(&self) -> Option<&ObjectKey> {
        self.after.as_ref().or(self.before.as_ref()).map(|object| &object.key)
    }

    fn size(&self) -> usize {
        self.before.as_ref().map_or(64, |object| object.size() + 64)
    }
}

/// A conditional write of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub key: ObjectKey,
    /// The revision that the object must have; `None` if it must not exist.
    pub expected: Option<Revision>,
    /// The new text; `None` deletes the object.
    pub text: Option<Box<str>>,
    /// Another object that must have this revision, such as the namespace of a new object.
    pub requires: Option<(ObjectKey, Revision)>,
}

impl Write {
    /// A write that depends on no other object.
    pub fn new(key: ObjectKey, expected: Option<Revision>, text: Option<Box<str>>) -> Write {
        Write { key, expected, text, requires: None }
    }
}

/// Why a write was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The object has another revision than expected, or does not exist, or exists already.
    #[error("{key} was changed by another client")]
    Conflict { key: ObjectKey, found: Option<Revision> },
    /// The object that the write requires has another revision, or is gone.
    #[error("could not write {key}: {required} was changed by another client")]
    RequiredChanged { key: ObjectKey, required: ObjectKey },
    #[error("could not write {key}: {cause}; the object is unchanged")]
    Failed { key: ObjectKey, cause: String },
    /// The storage cannot be reached. The write was not done.
    #[error("could not write {key}: {cause}; the object is unchanged")]
    Unavailable { key: ObjectKey, cause: String },
    #[error("could not write {key}: {cause}; the object is unchanged")]
    TooLarge { key: ObjectKey, cause: String },
    /// The write may have been done.
    #[error(
        "could not confirm the write of {key}: {cause}; the object may have changed, read it before the next write"
    )]
    Unconfirmed { key: ObjectKey, cause: String },
    #[error("could not write {0}: the storage is closed")]
    Closed(ObjectKey),
}

/// The cache may be older than the storage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("could not confirm that revision {revision} is the newest: {cause}")]
pub struct StaleError {
    pub revision: Revision,
    pub cause: String,
}

/// The result of a write: the revision that it got.
pub type WriteResult = Result<Revision, StoreError>;

/// A future that may be sent between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where objects are stored durably.
pub trait Storage: Send + Sync + 'static {
    /// Does the write. When it returns `Ok`, the write is durable and `cache` has it.
    fn write(&self, write: Write) -> BoxFuture<'_, WriteResult>;

    /// The current objects and the last events.
    fn cache(&self) -> &Arc<WatchCache>;

    /// Waits until the cache has every write that was answered before this call, of other processes too.
    fn refresh(&self) -> BoxFuture<'_, Result<(), StaleError>> {
        Box::pin(ready(Ok(())))
    }

    /// Waits a short time until the cache has a revision that another process returned.
    fn reach(&self, _revision: Revision) -> BoxFuture<'_, ()> {
        Box::pin(ready(()))
    }

    /// The objects as they were at a revision: all, or only the one with this key.
    fn objects_at<'a>(
        &'a self,
        revision: Revision,
        _key: Option<&'a ObjectKey>,
    ) -> BoxFuture<'a, Result<Objects, RevisionError>> {
        Box::pin(ready(self.cache().at(revision)))
    }
}
