//! Deletes of objects, collections and namespaces. An object with finalizers is marked and goes when the last one is
//! removed; a namespace goes with its last object.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::garbage::Dependents;
use super::reply::object_response;
use super::{Api, ApiResponse, ObjectRequest, body};
use crate::error::ApiError;
use crate::object::{self, meta, set_meta};
use crate::resource::{ResourceInfo, ResourceTable};
use crate::selector::{FieldSelector, LabelConditions};
use crate::store::{ObjectKey, Revision, StoreError, StoredObject, Write};
use crate::watch::ObjectFilter;

const MAX_TRIES: usize = 10;

/// The body of a delete.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DeleteOptions {
    preconditions: Option<Preconditions>,
    dry_run: Option<Vec<String>>,
    propagation_policy: String,
    /// The form before policies: true keeps the objects that it owns.
    orphan_dependents: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Preconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

impl DeleteOptions {
    fn is_dry_run(&self) -> bool {
        self.dry_run.iter().flatten().any(|mode| mode == "All")
    }

    fn dependents(&self, asked: &ObjectRequest<'_>) -> Result<Dependents, ApiError> {
        let policy =
            if self.propagation_policy.is_empty() { &asked.query.propagation } else { &self.propagation_policy };
        match (policy.as_str(), self.orphan_dependents) {
            ("", Some(true)) => Ok(Dependents::Orphan),
            (policy, _) => Dependents::parse(policy),
        }
    }
}

/// What became of an object.
enum Deleted {
    Gone(Value),
    /// It waits for its finalizers.
    Marked(Value),
}

impl Api {
    pub(super) async fn delete(&self, asked: &ObjectRequest<'_>) -> Result<ApiResponse, ApiError> {
        let options = options(asked)?;
        let preconditions = options.preconditions.clone().unwrap_or_default();
        if asked.resource.id == "namespaces" && asked.name == "default" {
            let message = "namespaces \"default\" is forbidden: this namespace may not be deleted";
            return Err(ApiError::forbidden(asked.resource, &asked.name, message));
        }
        let is_dry_run = asked.query.is_dry_run || options.is_dry_run();
        let dependents = options.dependents(asked)?;
        let uid = match is_dry_run {
            true => String::new(),
            false => self.uid(&asked.key()),
        };
        match dependents {
            Dependents::Foreground => self.delete_dependents(&uid).await,
            Dependents::Orphan => self.release_dependents(&uid).await,
            Dependents::Background => {}
        }
        let removed = match asked.resource.id == "namespaces" && !is_dry_run {
            true => self.remove_namespace(asked, &preconditions).await?,
            false => self.remove(asked.resource, &asked.version, &asked.key(), &preconditions, is_dry_run).await?,
        };
        match removed {
            Deleted::Marked(object) => Ok(object_response(200, &object, asked, Vec::new())),
            Deleted::Gone(object) => {
                self.delete_dependents(&uid).await;
                let mut details =
                    json!({"name": asked.name, "kind": asked.resource.plural, "uid": meta(&object, "uid")});
                if !asked.resource.group.is_empty() {
                    details["group"] = asked.resource.group.clone().into();
                }
                Ok(ApiResponse::json(200, &success(&details)))
            }
        }
    }

    pub(super) async fn delete_collection(&self, asked: &ObjectRequest<'_>) -> Result<ApiResponse, ApiError> {
        let is_of_namespaces = asked.resource.id == "namespaces";
        if is_of_namespaces || (asked.resource.is_namespaced && asked.namespace.is_empty()) {
            return Err(ApiError::method_not_allowed());
        }
        let options = options(asked)?;
        let is_dry_run = asked.query.is_dry_run || options.is_dry_run();
        let filter = ObjectFilter {
            resource: asked.resource,
            namespace: asked.namespace.clone(),
            labels: LabelConditions::parse(&asked.query.label_selector)?,
            fields: FieldSelector::parse(&asked.query.field_selector, &asked.resource.selectable)?,
        };
        let (objects, _) = self.storage.cache().current();
        let keys: Vec<ObjectKey> = filter.select(&objects, None).map(|stored| stored.key.clone()).collect();
        let dependents = options.dependents(asked)?;
        if dependents == Dependents::Orphan && !is_dry_run {
            for key in &keys {
                self.release_dependents(&self.uid(key)).await;
            }
        }
        self.remove_all(asked.resource, &asked.version, &keys, is_dry_run).await?;
        if !is_dry_run {
            self.collect_garbage().await;
        }
        Ok(ApiResponse::json(200, &success(&json!({"kind": asked.resource.plural}))))
    }

