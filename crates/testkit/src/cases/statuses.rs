//! Statuses that a server writes: one for every object of the Gateway API, and for every other object whose status
//! changes. Times and the order of entries are ignored.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::objects::objects;
use super::{Case, CaseInput, ResourceLookup};

/// Returns the status that the server writes to an object; `None` if it writes none.
pub type StatusLookup = Box<dyn Fn(&Value) -> Option<Value>>;

/// The server under test for one case.
pub struct CaseServer {
    pub answers: ResourceLookup,
    /// `None` for a server that does not write statuses.
    pub statuses: Option<StatusLookup>,
}

impl From<ResourceLookup> for CaseServer {
    fn from(answers: ResourceLookup) -> CaseServer {
        CaseServer { answers, statuses: None }
    }
}

/// Lists whose order has no meaning.
const UNORDERED: &[&str] = &["conditions", "parents", "ancestors", "listeners"];

/// The recorded statuses of a case.
pub(super) fn expected(recorded: &BTreeMap<String, Value>) -> Vec<Arc<Value>> {
    recorded.iter().map(|(name, status)| Arc::new(json!({"name": name, "status": canonical(status.clone())}))).collect()
}

/// Statuses by object name with sorted keys, as in `status.yaml`.
pub(super) fn by_name(statuses: &[Arc<Value>]) -> BTreeMap<String, Value> {
    let mut by_name = BTreeMap::new();
    for named in statuses {
        let mut status = named["status"].clone();
        status.sort_all_objects();
        by_name.insert(named["name"].as_str().unwrap_or_default().to_owned(), status);
    }
    by_name
}

/// Statuses of the objects of a case after the server ran.
pub(super) fn got(case: &Case, statuses: &StatusLookup) -> Vec<Arc<Value>> {
    let CaseInput::Kubernetes(text) = &case.world else { return Vec::new() };
    let mut found = Vec::new();
    for mut object in objects(text) {
        let first = first(&object);
        if object["status"].is_null() {
            object["status"].clone_from(&first);
        }
        let before = object["status"].clone();
        let after = statuses(&object).unwrap_or_else(|| before.clone());
        let is_gateway_api = object["apiVersion"].as_str().is_some_and(|v| v.starts_with("gateway.networking."));
        if is_gateway_api || after != before {
            found.push(named(&object, &object["metadata"], after));
        }
    }
    found
}

/// The default status of a new object.
fn first(object: &Value) -> Value {
    let waiting = |kinds: &[&str]| {
        let condition = |kind: &&str| json!({"type": kind, "status": "Unknown", "reason": "Pending", "message": "Waiting for controller"});
        json!({"conditions": kinds.iter().map(condition).collect::<Vec<Value>>()})
    };
    match object["kind"].as_str().unwrap_or_default() {
        "GatewayClass" => waiting(&["Accepted"]),
        "Gateway" | "ListenerSet" => waiting(&["Accepted", "Programmed"]),
        "Ingress" => json!({"loadBalancer": {}}),
        _ => json!({}),
    }
}

pub(super) fn named(object: &Value, meta: &Value, status: Value) -> Arc<Value> {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, namespace, name) = (word(&object["kind"]), word(&meta["namespace"]), word(&meta["name"]));
    Arc::new(json!({"name": format!("{kind} {namespace}/{name}"), "status": canonical(status)}))
}

fn canonical(value: Value) -> Value {
    match value {
        Value::Object(entries) => entries
            .into_iter()
            .filter(|(key, _)| key != "lastTransitionTime")
            .map(|(key, value)| {
                let mut value = canonical(value);
                if let Some(items) = value.as_array_mut().filter(|_| UNORDERED.contains(&key.as_str())) {
                    items.sort_by_cached_key(sorted_text);
                }
                (key, value)
            })
            .collect(),
        Value::Array(items) => items.into_iter().map(canonical).collect(),
        other => other,
    }
}

/// The same text for equal values.
fn sorted_text(value: &Value) -> String {
    let mut value = value.clone();
    value.sort_all_objects();
    value.to_string()
}
