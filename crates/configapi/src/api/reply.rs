//! Answers with one object.

use serde_json::Value;

use super::{ApiResponse, ObjectRequest};
use crate::output::OutputForm;

/// The answer with one object.
pub(crate) fn object_response(
    code: u16,
    object: &Value,
    asked: &ObjectRequest<'_>,
    warnings: Vec<String>,
) -> ApiResponse {
    let form = match asked.form {
        // kubectl asks for tables of lists and single objects, never of writes.
        OutputForm::Table if asked.request.method != http::Method::GET => OutputForm::Json,
        form => form,
    };
    ApiResponse { warnings, ..ApiResponse::json(code, &form.one(object, asked.resource)) }
}