    /// Deletes an object that another one owned, with those that it owns.
    pub(super) async fn remove_dependent(
        &self,
        resource: &'static ResourceInfo,
        key: &ObjectKey,
    ) -> Result<(), ApiError> {
        let uid = self.uid(key);
        let version = resource.preferred_version();
        match self.remove(resource, version, key, &Preconditions::default(), false).await {
            Ok(Deleted::Gone(_)) => Box::pin(self.delete_dependents(&uid)).await,
            Ok(Deleted::Marked(_)) => {}
            Err(error) if error.code == 404 => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn uid(&self, key: &ObjectKey) -> String {
        let stored = self.storage.cache().get(key);
        let metadata = stored.map(|stored| object::stored_metadata(&stored)).unwrap_or_default();
        metadata.get("uid").and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    /// Deletes objects together, so that they share transactions.
    async fn remove_all(
        &self,
        resource: &'static ResourceInfo,
        version: &str,
        keys: &[ObjectKey],
        is_dry_run: bool,
    ) -> Result<(), ApiError> {
        let none = Preconditions::default();
        let removals = keys.iter().map(|key| self.remove(resource, version, key, &none, is_dry_run));
        for removed in futures_util::future::join_all(removals).await {
            match removed {
                Err(error) if error.code != 404 => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    async fn remove(
        &self,
        resource: &'static ResourceInfo,
        version: &str,
        key: &ObjectKey,
        preconditions: &Preconditions,
        is_dry_run: bool,
    ) -> Result<Deleted, ApiError> {
        for _ in 0..MAX_TRIES {
            let stored = self.storage.cache().get(key).ok_or_else(|| ApiError::not_found(resource, &key.name))?;
            let mut object = object::value(&stored, resource, version);
            preconditions.check(&object, stored.revision, resource, &key.name)?;
            let waits = self.waits_for_others(&object, &stored);
            if waits && !meta(&object, "deletionTimestamp").is_empty() {
                return Ok(Deleted::Marked(object));
            }
            if waits {
                mark(&mut object, resource);
            }
            if is_dry_run {
                return Ok(if waits { Deleted::Marked(object) } else { Deleted::Gone(object) });
            }
            let text = waits.then(|| object::text(&object));
            match self.storage.write(Write::new(key.clone(), Some(stored.revision), text)).await {
                Ok(revision) if waits => {
                    set_meta(&mut object, "resourceVersion", Some(revision.to_string().into()));
                    return Ok(Deleted::Marked(object));
                }
                Ok(_) => {
                    Box::pin(self.finish_namespace(&key.namespace)).await;
                    return Ok(Deleted::Gone(object));
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(ApiError::of_storage(&error)),
            }
        }
        Err(ApiError::modified(resource, &key.name))
    }

    /// Deletes a namespace with its objects. It is marked first, and new objects require an unmarked one, so that none is
    /// left behind.
    async fn remove_namespace(
        &self,
        asked: &ObjectRequest<'_>,
        preconditions: &Preconditions,
    ) -> Result<Deleted, ApiError> {
        let (resource, key) = (asked.resource, asked.key());
        let mut marked = None;
        for _ in 0..MAX_TRIES {
            let stored = self.storage.cache().get(&key).ok_or_else(|| ApiError::not_found(resource, &key.name))?;
            let mut object = object::value(&stored, resource, &asked.version);
            preconditions.check(&object, stored.revision, resource, &key.name)?;
            if !meta(&object, "deletionTimestamp").is_empty() {
                marked = Some(object);
                break;
            }
            mark(&mut object, resource);
            let write = Write::new(key.clone(), Some(stored.revision), Some(object::text(&object)));
            match self.storage.write(write).await {
                Ok(revision) => {
                    set_meta(&mut object, "resourceVersion", Some(revision.to_string().into()));
                    marked = Some(object);
                    break;
                }
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(ApiError::of_storage(&error)),
            }
        }
        let marked = marked.ok_or_else(|| ApiError::modified(resource, &key.name))?;
        // Objects that other processes made before the mark must be known. If they are not, the namespace stays marked and
        // the next delete in it, or the next start, tries again.
        if self.storage.refresh().await.is_ok() {
            self.empty_namespace(&key.name).await?;
            self.finish_namespace(&key.name).await;
        }
        match self.storage.cache().get(&key) {
            None => Ok(Deleted::Gone(marked)),
            Some(left) => Ok(Deleted::Marked(object::value(&left, resource, &asked.version))),
        }
    }

    /// Completes the deletion of namespaces that was interrupted.
    pub(super) async fn finish_namespaces(&self) {
        let (objects, _) = self.storage.cache().current();
        let is_marked = |stored: &StoredObject| object::stored_metadata(stored).get("deletionTimestamp").is_some();
        let marked: Vec<Box<str>> = objects
            .range(ObjectKey::new("namespaces", "", "")..)
            .take_while(|(key, _)| *key.resource == *"namespaces")
            .filter(|(_, stored)| is_marked(stored))
            .map(|(key, _)| key.name.clone())
            .collect();
        for name in marked {
            match self.empty_namespace(&name).await {
                Ok(()) => self.finish_namespace(&name).await,
                Err(error) => {
                    tracing::warn!(namespace = %name, %error, "could not complete the deletion of a namespace")
                }
            }
        }
    }

    /// Whether a deleted object must stay: it has finalizers, or it is a namespace with objects.
    fn waits_for_others(&self, object: &Value, stored: &Arc<StoredObject>) -> bool {
        let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
        finalizers.is_some_and(|list| !list.is_empty())
            || (*stored.key.resource == *"namespaces" && !self.objects_in(&stored.key.name).is_empty())
    }

    fn objects_in(&self, namespace: &str) -> Vec<ObjectKey> {
        let (objects, _) = self.storage.cache().current();
        objects.keys().filter(|key| *key.namespace == *namespace).cloned().collect()
    }

    /// Deletes the objects of a namespace.
    async fn empty_namespace(&self, namespace: &str) -> Result<(), ApiError> {
        for resource in ResourceTable::get().all() {
            let keys = self.objects_in(namespace).into_iter().filter(|key| *key.resource == *resource.id);
            let keys: Vec<ObjectKey> = keys.collect();
            Box::pin(self.remove_all(resource, resource.preferred_version(), &keys, false)).await?;
        }
        Ok(())
    }

    /// Removes a namespace that waits for its last object, if that is gone.
    pub(super) async fn finish_namespace(&self, namespace: &str) {
        let key = ObjectKey::new("namespaces", "", namespace);
        let Some(stored) = self.storage.cache().get(&key).filter(|_| !namespace.is_empty()) else { return };
        let metadata = object::stored_metadata(&stored);
        let has_finalizers =
            metadata.get("finalizers").and_then(Value::as_array).is_some_and(|finalizers| !finalizers.is_empty());
        let is_deleted = metadata.get("deletionTimestamp").is_some() && !has_finalizers;
        if is_deleted && self.objects_in(namespace).is_empty() {
            // If another client changed it meanwhile, the next delete in it tries again.
            let _ = self.storage.write(Write::new(key, Some(stored.revision), None)).await;
        }
    }
}

impl Preconditions {
    fn check(&self, object: &Value, revision: Revision, resource: &ResourceInfo, name: &str) -> Result<(), ApiError> {
        let found = meta(object, "uid");
        if let Some(uid) = self.uid.as_deref().filter(|uid| *uid != found) {
            let cause = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {found}");
            return Err(ApiError::conflict(resource, name, &cause));
        }
        let found = revision.to_string();
        if let Some(version) = self.resource_version.as_deref().filter(|version| *version != found) {
            let cause = format!(
                "Precondition failed: ResourceVersion in precondition: {version}, ResourceVersion in object meta: {found}"
            );
            return Err(ApiError::conflict(resource, name, &cause));
        }
        Ok(())
    }
}

/// Marks an object that is deleted and must stay for now.
fn mark(object: &mut Value, resource: &ResourceInfo) {
    set_meta(object, "deletionTimestamp", Some(object::now().into()));
    set_meta(object, "deletionGracePeriodSeconds", Some(json!(0)));
    if resource.id == "namespaces" {
        object["status"]["phase"] = "Terminating".into();
    }
}

fn options(asked: &ObjectRequest<'_>) -> Result<DeleteOptions, ApiError> {
    if asked.request.body.is_empty() {
        return Ok(DeleteOptions::default());
    }
    serde_json::from_value(body::decode(asked.request)?)
        .map_err(|error| ApiError::bad_request(format!("could not decode DeleteOptions: {error}")))
}

fn success(details: &Value) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}
