//! Differences between two canonical forms: the smallest differing parts with their paths. List items are aligned by
//! name, filter chain match or route match if that is unique.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

/// One place where the forms differ.
#[derive(Debug, PartialEq)]
pub struct Difference {
    pub path: String,
    pub expected: Option<Value>,
    pub got: Option<Value>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {} got {}", self.path, short(self.expected.as_ref()), short(self.got.as_ref()))
    }
}

/// All differences in order of their paths. Empty if the forms are equal.
pub fn differences(expected: &Value, got: &Value) -> Vec<Difference> {
    let mut out = Vec::new();
    walk(Some(expected), Some(got), String::new(), &mut out);
    out
}

fn short(value: Option<&Value>) -> String {
    let Some(value) = value else { return "(absent)".to_owned() };
    cut(&value.to_string(), 160)
}

fn cut(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        text.to_owned()
    } else {
        text.chars().take(limit - 3).chain("...".chars()).collect()
    }
}

fn walk(expected: Option<&Value>, got: Option<&Value>, path: String, out: &mut Vec<Difference>) {
    match (expected, got) {
        (a, b) if a == b => {}
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            if a.get("@type") != b.get("@type") {
                return out.push(place(format!("{path}.@type"), a.get("@type"), b.get("@type")));
            }
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                walk(a.get(key), b.get(key), below, out);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => match labels(a, b) {
            Some((left, right)) => walk_labelled((a, &left), (b, &right), &path, out),
            None => walk_numbered(a, b, &path, out),
        },
        _ => out.push(place(path, expected, got)),
    }
}

fn place(path: String, expected: Option<&Value>, got: Option<&Value>) -> Difference {
    Difference { path, expected: expected.cloned(), got: got.cloned() }
}

fn walk_numbered(a: &[Value], b: &[Value], path: &str, out: &mut Vec<Difference>) {
    if a.len() != b.len() {
        out.push(place(format!("{path} (length)"), Some(&a.len().into()), Some(&b.len().into())));
    }
    for at in 0..a.len().max(b.len()) {
        walk(a.get(at), b.get(at), format!("{path}[{at}]"), out);
    }
}

fn walk_labelled(
    (a, left): (&[Value], &[String]),
    (b, right): (&[Value], &[String]),
    path: &str,
    out: &mut Vec<Difference>,
) {
    let shared_left: Vec<&String> = left.iter().filter(|l| right.contains(l)).collect();
    let shared_right: Vec<&String> = right.iter().filter(|l| left.contains(l)).collect();
    if shared_left != shared_right {
        let list = |labels: &[String]| Value::from(labels.to_vec());
        out.push(place(format!("{path} (order)"), Some(&list(left)), Some(&list(right))));
    }
    for label in left.iter().chain(right.iter().filter(|l| !left.contains(l))) {
        let find =
            |items: &'_ [Value], labels: &[String]| labels.iter().position(|l| l == label).map(|at| items[at].clone());
        walk(find(a, left).as_ref(), find(b, right).as_ref(), format!("{path}[{}]", cut(label, 200)), out);
    }
}

/// Labels of the items of both lists; `None` if a label is missing or not unique, then items are compared by index.
fn labels(a: &[Value], b: &[Value]) -> Option<(Vec<String>, Vec<String>)> {
    [by_name, by_chain, by_match].iter().find_map(|label| Some((unique(a, *label)?, unique(b, *label)?)))
}

fn unique(items: &[Value], label: fn(&Value) -> Option<String>) -> Option<Vec<String>> {
    let labels: Vec<String> = items.iter().map(label).collect::<Option<_>>()?;
    (labels.iter().collect::<BTreeSet<_>>().len() == labels.len()).then_some(labels)
}

fn by_name(item: &Value) -> Option<String> {
    item["name"].as_str().map(str::to_owned)
}

fn by_chain(item: &Value) -> Option<String> {
    match item.get("filter_chain_match") {
        Some(found) => Some(format!("{} {found}", item["name"].as_str().unwrap_or_default()).trim().to_owned()),
        None => by_name(item),
    }
}

fn by_match(item: &Value) -> Option<String> {
    item.get("match").map(ToString::to_string)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::differences;

    fn check(expected: Value, got: Value, lines: &[&str]) {
        let found: Vec<String> = differences(&expected, &got).iter().map(ToString::to_string).collect();
        assert_eq!(found, lines);
    }

    #[test]
    fn equal_forms_have_none() {
        check(json!({"a": [1, {"b": 2}], "c": 1}), json!({"c": 1, "a": [1, {"b": 2}]}), &[]);
    }

    #[test]
    fn items_are_aligned_by_name_and_match() {
        check(
            json!({"hosts": [{"name": "a", "x": 1}, {"name": "b"}]}),
            json!({"hosts": [{"name": "b"}, {"name": "a", "x": 2}]}),
            &[r#"hosts (order): expected ["a","b"] got ["b","a"]"#, "hosts[a].x: expected 1 got 2"],
        );
        check(
            json!([{"match": {"prefix": "/"}, "timeout": "0s"}]),
            json!([{"match": {"prefix": "/"}}]),
            &[r#"[{"prefix":"/"}].timeout: expected "0s" got (absent)"#],
        );
    }

    #[test]
    fn other_lists_are_compared_by_index() {
        check(
            json!({"l": [1, 2]}),
            json!({"l": [1]}),
            &["l (length): expected 2 got 1", "l[1]: expected 2 got (absent)"],
        );
    }

    #[test]
    fn another_type_is_one_difference() {
        check(json!({"@type": "a", "x": 1}), json!({"@type": "b", "y": 1}), &[r#".@type: expected "a" got "b""#]);
    }
}
