//! The plan as text.

use serde_json::Value;

use super::GroupEffect;
use crate::output::{green, red, yellow};

/// Resources of a group that are listed by name.
const MOST_RESOURCES: usize = 30;
/// Proxies of a group that are named.
const MOST_PROXIES: usize = 3;

fn marked(change: &str, text: &str) -> String {
    match change {
        "added" => green(&format!("+ {text}")),
        "deleted" | "removed" => red(&format!("- {text}")),
        "changed" => yellow(&format!("~ {text}")),
        _ => format!("  {text} (unchanged)"),
    }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map(Vec::as_slice).unwrap_or_default()
}

pub(super) fn print(report: &Value, effects: &[GroupEffect]) {
    let lines = lines(report, effects);
    anstream::print!("{}", lines.iter().map(|line| format!("{line}\n")).collect::<String>());
}

fn lines(report: &Value, effects: &[GroupEffect]) -> Vec<String> {
    let mut lines = Vec::new();
    for object in list(report, "objects") {
        let name = format!("{} {}/{}", text(object, "kind"), text(object, "namespace"), text(object, "name"));
        lines.push(marked(text(object, "change"), &name));
    }
    for problem in list(report, "problems").iter().filter_map(Value::as_str) {
        lines.push(yellow(&format!("new problem: {problem}")));
    }
    lines.push(String::new());
    lines.push(format!("{} of {} proxies get different resources", report["touched"], report["proxies"]));
    for group in list(report, "groups") {
        lines.extend(group_lines(group));
    }
    for effect in effects {
        lines.extend(effect_lines(effect));
    }
    if let Some(count) = report["uncheckedGroups"].as_u64().filter(|count| *count > 0) {
        let of = list(report, "groups").len();
        lines.push(yellow(&format!("\nnot checked: {count} of {of} groups of proxies, because of --groups")));
    }
    if let Some(reason) = report["verdictMissing"].as_str() {
        lines.push(red(&format!("\nthe verdict of Envoy is missing: {reason}; --no-validate does without it")));
    }
    lines
}

fn group_lines(group: &Value) -> Vec<String> {
    let proxies: Vec<&str> = list(group, "proxies").iter().filter_map(Value::as_str).collect();
    let named = proxies.iter().take(MOST_PROXIES).copied().collect::<Vec<_>>().join(", ");
    let more = proxies.len().saturating_sub(MOST_PROXIES);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let resources = list(group, "resources");
    let mut lines = vec![format!("\n{named}{more}: {} resources", resources.len())];
    for resource in resources.iter().take(MOST_RESOURCES) {
        let name = format!("{} {}", text(resource, "type"), text(resource, "name"));
        lines.push(format!("  {}", marked(text(resource, "change"), &name)));
    }
    if resources.len() > MOST_RESOURCES {
        lines.push(format!("  and {} more; -o json lists all", resources.len() - MOST_RESOURCES));
    }
    lines
}

fn effect_lines(effect: &GroupEffect) -> Vec<String> {
    let mut lines = Vec::new();
    if !effect.requests.is_empty() {
        lines.push(format!("\nrequests of {} that go another way:", effect.proxy));
    }
    for way in &effect.requests {
        lines.push(format!("  {}", way.request));
        lines.push(format!("    {}", red(&format!("- {}", way.before))));
        lines.push(format!("    {}", green(&format!("+ {}", way.after))));
    }
    match &effect.verdict {
        None => {}
        Some(Ok(())) => lines.push(format!("\nEnvoy accepts the configuration of {}", effect.proxy)),
        Some(Err(reason)) => {
            lines.push(red(&format!("\nEnvoy rejects the configuration of {}: {reason}", effect.proxy)))
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{GroupEffect, lines};

    #[test]
    fn a_plan_names_objects_proxies_and_resources() {
        let report = json!({
            "objects": [{"kind": "VirtualService", "namespace": "shop", "name": "cart", "change": "changed"}],
            "problems": ["VirtualService shop/cart: no such host"], "touched": 5, "proxies": 7,
            "groups": [{"proxies": ["a.x", "b.x", "c.x", "d.x", "e.x"],
                "resources": [{"type": "RDS", "name": "80", "change": "changed"}]}, {}, {}],
            "uncheckedGroups": 2, "verdictMissing": "could not find an Envoy",
        });
        let effect = GroupEffect {
            proxy: "a.x".to_owned(),
            requests: Vec::new(),
            verdict: Some(Err("no healthy upstream".to_owned())),
        };
        let text = anstream::adapter::strip_str(&lines(&report, &[effect]).join("\n")).to_string();
        for expected in [
            "~ VirtualService shop/cart",
            "new problem: VirtualService shop/cart: no such host",
            "5 of 7 proxies get different resources",
            "a.x, b.x, c.x and 2 more: 1 resources",
            "  ~ RDS 80",
            "Envoy rejects the configuration of a.x: no healthy upstream",
            "not checked: 2 of 3 groups of proxies, because of --groups",
            "the verdict of Envoy is missing: could not find an Envoy; --no-validate does without it",
        ] {
            assert!(text.contains(expected), "no {expected:?} in\n{text}");
        }
    }
}
