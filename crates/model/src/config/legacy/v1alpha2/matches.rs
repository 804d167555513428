//! The match conditions of RouteRules and IngressRules.

use serde_json::{Map, Value, json};

use super::super::LegacyError;
use super::super::fields::LegacyFields;
use super::service::ServiceRef;

/// Header names that meant other parts of the request.
const PARTS: &[&str] = &["uri", "scheme", "method", "authority"];

/// The HTTP match of a VirtualService; empty without conditions.
pub(super) fn http(mut fields: LegacyFields<'_>, notes: &mut Vec<String>) -> Result<Map<String, Value>, LegacyError> {
    let mut condition = Map::new();
    for layer in ["tcp", "udp"] {
        if fields.value(layer).is_some() {
            return Err(LegacyError::NoEquivalent {
                path: fields.path(layer),
                reason: "only HTTP conditions are read",
            });
        }
    }
    if let Some(source) = fields.message("source")? {
        let path = fields.path("source");
        condition.extend(callers(ServiceRef::read(source, notes)?, &path)?);
    }
    if let Some(mut request) = fields.message("request")? {
        let mut headers = Map::new();
        if let Some(Value::Object(wanted)) = request.value("headers") {
            for (name, wanted) in wanted {
                let into = if PARTS.contains(&name.as_str()) { &mut condition } else { &mut headers };
                into.insert(name.clone(), wanted.clone());
            }
        }
        if !headers.is_empty() {
            condition.insert("headers".to_owned(), headers.into());
        }
        request.finish(notes);
    }
    fields.finish(notes);
    Ok(condition)
}

/// Callers are now matched by labels and namespace, no longer by service.
fn callers(source: ServiceRef, path: &str) -> Result<Map<String, Value>, LegacyError> {
    if source.labels.is_empty() {
        return Err(LegacyError::NoEquivalent {
            path: path.to_owned(),
            reason: "callers are selected by labels in current kinds; without labels the rule would apply to all",
        });
    }
    let mut condition = Map::from_iter([("sourceLabels".to_owned(), source.labels.into())]);
    if !source.namespace.is_empty() {
        condition.insert("sourceNamespace".to_owned(), json!(source.namespace));
    }
    Ok(condition)
}
