//! YAML in and out: documents are read with limits and YAML 1.1 scalars, as upstream's parser does; values are written in
//! block style.

use std::fmt::Write;

use model::config::read_yaml;
use serde_json::Value;

/// Parses one document; null if it is empty.
pub(crate) fn read(text: &str) -> Result<Value, String> {
    if text.trim_start().starts_with('{')
        && let Ok(value) = serde_json::from_str(text)
    {
        return Ok(value);
    }
    read_yaml(text).map_err(|error| {
        let message = error.without_snippet().to_string();
        message.lines().next().unwrap_or_default().chars().take(300).collect()
    })
}

/// The documents of a stream: text between lines that begin with `---`. Blank documents are left out.
pub(crate) fn documents(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut begin, mut at) = (0, 0);
    for line in text.split_inclusive('\n') {
        if line.trim_end() == "---" || line.starts_with("--- ") {
            found.push(&text[begin..at]);
            // Content may follow the separator on its line.
            begin = at + if line.starts_with("--- ") { 4 } else { line.len() };
        }
        at += line.len();
    }
    found.push(&text[begin..]);
    found.retain(|document| document.lines().any(|line| !matches!(line.trim().chars().next(), None | Some('#' | '%'))));
    found
}

/// Order of a mapping's keys in the output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyOrder {
    Kept,
    Sorted,
}

/// A value as a YAML document, ending in a newline.
pub(crate) fn write(value: &Value, order: KeyOrder) -> String {
    let mut out = String::new();
    node(&mut out, value, 0, order, Place::Line);
    out
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// At the beginning of a line.
    Line,
    /// After `key:`.
    Key,
    /// After `- `.
    Item,
}

fn node(out: &mut String, value: &Value, indent: usize, order: KeyOrder, place: Place) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            if order == KeyOrder::Sorted {
                entries.sort_by_key(|(key, _)| key.as_str());
            }
            if place == Place::Key {
                out.push('\n');
            }
            for (at, (key, value)) in entries.into_iter().enumerate() {
                if at > 0 || place != Place::Item {
                    pad(out, indent);
                }
                quoted(out, key);
                out.push(':');
                // Lists are not indented under their key, as kubectl prints them.
                let inner = if value.is_array() { indent } else { indent + 2 };
                node(out, value, inner, order, Place::Key);
            }
        }
        Value::Array(list) if !list.is_empty() => {
            if place == Place::Key {
                out.push('\n');
            }
            for (at, value) in list.iter().enumerate() {
                if at > 0 || place != Place::Item {
                    pad(out, indent);
                }
                out.push_str("- ");
                node(out, value, indent + 2, order, Place::Item);
            }
        }
        leaf => {
            if place == Place::Key {
                out.push(' ');
            }
            plain(out, leaf, indent);
            out.push('\n');
        }
    }
}

fn pad(out: &mut String, indent: usize) {
    out.extend(std::iter::repeat_n(' ', indent));
}

fn plain(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Object(_) => out.push_str("{}"),
        Value::Array(_) => out.push_str("[]"),
        Value::String(text) => scalar(out, text, indent),
        other => {
            let _ = write!(out, "{other}");
        }
    }
}

fn scalar(out: &mut String, text: &str, indent: usize) {
    if is_block(text) {
        // The writer of the key has already put a space; the lines follow deeper than the key.
        out.push_str(if text.ends_with('\n') { "|" } else { "|-" });
        for line in text.lines() {
            out.push('\n');
            if !line.is_empty() {
                pad(out, indent.max(2));
                out.push_str(line);
            }
        }
    } else {
        quoted(out, text);
    }
}

/// A text on one line, in quotes if it needs them.
fn quoted(out: &mut String, text: &str) {
    if is_plain(text) {
        out.push_str(text);
    } else {
        out.push_str(&Value::from(text).to_string());
    }
}

/// Whether a text of several lines can be written as a literal block.
fn is_block(text: &str) -> bool {
    text.contains('\n')
        && !text.starts_with([' ', '\n', '\t'])
        && !text.ends_with("\n\n")
        && text
            .chars()
            .all(|c| c == '\n' || (!c.is_control() && !matches!(c, '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}')))
}

/// Whether a text needs no quotes: it begins with a letter, contains no special character and is no other scalar.
fn is_plain(text: &str) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || matches!(c, '/' | '.' | '_' | '$');
    text.starts_with(first)
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '$' | '(' | ')' | ':' | '='))
        && !text.ends_with(':')
        && !text.starts_with(".inf")
        && !text.starts_with('.')
        && !matches!(
            text.to_ascii_lowercase().as_str(),
            "y" | "n" | "yes" | "no" | "on" | "off" | "true" | "false" | "null" | "nan" | "inf"
        )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};
    use serde_json::{Map, Value, json};

    use super::{KeyOrder, documents, read, write};

    #[test]
    fn documents_are_split_at_separators() {
        assert_eq!(documents("# x\n---\na: 1\n---\n# none\n---\nb: |\n  ---x\n"), ["a: 1\n", "b: |\n  ---x\n"]);
        assert_eq!(documents("a: 1\n--- {b: 2}\n"), ["a: 1\n", "{b: 2}\n"]);
    }

    #[test]
    fn values_are_written_as_blocks() {
        let value = json!({"b": [{"x": 1, "y": ["z"]}, []], "a": {}, "t": "l1\n  l2\n", "s": "yes", "n": null});
        let text = "a: {}\nb:\n- x: 1\n  \"y\":\n  - z\n- []\n\"n\": null\ns: \"yes\"\nt: |\n  l1\n    l2\n";
        assert_eq!(write(&value, KeyOrder::Sorted), text);
        assert_eq!(read(text), Ok(value));
    }

    fn values() -> impl Strategy<Value = Value> {
        let text = prop_oneof!["[ -~\n]{0,12}", "\\PC{0,6}", Just("---".to_owned()), Just("0x1".to_owned())];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            text.clone().prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 40, 5, move |inner| {
            let map = proptest::collection::vec((text.clone(), inner.clone()), 0..5);
            prop_oneof![
                proptest::collection::vec(inner, 0..5).prop_map(Value::from),
                map.prop_map(|entries| Value::Object(entries.into_iter().collect::<Map<_, _>>())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_reads_the_same(value in values()) {
            let text = write(&value, KeyOrder::Kept);
            assert_eq!(read(&text), Ok(value), "{text}");
        }
    }
}
