//! JSON patch (RFC 6902) and JSON merge patch (RFC 7396), with limits. `strategic` has Kubernetes' own patches.

use json_patch::{Patch, PatchOperation};
use serde_json::Value;

use crate::error::ApiError;

/// The most operations of a JSON patch, as in upstream.
const MAX_OPERATIONS: usize = 10_000;
/// The most bytes that the copy operations of one JSON patch may add.
const MAX_COPIED: usize = 3 << 20;

/// Applies a JSON patch.
pub(crate) fn json_patch(object: &Value, body: &[u8]) -> Result<Value, ApiError> {
    let bad =
        |error: &dyn std::fmt::Display| ApiError::bad_request(format!("could not decode the JSON patch: {error}"));
    let patch: Patch = serde_json::from_slice(body).map_err(|error| bad(&error))?;
    if patch.0.len() > MAX_OPERATIONS {
        let message =
            format!("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}", patch.0.len());
        return Err(ApiError::new(413, "RequestEntityTooLarge", message));
    }
    let mut object = object.clone();
    let mut copied = 0;
    for operation in patch.0 {
        if let PatchOperation::Copy(copy) = &operation {
            let source = object.pointer(copy.from.as_str()).map_or(0, |value| value.to_string().len());
            copied += source;
            if copied > MAX_COPIED {
                return Err(ApiError::new(
                    413,
                    "RequestEntityTooLarge",
                    format!("the copy operations of the JSON patch add more than {MAX_COPIED} bytes"),
                ));
            }
        }
        json_patch::patch(&mut object, std::slice::from_ref(&operation)).map_err(|error| {
            let message = format!("the server rejected our request due to an error in our request: {error}");
            ApiError::new(422, "Invalid", message)
        })?;
    }
    Ok(object)
}

/// Applies a merge patch.
pub(crate) fn merge_patch(object: &Value, body: &[u8]) -> Result<Value, ApiError> {
    let patch: Value = serde_json::from_slice(body)
        .map_err(|error| ApiError::bad_request(format!("could not decode the merge patch: {error}")))?;
    if !patch.is_object() {
        return Err(ApiError::bad_request("a merge patch must be a JSON object"));
    }
    let mut object = object.clone();
    json_patch::merge(&mut object, &patch);
    Ok(object)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{json_patch, merge_patch};

    #[test]
    fn patches_change_only_what_they_name() {
        let object = json!({"spec": {"hosts": ["a"], "x": 1}});
        let patched = json_patch(&object, br#"[{"op":"add","path":"/spec/hosts/-","value":"b"}]"#).unwrap();
        assert_eq!(patched, json!({"spec": {"hosts": ["a", "b"], "x": 1}}));
        let patched = merge_patch(&object, br#"{"spec":{"x":null,"y":2}}"#).unwrap();
        assert_eq!(patched, json!({"spec": {"hosts": ["a"], "y": 2}}));
    }

    #[test]
    fn failed_tests_and_malformed_patches_are_errors() {
        let object = json!({"a": 1});
        let failed = json_patch(&object, br#"[{"op":"test","path":"/a","value":2}]"#).unwrap_err();
        assert_eq!(failed.code, 422);
        assert_eq!(json_patch(&object, b"{").unwrap_err().code, 400);
        assert_eq!(merge_patch(&object, b"[1]").unwrap_err().code, 400);
    }

    #[test]
    fn a_patch_cannot_grow_an_object_without_bound() {
        let object = json!({"a": "x".repeat(1000)});
        let doubling: Vec<_> = (0..40).map(|n| json!({"op": "copy", "from": "", "path": format!("/k{n}")})).collect();
        let error = json_patch(&object, json!(doubling).to_string().as_bytes()).unwrap_err();
        assert_eq!(error.code, 413);
    }
}
