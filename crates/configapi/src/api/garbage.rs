//! Objects are deleted with their last owner, and owners may be deleted without them, as Kubernetes' garbage collector
//! does it.

use serde_json::Value;

use super::Api;
use crate::error::ApiError;
use crate::object::{self, meta, set_meta};
use crate::resource::{ResourceInfo, ResourceTable};
use crate::store::cache::Objects;
use crate::store::{ObjectKey, StoreError, Write};

const MAX_TRIES: usize = 10;
/// Part of the text of every object with owners.
const OWNERS: &str = "\"ownerReferences\":[{";

/// What happens to the objects that a deleted object owns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Dependents {
    /// Deleted after it.
    #[default]
    Background,
    /// Deleted before it.
    Foreground,
    /// Kept, without the reference.
    Orphan,
}

impl Dependents {
    pub(super) fn parse(policy: &str) -> Result<Dependents, ApiError> {
        match policy {
            "" | "Background" => Ok(Dependents::Background),
            "Foreground" => Ok(Dependents::Foreground),
            "Orphan" => Ok(Dependents::Orphan),
            other => Err(ApiError::bad_request(format!(
                "invalid propagationPolicy {other:?}: expected Background, Foreground or Orphan"
            ))),
        }
    }
}

impl Api {
    /// Deletes the objects whose last owner this is, and those that they own. Failures are left to the next start.
    pub(super) async fn delete_dependents(&self, uid: &str) {
        for (resource, key) in self.dependents(uid) {
            if self.has_other_owner(&key, uid) {
                self.remove_owner(resource, &key, uid).await;
            } else if let Err(error) = Box::pin(self.remove_dependent(resource, &key)).await {
                tracing::warn!(object = %key, %error, "could not delete an object with its owner; it is deleted at the next start");
            }
        }
    }

    /// Removes the reference to this owner from all objects.
    pub(super) async fn release_dependents(&self, uid: &str) {
        for (resource, key) in self.dependents(uid) {
            self.remove_owner(resource, &key, uid).await;
        }
    }

    /// Deletes objects whose owners were deleted while this was interrupted.
    pub(super) async fn collect_garbage(&self) {
        let (objects, _) = self.storage.cache().current();
        let owned = objects.values().filter(|stored| stored.text.contains(OWNERS));
        let gone: Vec<ObjectKey> =
            owned.filter(|stored| is_abandoned(&objects, &stored.text)).map(|stored| stored.key.clone()).collect();
        for key in gone {
            let Some(resource) = ResourceTable::get().by_id(&key.resource) else { continue };
            match self.remove_dependent(resource, &key).await {
                Ok(()) => tracing::info!(object = %key, "deleted an object whose owner is gone"),
                Err(error) => tracing::warn!(object = %key, %error, "could not delete an object whose owner is gone"),
            }
        }
    }

    /// Objects that refer to this owner.
    fn dependents(&self, uid: &str) -> Vec<(&'static ResourceInfo, ObjectKey)> {
        if uid.is_empty() {
            return Vec::new();
        }
        let (objects, _) = self.storage.cache().current();
        let referring = objects.values().filter(|stored| stored.text.contains(OWNERS) && stored.text.contains(uid));
        let owned = referring.filter(|stored| {
            let metadata = object::stored_metadata(stored);
            owners(&metadata).iter().any(|owner| owner["uid"] == uid)
        });
        let table = ResourceTable::get();
        owned.filter_map(|stored| Some((table.by_id(&stored.key.resource)?, stored.key.clone()))).collect()
    }

    /// Whether an object has an owner that exists, other than this one.
    fn has_other_owner(&self, key: &ObjectKey, uid: &str) -> bool {
        let (objects, _) = self.storage.cache().current();
        let Some(stored) = objects.get(key) else { return false };
        let metadata = object::stored_metadata(stored);
        owners(&metadata).iter().any(|owner| owner["uid"] != uid && !is_gone(&objects, owner, &metadata))
    }

    async fn remove_owner(&self, resource: &'static ResourceInfo, key: &ObjectKey, uid: &str) {
        for _ in 0..MAX_TRIES {
            let Some(stored) = self.storage.cache().get(key) else { return };
            let mut value = object::value(&stored, resource, resource.preferred_version());
            let kept: Vec<Value> =
                owners(&value["metadata"]).iter().filter(|owner| owner["uid"] != uid).cloned().collect();
            set_meta(&mut value, "ownerReferences", (!kept.is_empty()).then(|| kept.into()));
            let write = Write::new(key.clone(), Some(stored.revision), Some(object::text(&value)));
            match self.storage.write(write).await {
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => {
                    tracing::warn!(object = %key, %error, "could not remove the reference to a deleted owner");
                    return;
                }
                Ok(_) => return,
            }
        }
    }
}

fn owners(metadata: &Value) -> &[Value] {
    metadata.get("ownerReferences").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Whether an object has owners and all of them are gone.
fn is_abandoned(objects: &Objects, text: &str) -> bool {
    let object: Value = serde_json::from_str(text).unwrap_or_default();
    let metadata = &object["metadata"];
    let owners = owners(metadata);
    !owners.is_empty() && owners.iter().all(|owner| is_gone(objects, owner, metadata))
}

/// Whether the owner of a reference does not exist. Owners of kinds that are not served are taken as existing.
fn is_gone(objects: &Objects, owner: &Value, metadata: &Value) -> bool {
    let text = |field: &str| owner.get(field).and_then(Value::as_str).unwrap_or_default();
    let Some(resource) = ResourceTable::get().by_kind(text("apiVersion"), text("kind")) else { return false };
    let namespace = match resource.is_namespaced {
        true => metadata.get("namespace").and_then(Value::as_str).unwrap_or_default(),
        false => "",
    };
    let found = objects.get(&ObjectKey::new(&resource.id, namespace, text("name")));
    found.is_none_or(|stored| meta_uid(&stored.text) != text("uid"))
}

fn meta_uid(text: &str) -> String {
    let object: Value = serde_json::from_str(text).unwrap_or_default();
    meta(&object, "uid").to_owned()
}
