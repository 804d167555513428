//! Splits a file into documents and parses each as YAML or JSON. `parse` interprets the values. A syntax error affects
//! only its own document.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// One document of a file.
#[derive(Debug)]
pub(super) struct Document<'a> {
    /// The first line of its content, counted from 1.
    pub(super) line: u32,
    pub(super) content: Result<Value, SyntaxError>,
    /// Its text, unless several documents share it.
    pub(super) source: Option<Chunk<'a>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct SyntaxError {
    /// Where the parser stopped; 0 if unknown.
    pub(super) line: u32,
    pub(super) message: String,
}

/// Maximum number of values in one document. A value takes up to 200 bytes, so more would be hundreds of megabytes. A
/// list of 20,000 objects has about as many.
pub(super) const MOST_VALUES: usize = 1_000_000;

/// The documents of a text that are not empty, parsed lazily: a file may be much larger in memory than on disk.
pub(super) fn read(text: &str) -> impl Iterator<Item = Document<'_>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    chunks(text).into_iter().flat_map(|chunk| chunk.read())
}

/// The text between two document separators.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk<'a> {
    /// Its first line.
    pub(super) line: u32,
    pub(super) text: &'a str,
}

/// Splits at `---` and `...` lines before parsing, as Kubernetes does, so that a syntax error cannot affect other
/// documents.
pub(super) fn chunks(text: &str) -> Vec<Chunk<'_>> {
    let mut found = Vec::new();
    let mut start = (1, 0);
    let mut offset = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        if is_separator(line) {
            let number = u32::try_from(index + 1).unwrap_or(u32::MAX);
            found.push(Chunk { line: start.0, text: &text[start.1..offset] });
            start = (number, offset + 3);
        }
        offset += line.len();
    }
    found.push(Chunk { line: start.0, text: &text[start.1..] });
    found
}

fn is_separator(line: &str) -> bool {
    line.strip_prefix("---")
        .or_else(|| line.strip_prefix("..."))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}

impl<'a> Chunk<'a> {
    fn read(self) -> Vec<Document<'a>> {
        let Some(first) = self.first_line() else {
            return Vec::new();
        };
        let is_json = self.text.trim_start().starts_with('{');
        // The YAML parser counts exactly, but only while it parses; text far beyond the limit is rejected early.
        if has_marks(self.text, if is_json { MOST_VALUES } else { 2 * MOST_VALUES }) {
            let message = format!("more than {MOST_VALUES} values in one document: split it into several");
            let content = Err(SyntaxError { line: first, message });
            return vec![Document { line: first, content, source: None }];
        }
        if is_json && let Some(documents) = self.read_json() {
            return documents;
        }
        match read_yaml(self.text) {
            Ok(Value::Null) => Vec::new(),
            Ok(value) => vec![Document { line: first, content: Ok(value), source: Some(self) }],
            Err(error) => vec![Document { line: first, content: Err(self.unreadable(&error)), source: None }],
        }
    }

    /// The first line that is not a comment, a directive or blank.
    pub(super) fn first_line(&self) -> Option<u32> {
        let position = self.text.lines().position(|line| {
            let line = line.trim();
            !line.is_empty() && !line.starts_with(['#', '%'])
        })?;
        Some(self.line.saturating_add(u32::try_from(position).unwrap_or(u32::MAX)))
    }

    /// Concatenated JSON objects; `None` if the text is not JSON throughout.
    fn read_json(self) -> Option<Vec<Document<'a>>> {
        let mut documents = Vec::new();
        let mut stream = serde_json::Deserializer::from_str(self.text).into_iter::<Unique>();
        let (mut line, mut counted) = (self.line, 0);
        loop {
            let rest = &self.text[stream.byte_offset()..];
            let begin = self.text.len() - rest.trim_start().len();
            line = line.saturating_add(newlines(&self.text[counted..begin]));
            counted = begin;
            match stream.next() {
                Some(Ok(Unique(value))) => documents.push(Document { line, content: Ok(value), source: None }),
                Some(Err(_)) => return None,
                None => break,
            }
        }
        if let [only] = documents.as_mut_slice() {
            only.source = Some(self);
        }
        Some(documents)
    }

    fn unreadable(&self, error: &serde_saphyr::Error) -> SyntaxError {
        let error = error.without_snippet();
        let line = error.location().map_or(0, |location| {
            let within = u32::try_from(location.line()).unwrap_or(u32::MAX);
            self.line.saturating_add(within.saturating_sub(1))
        });
        let message = match error {
            serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => format!("duplicate key {key:?}"),
            limit @ serde_saphyr::Error::Budget { .. } => {
                let reason = without_position(&limit.to_string());
                format!("{reason}; a document has at most {MOST_VALUES} values: split it into several")
            }
            other => without_position(&other.to_string()),
        };
        SyntaxError { line, message }
    }
}

/// Whether a text has more than `most` value separators, including those within quotes.
fn has_marks(text: &str, most: usize) -> bool {
    let pairs = text.as_bytes().windows(2);
    let is_mark = |pair: &&[u8]| matches!(pair, [b',' | b'{' | b'[' | b':', _] | [b'-', b' ']);
    pairs.filter(is_mark).nth(most).is_some()
}

fn newlines(text: &str) -> u32 {
    u32::try_from(text.bytes().filter(|byte| *byte == b'\n').count()).unwrap_or(u32::MAX)
}

