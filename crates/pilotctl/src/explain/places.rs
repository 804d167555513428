//! File and line of the objects that an explanation names, and of their rules.

use std::collections::{BTreeMap, BTreeSet};

use explain::{Explanation, places::rule_field};
use serde_json::Value;

use crate::control_plane::{ControlPlaneOptions, escaped};

/// Places by the path of the object, or by `FIELD from PATH` for a rule.
pub(super) async fn of(server: &ControlPlaneOptions, explanation: &Explanation) -> BTreeMap<String, String> {
    let mut places = BTreeMap::new();
    let configs: BTreeSet<&str> = explanation.configs().into_iter().collect();
    for config in configs {
        let path = format!("/api/v1/objects?lines&spec&config={}", escaped(config));
        // A bundle has no lines.
        let Ok(Value::Array(objects)) = server.page(&path).await else { continue };
        let Some(object) = objects.iter().find(|object| object["config"] == config) else { continue };
        let Some(file) = object["file"].as_str() else { continue };
        let line = object["line"].as_u64().map_or(String::new(), |line| format!(":{line}"));
        places.insert(config.to_owned(), format!("{file}{line}"));
        let lines = object["lines"].as_object().into_iter().flatten();
        for (field, line) in lines {
            places.insert(format!("{field} from {config}"), format!("{file}:{line}"));
        }
        let of_route = explanation.route.as_ref().filter(|route| route.config.as_deref() == Some(config));
        let field = of_route.and_then(|route| rule_field(&route.of_object, &object["object"]));
        if let Some(place) = field.and_then(|field| places.get(&format!("{field} from {config}")).cloned()) {
            places.insert(format!("route from {config}"), place);
        }
    }
    places
}

/// The explanation's text with places after the objects that it names.
pub(super) fn text(explanation: &Explanation, places: &BTreeMap<String, String>) -> String {
    let line = |line: &str| -> String {
        let Some((before, config)) = line.rsplit_once("from ") else { return line.to_owned() };
        let Some(object) = places.get(config) else { return line.to_owned() };
        // A rule is printed as `FIELD from OBJECT`, a route as `route NUMBER from OBJECT`.
        let field = before.trim();
        let rule = match field.starts_with("route ") {
            true => places.get(&format!("route from {config}")),
            false => places.get(&format!("{field} from {config}")),
        };
        let rule = rule.and_then(|place| place.rsplit(':').next());
        match rule {
            Some(rule) => format!("{line} ({object}, rule in line {rule})"),
            None => format!("{line} ({object})"),
        }
    };
    explanation.to_string().lines().map(|text| format!("{}\n", line(text))).collect()
}
