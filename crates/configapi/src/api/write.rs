//! Create, update, patch and apply. All of them read the current object, compute the new one, and write it on the
//! condition that the object has not changed meanwhile.

use serde_json::{Map, Value, json};

use super::body::{self, APPLY_PATCH, MERGE_PATCH, STRATEGIC_PATCH};
use super::reply::object_response;
use super::{Api, ApiResponse, ObjectRequest};
use crate::admission;
use crate::apply::{self, FieldManager};
use crate::error::ApiError;
use crate::field_cause::FieldCause;
use crate::object::{self, SERVER_FIELDS, meta, set_meta};
use crate::patch::{json_patch, merge_patch};
use crate::query::FieldValidation;
use crate::schema::Schema;
use crate::store::{ObjectKey, Revision, StoreError, Write, WriteResult};
use crate::strategic::strategic_patch;

/// How often a patch is computed again because the object was changed meanwhile.
const MAX_TRIES: usize = 10;

const JSON_PATCH: &str = "application/json-patch+json";

/// A computed object that is about to be stored.
struct Change {
    /// The object before; null if it is new.
    before: Value,
    after: Value,
    /// The revision of `before`.
    expected: Option<Revision>,
    warnings: Vec<String>,
}

impl Api {
    pub(super) async fn create(&self, asked: &ObjectRequest<'_>) -> Result<ApiResponse, ApiError> {
        let mut sent = body_object(asked)?;
        let mut warnings = check_fields(&mut sent, asked)?;
        let is_generated = meta(&sent, "name").is_empty() && !meta(&sent, "generateName").is_empty();
        if meta(&sent, "name").is_empty() && !is_generated {
            let cause = FieldCause {
                reason: "FieldValueRequired",
                field: "metadata.name".to_owned(),
                message: "Required value: name or generateName is required".to_owned(),
            };
            return Err(ApiError::invalid(asked.resource, "", &[cause]));
        }
        self.place(&mut sent, asked)?;
        for _ in 0..MAX_TRIES {
            if is_generated {
                let name = object::generated_name(meta(&sent, "generateName"));
                set_meta(&mut sent, "name", Some(name.into()));
            }
            let mut after = new_object(&sent, asked);
            apply::record_update(&Value::Null, &mut after, &manager(asked), Schema::of(&asked.resource.schema));
            let change = Change { before: Value::Null, after, expected: None, warnings: Vec::new() };
            match self.store(change, asked, 201).await {
                Err(error) if error.reason == "AlreadyExists" && is_generated => continue,
                Ok(mut response) => {
                    warnings.append(&mut response.warnings);
                    return Ok(ApiResponse { warnings, ..response });
                }
                failed => return failed,
            }
        }
        Err(ApiError::already_exists(asked.resource, meta(&sent, "generateName")))
    }

    pub(super) async fn update(&self, asked: &ObjectRequest<'_>) -> Result<ApiResponse, ApiError> {
        let mut sent = body_object(asked)?;
        let warnings = check_fields(&mut sent, asked)?;
        self.place(&mut sent, asked)?;
        let revision = sent_revision(&sent, asked)?;
        if revision.is_none() && asked.resource.is_custom {
            let cause = FieldCause {
                reason: "FieldValueInvalid",
                field: "metadata.resourceVersion".to_owned(),
                message: "Invalid value: 0: must be specified for an update".to_owned(),
            };
            return Err(ApiError::invalid(asked.resource, &asked.name, &[cause]));
        }
        self.retried(asked, revision, |before, expected| {
            let mut after = updated(before, &sent, asked)?;
            apply::record_update(before, &mut after, &manager(asked), Schema::of(&asked.resource.schema));
            Ok(Change { before: before.clone(), after, expected, warnings: warnings.clone() })
        })
        .await
    }

    pub(super) async fn patch(&self, asked: &ObjectRequest<'_>) -> Result<ApiResponse, ApiError> {
        let kind = asked.request.content_type.split(';').next().unwrap_or_default().trim().to_owned();
        if kind == APPLY_PATCH {
            return self.apply(asked).await;
        }
        if asked.query.is_forced {
            return Err(ApiError::new(
                422,
                "Invalid",
                "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch",
            ));
        }
        let schema = Schema::of(&asked.resource.schema);
        let body = &asked.request.body;
        let patched = |before: &Value| match kind.as_str() {
            JSON_PATCH => json_patch(before, body),
            MERGE_PATCH => merge_patch(before, body),
            STRATEGIC_PATCH if !asked.resource.is_custom => strategic_patch(before, body, schema),
            other => {
                let mut accepted = vec![JSON_PATCH, MERGE_PATCH, APPLY_PATCH];
                accepted.extend((!asked.resource.is_custom).then_some(STRATEGIC_PATCH));
                Err(ApiError::unsupported_media_type(other, &accepted.join(", ")))
            }
        };
        self.retried(asked, None, |before, expected| {
            let mut sent = patched(before)?;
            if !sent.is_object() {
                return Err(ApiError::bad_request("the patch does not leave an object"));
            }
            check_identity(&sent, asked)?;
            let revision = sent_revision(&sent, asked)?;
            if revision.is_some_and(|revision| Some(revision) != expected) {
                return Err(ApiError::modified(asked.resource, &asked.name));
            }
            let warnings = check_fields(&mut sent, asked)?;
            let mut after = updated(before, &sent, asked)?;
            apply::record_update(before, &mut after, &manager(asked), schema);
            Ok(Change { before: before.clone(), after, expected, warnings })
        })
        .await
    }

