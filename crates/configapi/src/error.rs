//! Errors as clients of Kubernetes know them: a `Status` with code, reason, message and details. The texts are those of
//! upstream where clients parse or show them.

use serde_json::{Value, json};

use crate::field_cause::FieldCause;
use crate::resource::ResourceInfo;
use crate::store::StoreError;
use crate::store::cache::RevisionError;

/// A failed request.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub code: u16,
    pub reason: &'static str,
    pub message: String,
    pub details: Option<Value>,
}

impl ApiError {
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { code, reason, message: message.into(), details: None }
    }

    fn about(mut self, resource: &ResourceInfo, name: &str, causes: &[FieldCause]) -> ApiError {
        let mut details = json!({"name": name, "kind": resource.plural});
        if !resource.group.is_empty() {
            details["group"] = resource.group.clone().into();
        }
        if !causes.is_empty() {
            let cause = |c: &FieldCause| json!({"reason": c.reason, "message": c.message, "field": c.field});
            details["causes"] = causes.iter().map(cause).collect();
            // Upstream names the kind, not the resource, in errors of validation.
            if self.code == 422 {
                details["kind"] = resource.kind.clone().into();
            }
        }
        self.details = Some(details);
        self
    }

    pub fn bad_request(message: impl Into<String>) -> ApiError {
        ApiError::new(400, "BadRequest", message)
    }

    pub fn unauthorized() -> ApiError {
        ApiError::new(401, "Unauthorized", "Unauthorized")
    }

    pub fn forbidden(resource: &ResourceInfo, name: &str, message: impl Into<String>) -> ApiError {
        ApiError::new(403, "Forbidden", message).about(resource, name, &[])
    }

    /// A path that is not served.
    pub fn no_such_path() -> ApiError {
        ApiError::new(404, "NotFound", "the server could not find the requested resource")
    }

    pub fn not_found(resource: &ResourceInfo, name: &str) -> ApiError {
        let message = format!("{} {name:?} not found", resource.id);
        ApiError::new(404, "NotFound", message).about(resource, name, &[])
    }

    pub fn method_not_allowed() -> ApiError {
        let message = "the server does not allow this method on the requested resource";
        ApiError::new(405, "MethodNotAllowed", message)
    }

    pub fn not_acceptable(offered: &str) -> ApiError {
        let message = format!("only the following media types are accepted: {offered}");
        ApiError::new(406, "NotAcceptable", message)
    }

    pub fn already_exists(resource: &ResourceInfo, name: &str) -> ApiError {
        let message = format!("{} {name:?} already exists", resource.id);
        ApiError::new(409, "AlreadyExists", message).about(resource, name, &[])
    }

    pub fn conflict(resource: &ResourceInfo, name: &str, cause: &str) -> ApiError {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {cause}", resource.id);
        ApiError::new(409, "Conflict", message).about(resource, name, &[])
    }

    /// The object was changed since the client read it.
    pub fn modified(resource: &ResourceInfo, name: &str) -> ApiError {
        let cause = "the object has been modified; please apply your changes to the latest version and try again";
        ApiError::conflict(resource, name, cause)
    }

    /// A server-side apply that would take fields from other managers.
    pub fn apply_conflict(message: String, causes: &[FieldCause]) -> ApiError {
        let cause = |c: &FieldCause| json!({"reason": c.reason, "message": c.message, "field": c.field});
        let details = json!({"causes": causes.iter().map(cause).collect::<Vec<_>>()});
        ApiError { details: Some(details), ..ApiError::new(409, "Conflict", message) }
    }

    pub fn expired(message: impl Into<String>) -> ApiError {
        ApiError::new(410, "Expired", message)
    }

    pub fn too_large(path: &str, limit: usize) -> ApiError {
        let message = format!("request body for {path} is too large: limit is {limit} bytes");
        ApiError::new(413, "RequestEntityTooLarge", message)
    }

    pub fn unsupported_media_type(found: &str, accepted: &str) -> ApiError {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {accepted} (found {found:?})"
        );
        ApiError::new(415, "UnsupportedMediaType", message)
    }

    pub fn invalid(resource: &ResourceInfo, name: &str, causes: &[FieldCause]) -> ApiError {
        let text = |c: &FieldCause| match c.field.as_str() {
            "" => c.message.clone(),
            field => format!("{field}: {}", c.message),
        };
        let list = match causes {
            [one] => text(one),
            many => format!("[{}]", many.iter().map(text).collect::<Vec<_>>().join(", ")),
        };
        let kind = if resource.group.is_empty() {
            resource.kind.clone()
        } else {
            format!("{}.{}", resource.kind, resource.group)
        };
        ApiError::new(422, "Invalid", format!("{kind} {name:?} is invalid: {list}")).about(resource, name, causes)
    }

    /// The storage failed.
    pub fn of_storage(error: &StoreError) -> ApiError {
        let (code, reason) = match error {
            StoreError::Unavailable { .. } => (503, "ServiceUnavailable"),
            StoreError::Unconfirmed { .. } => (504, "Timeout"),
            StoreError::TooLarge { .. } => (413, "RequestEntityTooLarge"),
            StoreError::Conflict { .. }
            | StoreError::RequiredChanged { .. }
            | StoreError::Failed { .. }
            | StoreError::Closed(_) => (500, "InternalError"),
        };
        ApiError::new(code, reason, error.to_string())
    }

    pub fn of_revision(error: RevisionError) -> ApiError {
        match error {
            RevisionError::Expired { .. } => ApiError::expired(error.to_string()),
            RevisionError::Future { .. } => {
                let details = json!({
                    "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
                    "retryAfterSeconds": 1,
                });
                let message = format!("Timeout: {error}");
                ApiError { details: Some(details), ..ApiError::new(504, "Timeout", message) }
            }
        }
    }

    /// The `Status` object.
    pub fn to_json(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        });
        if let Some(details) = &self.details {
            status["details"] = details.clone();
        }
        status
    }
}
