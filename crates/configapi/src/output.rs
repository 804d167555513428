//! The forms in which objects are sent: plain JSON, tables for kubectl, metadata alone.

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::resource::ResourceInfo;
use crate::table;

pub(crate) const JSON: &str = "application/json";

/// The form of objects in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputForm {
    Json,
    Table,
    /// `PartialObjectMetadata`.
    Metadata,
}

impl OutputForm {
    /// The first form of an `Accept` header that is served.
    pub(crate) fn of_accept(accept: &str) -> Result<OutputForm, ApiError> {
        for part in accept.split(',').map(str::trim) {
            let mut parameters = part.split(';').map(str::trim);
            let kind = parameters.next().unwrap_or_default();
            if !["", "*/*", "application/*", JSON].contains(&kind) {
                continue;
            }
            let parameters: Vec<&str> = parameters.collect();
            if parameters.contains(&"as=Table") && parameters.contains(&"v=v1") {
                return Ok(OutputForm::Table);
            }
            let metadata = ["as=PartialObjectMetadata", "as=PartialObjectMetadataList"];
            if parameters.iter().any(|parameter| metadata.contains(parameter)) {
                return Ok(OutputForm::Metadata);
            }
            if !parameters.iter().any(|parameter| parameter.starts_with("as=")) {
                return Ok(OutputForm::Json);
            }
        }
        Err(ApiError::not_acceptable(JSON))
    }

    /// One object in this form.
    pub(crate) fn one(self, object: &Value, resource: &ResourceInfo) -> Value {
        match self {
            OutputForm::Json => object.clone(),
            OutputForm::Metadata => table::partial(object),
            OutputForm::Table => {
                let meta = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
                table::table(std::slice::from_ref(object), resource, &meta, "Metadata")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::OutputForm;

    #[test]
    fn the_first_served_form_is_taken() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        for (accept, expected) in [
            ("", OutputForm::Json),
            ("*/*", OutputForm::Json),
            ("application/vnd.kubernetes.protobuf,application/json", OutputForm::Json),
            (kubectl, OutputForm::Table),
            ("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", OutputForm::Metadata),
        ] {
            assert_eq!(OutputForm::of_accept(accept), Ok(expected), "{accept}");
        }
        assert_eq!(OutputForm::of_accept("text/html").map_err(|error| error.code), Err(406));
    }
}