    /// Server-side apply. It makes the object if it does not exist.
    async fn apply(&self, asked: &ObjectRequest<'_>) -> Result<ApiResponse, ApiError> {
        if asked.query.field_manager.is_empty() {
            return Err(ApiError::new(
                422,
                "Invalid",
                "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
            ));
        }
        let mut sent = body_object(asked)?;
        let warnings = check_fields(&mut sent, asked)?;
        self.place(&mut sent, asked)?;
        let revision = sent_revision(&sent, asked)?;
        let sent = applied_part(&sent, asked);
        let schema = Schema::of(&asked.resource.schema);
        for _ in 0..MAX_TRIES {
            let (before, expected) = self.current(asked);
            if revision.is_some() && revision != expected {
                return Err(ApiError::modified(asked.resource, &asked.name));
            }
            let is_new = before.is_null();
            if is_new && asked.is_status {
                return Err(ApiError::not_found(asked.resource, &asked.name));
            }
            let merged = apply::apply(&before, &sent, &manager(asked), asked.query.is_forced, schema)?;
            let after = if is_new { new_object(&merged, asked) } else { updated(&before, &merged, asked)? };
            let change = Change { before, after, expected, warnings: warnings.clone() };
            match self.store(change, asked, if is_new { 201 } else { 200 }).await {
                Err(error) if is_lost_race(&error) && revision.is_none() => continue,
                done => return done,
            }
        }
        Err(ApiError::modified(asked.resource, &asked.name))
    }

    /// Computes a change of an existing object and stores it; again if another client was faster, unless the client named
    /// a revision.
    async fn retried(
        &self,
        asked: &ObjectRequest<'_>,
        revision: Option<Revision>,
        compute: impl Fn(&Value, Option<Revision>) -> Result<Change, ApiError>,
    ) -> Result<ApiResponse, ApiError> {
        for _ in 0..MAX_TRIES {
            let (before, expected) = self.current(asked);
            if before.is_null() {
                return Err(ApiError::not_found(asked.resource, &asked.name));
            }
            if revision.is_some() && revision != expected {
                return Err(ApiError::modified(asked.resource, &asked.name));
            }
            match self.store(compute(&before, expected)?, asked, 200).await {
                Err(error) if is_lost_race(&error) && revision.is_none() => continue,
                done => return done,
            }
        }
        Err(ApiError::modified(asked.resource, &asked.name))
    }

    /// The current object and its revision; null if there is none.
    fn current(&self, asked: &ObjectRequest<'_>) -> (Value, Option<Revision>) {
        match self.storage.cache().get(&asked.key()) {
            Some(stored) => (object::value(&stored, asked.resource, &asked.version), Some(stored.revision)),
            None => (Value::Null, None),
        }
    }

    /// Admits a change and writes it, unless it is a dry run or nothing changed.
    async fn store(&self, change: Change, asked: &ObjectRequest<'_>, code: u16) -> Result<ApiResponse, ApiError> {
        let Change { before, mut after, expected, mut warnings } = change;
        admission::set_defaults(&mut after, asked.resource);
        set_generation(&before, &mut after, asked);
        set_meta(&mut after, "resourceVersion", before.pointer("/metadata/resourceVersion").cloned());
        let is_same = before == after;
        if !is_same {
            warnings.extend(admission::admit(&after, asked.resource, self.options.validation)?);
        }
        let requires = match before.is_null() {
            true => self.check_namespace(asked, meta(&after, "namespace"))?,
            false => None,
        };
        if !is_same && !asked.query.is_dry_run {
            let key = ObjectKey::new(&asked.resource.id, meta(&after, "namespace"), meta(&after, "name"));
            let is_gone = is_finished(&after);
            let text = (!is_gone).then(|| object::text(&after));
            let name = key.name.to_string();
            let written = self.write(Write { key, expected, text, requires }, asked).await?;
            let revision = written.map_err(|error| match (&error, expected) {
                (StoreError::Conflict { .. }, None) => ApiError::already_exists(asked.resource, &name),
                (StoreError::Conflict { .. }, Some(_)) => ApiError::modified(asked.resource, &name),
                _ => ApiError::of_storage(&error),
            })?;
            set_meta(&mut after, "resourceVersion", Some(revision.to_string().into()));
            if is_gone {
                self.delete_dependents(meta(&after, "uid")).await;
                self.finish_namespace(meta(&after, "namespace")).await;
            }
        }
        Ok(object_response(code, &after, asked, warnings))
    }

