//! Sets of fields, as `managedFields` has them. A set is a tree; a node is a member, has members below it, or both.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value, json};

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PathElement {
    Field(String),
    /// The item of a list with these key fields, as JSON with sorted names.
    Key(String),
    /// The item of a set with this value, as JSON.
    Item(String),
}

impl PathElement {
    fn parse(text: &str) -> Option<PathElement> {
        let (prefix, rest) = text.split_once(':')?;
        let rest = rest.to_owned();
        match prefix {
            "f" => Some(PathElement::Field(rest)),
            "k" => Some(PathElement::Key(sorted(&serde_json::from_str(&rest).ok()?))),
            "v" => Some(PathElement::Item(rest)),
            _ => None,
        }
    }
}

impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathElement::Field(name) => write!(f, "f:{name}"),
            PathElement::Key(keys) => write!(f, "k:{keys}"),
            PathElement::Item(value) => write!(f, "v:{value}"),
        }
    }
}

/// A JSON object with its names in order.
pub(crate) fn sorted(object: &Map<String, Value>) -> String {
    let fields: BTreeMap<&String, &Value> = object.iter().collect();
    json!(fields).to_string()
}

/// A set of fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldSet {
    pub(crate) is_member: bool,
    pub(crate) children: BTreeMap<PathElement, FieldSet>,
}

impl FieldSet {
    /// Parses `fieldsV1`.
    pub(crate) fn parse(json: &Value) -> FieldSet {
        let Some(fields) = json.as_object() else { return FieldSet::default() };
        let children = fields.iter().filter_map(|(key, below)| {
            let mut set = FieldSet::parse(below);
            set.is_member |= below.as_object().is_some_and(|below| below.is_empty() || below.contains_key("."));
            Some((PathElement::parse(key)?, set))
        });
        FieldSet { is_member: false, children: children.collect() }
    }

    /// `fieldsV1` of the set.
    pub(crate) fn to_json(&self) -> Value {
        let mut fields = Map::new();
        for (element, below) in &self.children {
            let mut json = below.to_json();
            if let Some(json) = json.as_object_mut().filter(|json| below.is_member && !json.is_empty()) {
                json.shift_insert(0, ".".to_owned(), json!({}));
            }
            fields.insert(element.to_string(), json);
        }
        Value::Object(fields)
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.is_member && self.children.is_empty()
    }

    /// The node of a child, which is added if needed.
    pub(crate) fn child(&mut self, element: PathElement) -> &mut FieldSet {
        self.children.entry(element).or_default()
    }

    /// Whether the set has this field or fields below it.
    pub(crate) fn has_any(&self, path: &[PathElement]) -> bool {
        let found = path.iter().try_fold(self, |set, element| set.children.get(element));
        found.is_some_and(|set| !set.is_empty())
    }

    pub(crate) fn union(&self, other: &FieldSet) -> FieldSet {
        let mut all = self.clone();
        all.add(other);
        all
    }

    fn add(&mut self, other: &FieldSet) {
        self.is_member |= other.is_member;
        for (element, below) in &other.children {
            self.child(element.clone()).add(below);
        }
    }

    pub(crate) fn intersection(&self, other: &FieldSet) -> FieldSet {
        let both = |(element, below): (&PathElement, &FieldSet)| {
            let common = below.intersection(other.children.get(element)?);
            (!common.is_empty()).then(|| (element.clone(), common))
        };
        FieldSet {
            is_member: self.is_member && other.is_member,
            children: self.children.iter().filter_map(both).collect(),
        }
    }

    /// The members that `other` does not have.
    pub(crate) fn difference(&self, other: &FieldSet) -> FieldSet {
        let left = |(element, below): (&PathElement, &FieldSet)| {
            let left = match other.children.get(element) {
                Some(gone) => below.difference(gone),
                None => below.clone(),
            };
            (!left.is_empty()).then(|| (element.clone(), left))
        };
        FieldSet {
            is_member: self.is_member && !other.is_member,
            children: self.children.iter().filter_map(left).collect(),
        }
    }

    /// Removes a field and everything below it.
    pub(crate) fn remove(&mut self, path: &[&str]) {
        let Some((first, rest)) = path.split_first() else { return };
        let element = PathElement::Field((*first).to_owned());
        let Some(below) = self.children.get_mut(&element) else { return };
        if rest.is_empty() {
            self.children.remove(&element);
            return;
        }
        below.remove(rest);
        if below.is_empty() {
            self.children.remove(&element);
        }
    }

    /// The paths of all members.
    pub(crate) fn paths(&self) -> Vec<Vec<PathElement>> {
        let mut all = Vec::new();
        self.collect(&mut Vec::new(), &mut all);
        all
    }

    fn collect(&self, at: &mut Vec<PathElement>, all: &mut Vec<Vec<PathElement>>) {
        if self.is_member {
            all.push(at.clone());
        }
        for (element, below) in &self.children {
            at.push(element.clone());
            below.collect(at, all);
            at.pop();
        }
    }
}

/// A path as upstream's messages show it: `.spec.ports[port=80,protocol="TCP"].name`.
pub(crate) fn shown(path: &[PathElement]) -> String {
    let element = |element: &PathElement| match element {
        PathElement::Field(name) => format!(".{name}"),
        PathElement::Item(value) => format!("[={value}]"),
        PathElement::Key(keys) => {
            let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
            let keys: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
            format!("[{}]", keys.join(","))
        }
    };
    path.iter().map(element).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{FieldSet, shown};

    #[test]
    fn sets_are_read_and_written_as_fields_v1() {
        let json = json!({"f:metadata": {"f:labels": {".": {}, "f:app": {}}},
            "f:spec": {"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}}}}});
        let set = FieldSet::parse(&json);
        assert_eq!(set.to_json(), json);
        let paths: Vec<String> = set.paths().iter().map(|path| shown(path)).collect();
        assert_eq!(
            paths,
            [
                ".metadata.labels",
                ".metadata.labels.app",
                ".spec.ports[port=80,protocol=\"TCP\"]",
                ".spec.ports[port=80,protocol=\"TCP\"].name"
            ]
        );
    }

    #[test]
    fn union_difference_and_intersection() {
        let a = FieldSet::parse(&json!({"f:a": {"f:b": {}, "f:c": {}}}));
        let b = FieldSet::parse(&json!({"f:a": {"f:c": {}, "f:d": {}}}));
        assert_eq!(a.union(&b).to_json(), json!({"f:a": {"f:b": {}, "f:c": {}, "f:d": {}}}));
        assert_eq!(a.intersection(&b).to_json(), json!({"f:a": {"f:c": {}}}));
        assert_eq!(a.difference(&b).to_json(), json!({"f:a": {"f:b": {}}}));
        assert!(a.difference(&a).is_empty());
    }
}
