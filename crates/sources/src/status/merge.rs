//! Merges our status into the current one: entries of other controllers are kept, and `lastTransitionTime` changes only
//! with the status of a condition.

use serde_json::{Map, Value, json};

/// Our controller names in entries of lists that several controllers write.
#[derive(Clone, Debug)]
pub struct Controllers([String; 2]);

impl Controllers {
    /// The controller of gateways and routes, and the one of the mesh.
    pub fn new(gateways: &str) -> Controllers {
        Controllers([gateways.to_owned(), "istio.io/mesh-controller".to_owned()])
    }

    fn own(&self, entry: &Value) -> bool {
        entry.get("controllerName").and_then(Value::as_str).is_some_and(|name| self.0.iter().any(|own| own == name))
    }
}

/// Lists that several controllers write, with the field that identifies an entry.
const SHARED: [(&str, &str); 2] = [("parents", "parentRef"), ("ancestors", "ancestorRef")];
/// Fields that only we write. They are removed if our status does not have them.
const OWN_FIELDS: [&str; 2] = ["listeners", "attachedListenerSets"];
/// Conditions that are removed if our status does not have them.
const OPTIONAL: [&str; 1] = ["InsecureFrontendValidationMode"];

/// The status to write.
pub fn merged(current: Option<&Value>, wanted: &Value, controllers: &Controllers, now: &str) -> Value {
    let mut out: Map<String, Value> = current.and_then(Value::as_object).cloned().unwrap_or_default();
    for field in OWN_FIELDS {
        if wanted.get(field).is_none() {
            out.remove(field);
        }
    }
    for (field, value) in wanted.as_object().into_iter().flatten() {
        let before = out.get(field).and_then(Value::as_array).cloned().unwrap_or_default();
        let shared = SHARED.iter().find(|(name, _)| name == field);
        let merged = match (field.as_str(), shared) {
            ("conditions", _) => conditions(&before, value, OtherConditions::Kept, now),
            ("listeners", _) => {
                entries(&before, value, |a, b| a.get("name") == b.get("name"), OtherConditions::Kept, now).into()
            }
            (_, Some((_, about))) => shared_entries(&before, value, about, controllers, now),
            _ => value.clone(),
        };
        out.insert(field.clone(), merged);
    }
    Value::Object(out)
}

/// Whether conditions that our status does not have are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OtherConditions {
    Kept,
    Dropped,
}

fn shared_entries(before: &[Value], wanted: &Value, about: &str, controllers: &Controllers, now: &str) -> Value {
    let (own, others): (Vec<Value>, Vec<Value>) = before.iter().cloned().partition(|entry| controllers.own(entry));
    let same =
        |a: &Value, b: &Value| a.get(about) == b.get(about) && a.get("controllerName") == b.get("controllerName");
    let ours = entries(&own, wanted, same, OtherConditions::Dropped, now);
    others.into_iter().chain(ours).collect()
}

/// Our entries; unchanged conditions keep their transition times.
fn entries(
    before: &[Value],
    wanted: &Value,
    same: impl Fn(&Value, &Value) -> bool,
    others: OtherConditions,
    now: &str,
) -> Vec<Value> {
    let entry = |wanted: &Value| {
        let known = before.iter().find(|known| same(known, wanted));
        let known = known.and_then(|k| k.get("conditions")).and_then(Value::as_array).cloned().unwrap_or_default();
        let mut out = wanted.clone();
        if let Some(list) = wanted.get("conditions") {
            out["conditions"] = conditions(&known, list, others, now);
        }
        out
    };
    wanted.as_array().into_iter().flatten().map(entry).collect()
}

fn conditions(before: &[Value], wanted: &Value, others: OtherConditions, now: &str) -> Value {
    let wanted: Vec<&Value> = wanted.as_array().into_iter().flatten().collect();
    let find = |kind: &Value| before.iter().find(|known| known.get("type") == Some(kind));
    let dated = |condition: &Value| {
        let known = condition.get("type").and_then(find);
        let same = known.filter(|known| known.get("status") == condition.get("status"));
        let since = same.and_then(|known| known.get("lastTransitionTime")).cloned().unwrap_or_else(|| json!(now));
        let mut out = condition.clone();
        out["lastTransitionTime"] = since;
        out
    };
    let is_optional = |known: &Value| OPTIONAL.iter().any(|kind| known.get("type") == Some(&json!(kind)));
    // Existing conditions keep their position, so that an unchanged status compares equal.
    let mut out = Vec::new();
    for known in before {
        match wanted.iter().find(|w| w.get("type") == known.get("type")) {
            Some(wanted) => out.push(dated(wanted)),
            None if others == OtherConditions::Kept && !is_optional(known) => out.push(known.clone()),
            None => {}
        }
    }
    out.extend(wanted.iter().filter(|w| w.get("type").and_then(find).is_none()).map(|w| dated(w)));
    Value::Array(out)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Controllers, merged};

    fn merge(current: Value, wanted: Value) -> Value {
        merged(Some(&current), &wanted, &Controllers::new("ours"), "now")
    }

    fn condition(kind: &str, status: &str, time: Option<&str>) -> Value {
        let mut condition = json!({"type": kind, "status": status, "reason": "R", "message": "m"});
        if let Some(time) = time {
            condition["lastTransitionTime"] = json!(time);
        }
        condition
    }

    #[test]
    fn an_equal_status_is_not_changed() {
        let current =
            json!({"conditions": [condition("B", "True", Some("then")), condition("A", "True", Some("then"))]});
        let wanted = json!({"conditions": [condition("A", "True", None), condition("B", "True", None)]});
        assert_eq!(merge(current.clone(), wanted), current);
    }

    #[test]
    fn a_condition_whose_status_changes_gets_a_new_time() {
        let current = json!({"conditions": [condition("A", "Unknown", Some("1970"))]});
        let wanted = json!({"conditions": [condition("A", "True", None)]});
        assert_eq!(merge(current, wanted), json!({"conditions": [condition("A", "True", Some("now"))]}));
    }

    #[test]
    fn entries_of_other_controllers_are_kept_and_our_old_ones_removed() {
        let parent = |controller: &str, name: &str| json!({"controllerName": controller, "parentRef": {"name": name}, "conditions": []});
        let current = json!({"parents": [parent("ours", "gone"), parent("theirs", "a")]});
        let wanted = json!({"parents": [parent("ours", "a")]});
        assert_eq!(merge(current, wanted), json!({"parents": [parent("theirs", "a"), parent("ours", "a")]}));
    }

    #[test]
    fn conditions_of_others_on_a_listener_and_addresses_are_kept() {
        let listener = |conditions: Value| json!({"name": "web", "conditions": conditions});
        let foreign = || condition("example.com/Checked", "True", Some("then"));
        let current = json!({
            "addresses": [{"value": "10.0.0.1"}],
            "listeners": [listener(json!([foreign(), condition("A", "False", Some("then"))]))],
        });
        let wanted = json!({"listeners": [listener(json!([condition("A", "True", None)]))]});
        let expected = json!({
            "addresses": [{"value": "10.0.0.1"}],
            "listeners": [listener(json!([foreign(), condition("A", "True", Some("now"))]))],
        });
        assert_eq!(merge(current, wanted), expected);
    }
}