    /// Writes an object. If the namespace of a new one changed meanwhile, it is checked again: it may be on its way out.
    async fn write(&self, mut write: Write, asked: &ObjectRequest<'_>) -> Result<WriteResult, ApiError> {
        for _ in 0..MAX_TRIES {
            match self.storage.write(write.clone()).await {
                Err(StoreError::RequiredChanged { .. }) => {
                    write.requires = self.check_namespace(asked, &write.key.namespace)?;
                }
                written => return Ok(written),
            }
        }
        Err(ApiError::modified(asked.resource, &asked.name))
    }

    /// Sets the namespace of the path, and checks that the object is the one that the path names.
    fn place(&self, sent: &mut Value, asked: &ObjectRequest<'_>) -> Result<(), ApiError> {
        if asked.resource.is_namespaced && meta(sent, "namespace").is_empty() {
            set_meta(sent, "namespace", Some(asked.namespace.clone().into()));
        }
        if !asked.resource.is_namespaced {
            set_meta(sent, "namespace", None);
        }
        if meta(sent, "name").is_empty() && !asked.name.is_empty() {
            set_meta(sent, "name", Some(asked.name.clone().into()));
        }
        check_identity(sent, asked)
    }

    /// Objects are made only in namespaces that exist and are not being deleted. Returns the namespace with its revision,
    /// which the write requires: the first step of a deletion is a write to the namespace.
    fn check_namespace(
        &self,
        asked: &ObjectRequest<'_>,
        namespace: &str,
    ) -> Result<Option<(ObjectKey, Revision)>, ApiError> {
        if !asked.resource.is_namespaced {
            return Ok(None);
        }
        let namespaces = crate::resource::ResourceTable::get().by_id("namespaces");
        let key = ObjectKey::new("namespaces", "", namespace);
        let Some(stored) = self.storage.cache().get(&key) else {
            return Err(namespaces.map_or_else(ApiError::no_such_path, |known| ApiError::not_found(known, namespace)));
        };
        if object::stored_metadata(&stored).get("deletionTimestamp").is_some() {
            let message = format!(
                "{} {:?} is forbidden: unable to create new content in namespace {namespace} because it is being \
                 terminated",
                asked.resource.id, asked.name
            );
            return Err(ApiError::forbidden(asked.resource, &asked.name, message));
        }
        Ok(Some((key, stored.revision)))
    }
}

fn is_lost_race(error: &ApiError) -> bool {
    ["Conflict", "AlreadyExists"].contains(&error.reason)
        && error.details.as_ref().is_some_and(|d| d.get("causes").is_none())
}

/// Whether the object was waiting for its last finalizer.
fn is_finished(object: &Value) -> bool {
    let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    !meta(object, "deletionTimestamp").is_empty() && finalizers.is_none_or(Vec::is_empty)
}

/// The object in the body.
fn body_object(asked: &ObjectRequest<'_>) -> Result<Value, ApiError> {
    let mut object = body::decode(asked.request)?;
    if !object.is_object() {
        return Err(ApiError::bad_request("the body of the request is not an object"));
    }
    // The path says what an object is that does not say it itself.
    for (key, value) in [("apiVersion", asked.api_version()), ("kind", asked.resource.kind.clone())] {
        if object.get(key).is_none_or(|known| known.as_str() == Some("")) {
            object[key] = value.into();
        }
    }
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if kind != asked.resource.kind || api_version != asked.api_version() {
        let message = format!(
            "the object is {kind:?} of {api_version:?}, expected {:?} of {:?}",
            asked.resource.kind,
            asked.api_version()
        );
        return Err(ApiError::bad_request(message));
    }
    Ok(object)
}

fn check_fields(object: &mut Value, asked: &ObjectRequest<'_>) -> Result<Vec<String>, ApiError> {
    let validation = asked.query.field_validation.unwrap_or(FieldValidation::Warn);
    let duplicates = if validation == FieldValidation::Ignore { Vec::new() } else { body::duplicates(asked.request) };
    admission::check_fields(object, asked.resource, &duplicates, validation)
}