/// Removes the parser's position, which is relative to the document.
fn without_position(message: &str) -> String {
    let first = message.lines().next().unwrap_or_default();
    let end = first.rfind(" at line ").unwrap_or(first.len());
    let text = first[..end].trim_start_matches("error: ");
    clip(text).to_owned()
}

/// At most 300 characters: a message must not repeat a megabyte of input.
pub(super) fn clip(text: &str) -> &str {
    let end = text.char_indices().nth(300).map_or(text.len(), |(i, _)| i);
    &text[..end]
}

/// Parses one YAML document, with limits against anchor bombs and deep nesting.
pub fn read_yaml(text: &str) -> Result<Value, serde_saphyr::Error> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: 64,
            max_nodes: MOST_VALUES,
            max_events: 3 * MOST_VALUES,
            max_total_scalar_bytes: 64 * 1024 * 1024,
            max_recorded_anchor_events: 200_000,
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: replayed_events(text),
        },
        // YAML 1.1 like upstream's parser: 0644 is octal.
        legacy_octal_numbers: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options)
}

/// How often aliases may repeat parts of a document. A short text with many repetitions is an attack.
fn replayed_events(text: &str) -> usize {
    (20 * text.len()).clamp(5_000, 50_000)
}

/// A JSON value without duplicate keys; serde_json alone would keep the last.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Unique, D::Error> {
        deserializer.deserialize_any(UniqueVisitor).map(Unique)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Unique(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((key, Unique(value))) = entries.next_entry::<String, Unique>()? {
            if map.contains_key(&key) {
                return Err(A::Error::custom(format_args!("duplicate key {key:?}")));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::read;

    type ReadDocument = (u32, Result<Value, (u32, String)>);

    fn values(text: &str) -> Vec<ReadDocument> {
        read(text).map(|d| (d.line, d.content.map_err(|e| (e.line, e.message)))).collect()
    }

    #[test]
    fn documents_know_their_first_line() {
        let text = "# head\na: 1\n---\n\n# note\nb: 2\n--- # more\n---\r\nc: 3\r\n...\n";
        let expected = vec![(2, Ok(json!({"a": 1}))), (6, Ok(json!({"b": 2}))), (9, Ok(json!({"c": 3})))];
        assert_eq!(values(text), expected);
    }

    #[test]
    fn syntax_error_affects_one_document_only() {
        let found = values("a: 1\n---\nb: [1\n---\nc: 3\n");
        assert_eq!(found.len(), 3);
        assert_eq!(found[0].1, Ok(json!({"a": 1})));
        assert!(found[1].1.is_err(), "{found:?}");
        assert_eq!(found[2].1, Ok(json!({"c": 3})));
    }

    #[test]
    fn duplicate_keys_are_named_with_their_line() {
        let twice = |line| Err((line, "duplicate key \"a\"".to_owned()));
        assert_eq!(values("x: 0\n---\na: 1\nb: 2\na: 3\n"), vec![(1, Ok(json!({"x": 0}))), (3, twice(5))]);
        assert_eq!(values("{\"a\": 1,\n\"a\": 2}"), vec![(1, twice(2))]);
    }

    #[test]
    fn concatenated_json_objects_are_read() {
        let found = values("{\"a\":\t1}\n\n{\"b\": \"\\u00e9\"}");
        assert_eq!(found, vec![(1, Ok(json!({"a": 1}))), (3, Ok(json!({"b": "é"})))]);
    }

    #[test]
    fn flow_yaml_is_not_taken_for_broken_json() {
        assert_eq!(values("{a: 1, b: [x, z]}"), vec![(1, Ok(json!({"a": 1, "b": ["x", "z"]})))]);
    }

    #[test]
    fn scalars_are_read_as_yaml_1_1() {
        let found = values("a: yes\nb: off\nc: 0644\nd: 1.10\ne: ~\nf: \"90\"\ng: 0x10\nh: 2024-01-02\ni:\n");
        let expected = json!({"a": true, "b": false, "c": 420, "d": 1.1, "e": null, "f": "90", "g": 16, "h": "2024-01-02", "i": null});
        assert_eq!(found, vec![(1, Ok(expected))]);
    }

    #[test]
    fn merge_keys_are_expanded() {
        let found = values("base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\n");
        assert_eq!(found, vec![(1, Ok(json!({"base": {"x": 1, "y": 2}, "use": {"x": 1, "y": 3}})))]);
    }

    #[test]
    fn hostile_text_is_rejected_in_bounded_time() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..12 {
            let list = vec![format!("*a{}", n - 1); 10].join(", ");
            bomb += &format!("a{n}: &a{n} [{list}]\n");
        }
        let deep_flow = "[".repeat(100_000);
        let deep_json = format!("{{\"a\":{}", "[".repeat(100_000));
        let deep_block = format!("{}x", "- ".repeat(100_000));
        let deep_map = (0..3000).map(|n| format!("{}a:\n", " ".repeat(n))).collect::<String>();
        for text in [bomb, deep_flow, deep_json, deep_block, deep_map, "a: \0b".to_owned()] {
            let found = values(&text);
            assert!(matches!(found[..], [(1, Err(_))]), "{:?}", found.first());
            let message = found[0].1.as_ref().err().map(|e| e.1.len());
            assert!(message.is_some_and(|length| length <= 1200));
        }
    }

    #[test]
    fn a_megabyte_of_text_is_one_string() {
        let long = "x".repeat(1 << 20);
        assert_eq!(values(&format!("a: {long}")), vec![(1, Ok(json!({"a": long})))]);
    }
}
