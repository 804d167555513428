//! Overlays of managed gateways: ConfigMaps whose keys name objects and whose values are merged over them by Kubernetes'
//! rules for strategic merge patches.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{CLASS_LABEL, GatewayObjectsError, MANAGED_LABEL, NAME_LABEL};
use crate::merge::merge;
use crate::pod::JsonMap;
use crate::values;

pub(super) const DEPLOYMENT: &str = "deployment";
pub(super) const SERVICE: &str = "service";
pub(super) const ACCOUNT: &str = "serviceAccount";
pub(super) const AUTOSCALER: &str = "horizontalPodAutoscaler";
pub(super) const DISRUPTION_BUDGET: &str = "podDisruptionBudget";

const KEYS: [&str; 5] = [DEPLOYMENT, SERVICE, ACCOUNT, AUTOSCALER, DISRUPTION_BUDGET];
/// Objects that exist only if an overlay has them.
const ON_REQUEST: [&str; 2] = [AUTOSCALER, DISRUPTION_BUDGET];
/// Labels by which the objects of a gateway are found.
const KEPT_LABELS: [&str; 3] = [NAME_LABEL, CLASS_LABEL, MANAGED_LABEL];

/// An error if an overlay has a key that names no object.
pub(super) fn check_keys(overlays: &[&BTreeMap<String, String>]) -> Result<(), GatewayObjectsError> {
    let unknown = overlays.iter().flat_map(|overlay| overlay.keys()).find(|key| !KEYS.contains(&key.as_str()));
    match unknown {
        Some(key) => Err(GatewayObjectsError::UnknownOverlay { key: key.clone(), known: KEYS.join(", ") }),
        None => Ok(()),
    }
}

/// An object with its overlays; `None` if it exists on request only and no overlay has it.
pub(super) fn merged(
    key: &'static str,
    mut object: Value,
    overlays: &[&BTreeMap<String, String>],
) -> Result<Option<Value>, GatewayObjectsError> {
    let texts: Vec<&String> = overlays.iter().filter_map(|overlay| overlay.get(key)).collect();
    if texts.is_empty() && ON_REQUEST.contains(&key) {
        return Ok(None);
    }
    let failed = |reason: String| GatewayObjectsError::Overlay { key, reason };
    let original = object.clone();
    for text in texts {
        let overlay = match values::read("overlay", text).map_err(|error| failed(error.to_string()))? {
            Value::Object(map) => map,
            Value::Null => continue,
            _ => return Err(failed("expected a map".to_owned())),
        };
        check_identity(&original, &overlay).map_err(failed)?;
        if let Value::Object(base) = &mut object {
            merge(base, overlay);
        }
    }
    keep_labels(&mut object, &original).map_err(failed)?;
    Ok(Some(object))
}

/// An error if an overlay says that the object is another one. Of the metadata only labels and annotations may change.
fn check_identity(object: &Value, overlay: &JsonMap) -> Result<(), String> {
    let differs = |field: &str, pointer: &str, given: &Value| {
        (object.pointer(pointer) != Some(given)).then(|| format!("{field} must not be changed"))
    };
    for field in ["apiVersion", "kind"] {
        if let Some(reason) = overlay.get(field).and_then(|given| differs(field, &format!("/{field}"), given)) {
            return Err(reason);
        }
    }
    if let Some(directive) = overlay.keys().find(|key| key.starts_with('$')) {
        return Err(format!("{directive} is not supported for the whole object"));
    }
    let Some(metadata) = overlay.get("metadata") else { return Ok(()) };
    let Value::Object(metadata) = metadata else { return Err("metadata must be a map".to_owned()) };
    for (field, given) in metadata {
        let reason = match field.as_str() {
            "labels" | "annotations" => None,
            other => differs(&format!("metadata.{other}"), &format!("/metadata/{other}"), given),
        };
        if let Some(reason) = reason {
            return Err(reason);
        }
    }
    Ok(())
}

/// Restores the labels by which the object is found.
fn keep_labels(object: &mut Value, original: &Value) -> Result<(), String> {
    let kept = original.pointer("/metadata/labels").and_then(Value::as_object).cloned().unwrap_or_default();
    let Some(Value::Object(metadata)) = object.get_mut("metadata") else { return Err("it has no metadata".to_owned()) };
    let labels = metadata.entry("labels").or_insert_with(|| Value::Object(JsonMap::new()));
    let Value::Object(labels) = labels else { return Err("metadata.labels must be a map".to_owned()) };
    labels.extend(kept.into_iter().filter(|(name, _)| KEPT_LABELS.contains(&name.as_str())));
    Ok(())
}
