//! Reads fields of legacy objects, which have no descriptor. Fields that are never read are reported by path.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::LegacyError;

/// The fields of one message of a legacy object.
pub(super) struct LegacyFields<'a> {
    path: String,
    entries: &'a Map<String, Value>,
    /// The domain of services that are given by name and namespace.
    domain: &'a str,
    read: BTreeSet<&'static str>,
}

impl<'a> LegacyFields<'a> {
    pub(super) fn new(path: impl Into<String>, entries: &'a Map<String, Value>, domain: &'a str) -> LegacyFields<'a> {
        LegacyFields { path: path.into(), entries, domain, read: BTreeSet::new() }
    }

    pub(super) fn domain(&self) -> &'a str {
        self.domain
    }

    /// The path of a field of this message.
    pub(super) fn path(&self, name: &str) -> String {
        format!("{}.{name}", self.path)
    }

    /// The raw value; `None` if missing or null.
    pub(super) fn value(&mut self, name: &'static str) -> Option<&'a Value> {
        self.read.insert(name);
        let snake = snake_case(name);
        let found = self.entries.get(name).or_else(|| self.entries.get(&snake));
        found.filter(|value| !value.is_null())
    }

    /// Whether the field is present, even if null.
    pub(super) fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// A nested message.
    pub(super) fn message(&mut self, name: &'static str) -> Result<Option<LegacyFields<'a>>, LegacyError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Object(entries)) => Ok(Some(LegacyFields::new(self.path(name), entries, self.domain))),
            Some(_) => Err(self.wrong(name, "an object")),
        }
    }

    /// A list of messages.
    pub(super) fn messages(&mut self, name: &'static str) -> Result<Vec<LegacyFields<'a>>, LegacyError> {
        let (path, domain) = (self.path(name), self.domain);
        let item = |(index, value): (usize, &'a Value)| match value {
            Value::Object(entries) => Ok(LegacyFields::new(format!("{path}[{index}]"), entries, domain)),
            _ => Err(LegacyError::WrongType { path: format!("{path}[{index}]"), expected: "an object" }),
        };
        match self.value(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(items)) => items.iter().enumerate().map(item).collect(),
            Some(_) => Err(self.wrong(name, "a list")),
        }
    }

    /// A string; empty if missing.
    pub(super) fn text(&mut self, name: &'static str) -> Result<&'a str, LegacyError> {
        match self.value(name) {
            None => Ok(""),
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(self.wrong(name, "a string")),
        }
    }

    pub(super) fn flag(&mut self, name: &'static str) -> Result<bool, LegacyError> {
        match self.value(name) {
            None => Ok(false),
            Some(Value::Bool(set)) => Ok(*set),
            Some(_) => Err(self.wrong(name, "true or false")),
        }
    }

    /// Reports fields that were never read.
    pub(super) fn finish(self, notes: &mut Vec<String>) {
        let known: BTreeSet<String> = self.read.iter().flat_map(|n| [(*n).to_owned(), snake_case(n)]).collect();
        let unknown = self.entries.keys().filter(|key| !known.contains(*key)).take(20);
        notes
            .extend(unknown.map(|key| format!("{:?} has no effect: current kinds have no equivalent", self.path(key))));
    }

    fn wrong(&self, name: &str, expected: &'static str) -> LegacyError {
        LegacyError::WrongType { path: self.path(name), expected }
    }
}

fn snake_case(name: &str) -> String {
    let letters = name.chars().flat_map(|c| {
        let underscore = c.is_ascii_uppercase().then_some('_');
        underscore.into_iter().chain([c.to_ascii_lowercase()])
    });
    letters.collect()
}
