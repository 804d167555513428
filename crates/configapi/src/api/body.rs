//! Bodies of requests: JSON, YAML, or the protobuf encoding of core kinds.

use std::fmt::Display;

use serde_json::Value;

use super::ApiRequest;
use crate::error::ApiError;
use crate::output::JSON;
use crate::protobuf;

pub(super) const APPLY_PATCH: &str = "application/apply-patch+yaml";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The JSON of a body.
pub(super) fn decode(request: &ApiRequest) -> Result<Value, ApiError> {
    let kind = request.content_type.split(';').next().unwrap_or_default().trim();
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
