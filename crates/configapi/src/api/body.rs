//! Bodies of requests: JSON, YAML, or the protobuf encoding of core kinds.

use std::fmt::Display;

use serde_json::Value;

use super::ApiRequest;
use crate::error::ApiError;
use crate::output::JSON;
use crate::protobuf;
use crate::schema::duplicates::duplicate_fields;

pub(super) const APPLY_PATCH: &str = "application/apply-patch+yaml";
pub(super) const MERGE_PATCH: &str = "application/merge-patch+json";
pub(super) const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

fn content_type(request: &ApiRequest) -> &str {
    request.content_type.split(';').next().unwrap_or_default().trim()
}

/// Fields that the JSON of an object or of a part of it has twice. YAML with such fields is not decoded.
pub(super) fn duplicates(request: &ApiRequest) -> Vec<String> {
    match content_type(request) {
        "" | JSON | APPLY_PATCH | MERGE_PATCH | STRATEGIC_PATCH => duplicate_fields(&request.body),
        _ => Vec::new(),
    }
}

/// The JSON of a body.
pub(super) fn decode(request: &ApiRequest) -> Result<Value, ApiError> {
    let kind = content_type(request);
    let bad = |error: &dyn Display| ApiError::bad_request(format!("could not decode the body of the request: {error}"));
    match kind {
        "" | JSON => serde_json::from_slice(&request.body).map_err(|error| bad(&error)),
        YAML | APPLY_PATCH => {
            let text = std::str::from_utf8(&request.body).map_err(|error| bad(&error))?;
            // kubectl sends JSON here, which is parsed quicker.
            match serde_json::from_str(text) {
                Ok(object) => Ok(object),
                Err(_) => model::config::read_yaml(text).map_err(|error| bad(&error)),
            }
        }
        PROTOBUF => protobuf::decode(&request.body).map_err(|error| match error {
            protobuf::ProtobufError::UnknownKind(_) => ApiError::unsupported_media_type(PROTOBUF, JSON),
            other => bad(&other),
        }),
        other => Err(ApiError::unsupported_media_type(other, &[JSON, YAML, PROTOBUF].join(", "))),
    }
}
