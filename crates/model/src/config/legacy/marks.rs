//! Annotations of objects that a conversion made, for what only the whole mesh can decide: the order of RouteRules, and
//! subsets that another object may define too; and for what they were made from.

use serde_json::{Value, json};

use crate::config::Meta;

/// Precedence of a RouteRule. The snapshot joins the rules of one destination.
const PRECEDENCE: &str = "internal.istio.io/route-rule-precedence";
/// A DestinationRule that only names the subsets of a RouteRule.
const SUBSETS: &str = "internal.istio.io/route-rule-subsets";
/// The legacy object that an object of the snapshot was made from.
pub const SOURCE: &str = "internal.istio.io/legacy-source";

pub(super) fn with_precedence(document: Value, precedence: i64) -> Value {
    annotated(document, PRECEDENCE, &precedence.to_string())
}

pub(super) fn with_subsets_only(document: Value) -> Value {
    annotated(document, SUBSETS, "true")
}

fn annotated(mut document: Value, key: &str, value: &str) -> Value {
    let annotations = &mut document["metadata"]["annotations"];
    if !annotations.is_object() {
        *annotations = json!({});
    }
    annotations[key] = json!(value);
    document
}

/// The document without the annotations of this module.
pub(super) fn unmarked(document: &Value) -> Value {
    let mut document = document.clone();
    if let Some(metadata) = document["metadata"].as_object_mut() {
        let left = metadata.get_mut("annotations").and_then(Value::as_object_mut).map(|annotations| {
            [PRECEDENCE, SUBSETS].iter().for_each(|key| {
                annotations.remove(*key);
            });
            annotations.len()
        });
        if left == Some(0) {
            metadata.remove("annotations");
        }
    }
    document
}

/// The precedence of the RouteRule that the object was made of.
pub(crate) fn precedence(meta: &Meta) -> Option<i64> {
    meta.annotations.get(PRECEDENCE)?.parse().ok()
}

/// Whether an object of the snapshot was made from a legacy one.
pub fn is_made_from_legacy(meta: &Meta) -> bool {
    meta.annotations.contains_key(SOURCE)
}

/// True for a DestinationRule that yields to all others of its host.
pub(crate) fn only_names_subsets(meta: &Meta) -> bool {
    meta.annotations.contains_key(SUBSETS)
}