fn check_identity(sent: &Value, asked: &ObjectRequest<'_>) -> Result<(), ApiError> {
    let (name, namespace) = (meta(sent, "name"), meta(sent, "namespace"));
    if !asked.name.is_empty() && name != asked.name {
        let message = format!("the name of the object ({name}) does not match the name on the URL ({})", asked.name);
        return Err(ApiError::bad_request(message));
    }
    if asked.resource.is_namespaced && namespace != asked.namespace {
        let message = format!(
            "the namespace of the provided object does not match the namespace sent on the request ({namespace} and {})",
            asked.namespace
        );
        return Err(ApiError::bad_request(message));
    }
    Ok(())
}

/// The revision that the client expects.
fn sent_revision(sent: &Value, asked: &ObjectRequest<'_>) -> Result<Option<Revision>, ApiError> {
    match meta(sent, "resourceVersion") {
        "" | "0" => Ok(None),
        text => text.parse().map(Some).map_err(|_| {
            let cause = FieldCause {
                reason: "FieldValueInvalid",
                field: "metadata.resourceVersion".to_owned(),
                message: format!("Invalid value: {text:?}: must be a number"),
            };
            ApiError::invalid(asked.resource, &asked.name, &[cause])
        }),
    }
}

fn manager(asked: &ObjectRequest<'_>) -> FieldManager {
    let agent = asked.request.user_agent.split('/').next().unwrap_or_default();
    let agent = if agent.is_empty() { "unknown" } else { agent };
    let name = if asked.query.field_manager.is_empty() { agent } else { &asked.query.field_manager };
    FieldManager {
        name: name.chars().take(128).collect(),
        api_version: asked.api_version(),
        subresource: if asked.is_status { "status" } else { "" },
        time: object::now(),
    }
}

/// A new object: the fields that clients may set, and those that the server sets.
fn new_object(sent: &Value, asked: &ObjectRequest<'_>) -> Value {
    let mut object = sent.clone();
    if let Some(fields) = object.as_object_mut().filter(|_| asked.resource.has_status) {
        fields.shift_remove("status");
    }
    for field in SERVER_FIELDS {
        set_meta(&mut object, field, None);
    }
    set_meta(&mut object, "uid", Some(object::new_uid().into()));
    set_meta(&mut object, "creationTimestamp", Some(object::now().into()));
    object
}

/// What `sent` makes of an existing object: the status belongs to its subresource, and some metadata to the server.
fn updated(before: &Value, sent: &Value, asked: &ObjectRequest<'_>) -> Result<Value, ApiError> {
    let (old, new) = (meta(before, "uid"), meta(sent, "uid"));
    if !new.is_empty() && new != old {
        let cause = format!("Precondition failed: UID in precondition: {new}, UID in object meta: {old}");
        return Err(ApiError::conflict(asked.resource, &asked.name, &cause));
    }
    let mut after = if asked.is_status { before.clone() } else { sent.clone() };
    let status_from = if asked.is_status { sent } else { before };
    if asked.is_status {
        set_meta(&mut after, "managedFields", sent.pointer("/metadata/managedFields").cloned());
    }
    if let Some(fields) = after.as_object_mut().filter(|_| asked.resource.has_status) {
        match status_from.get("status") {
            Some(status) => _ = fields.insert("status".to_owned(), status.clone()),
            None => _ = fields.shift_remove("status"),
        }
    }
    for field in SERVER_FIELDS {
        set_meta(&mut after, field, before["metadata"].get(field).cloned());
    }
    Ok(after)
}

/// The part of an applied object that belongs to the object, or to its status.
fn applied_part(sent: &Value, asked: &ObjectRequest<'_>) -> Value {
    let mut part = sent.clone();
    for field in SERVER_FIELDS {
        set_meta(&mut part, field, None);
    }
    set_meta(&mut part, "resourceVersion", None);
    let Some(fields) = part.as_object_mut() else { return part };
    if asked.is_status {
        fields.retain(|name, _| ["apiVersion", "kind", "metadata", "status"].contains(&name.as_str()));
        let identity: Map<String, Value> = sent["metadata"]
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, _)| ["name", "namespace"].contains(&name.as_str()))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        fields.insert("metadata".to_owned(), Value::Object(identity));
    } else if asked.resource.has_status {
        fields.shift_remove("status");
    }
    part
}

/// The generation counts changes of everything but metadata and status.
fn set_generation(before: &Value, after: &mut Value, asked: &ObjectRequest<'_>) {
    if !asked.resource.has_generation {
        return;
    }
    let content = |object: &Value| -> Map<String, Value> {
        let fields = object.as_object().into_iter().flatten();
        fields
            .filter(|(name, _)| !["apiVersion", "kind", "metadata", "status"].contains(&name.as_str()))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    };
    let known = before.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or_default();
    let is_same = !before.is_null() && content(before) == content(after);
    set_meta(after, "generation", Some(json!(if is_same { known } else { known + 1 })));
}
