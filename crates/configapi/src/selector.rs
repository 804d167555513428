//! Label selectors and field selectors of lists and watches.

use serde_json::Value;

use crate::error::ApiError;

/// Conditions that all must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LabelConditions(Vec<LabelCondition>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct LabelCondition {
    key: String,
    test: LabelTest,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum LabelTest {
    Exists,
    Absent,
    In(Vec<String>),
    NotIn(Vec<String>),
    Greater(i64),
    Less(i64),
}

impl LabelConditions {
    pub(crate) fn parse(text: &str) -> Result<LabelConditions, ApiError> {
        let bad = || ApiError::bad_request(format!("unable to parse requirement: could not read selector {text:?}"));
        let conditions = split_outside_parentheses(text).map(|part| condition(part).ok_or_else(bad));
        conditions.collect::<Result<_, _>>().map(LabelConditions)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the labels of an object's metadata fulfil all conditions.
    pub(crate) fn matches(&self, metadata: &Value) -> bool {
        let label = |key: &str| metadata.get("labels").and_then(|labels| labels.get(key)).and_then(Value::as_str);
        self.0.iter().all(|condition| {
            let value = label(&condition.key);
            let number = || value.and_then(|value| value.parse::<i64>().ok());
            match &condition.test {
                LabelTest::Exists => value.is_some(),
                LabelTest::Absent => value.is_none(),
                LabelTest::In(all) => value.is_some_and(|value| all.iter().any(|one| one == value)),
                LabelTest::NotIn(all) => !value.is_some_and(|value| all.iter().any(|one| one == value)),
                LabelTest::Greater(limit) => number().is_some_and(|number| number > *limit),
                LabelTest::Less(limit) => number().is_some_and(|number| number < *limit),
            }
        })
    }
}

fn split_outside_parentheses(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0usize;
    let parts = text.split(move |c: char| {
        depth = match c {
            '(' => depth + 1,
            ')' => depth.saturating_sub(1),
            _ => depth,
        };
        c == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty())
}

fn condition(part: &str) -> Option<LabelCondition> {
    let made = |key: &str, test: LabelTest| {
        let key = key.trim();
        is_label_key(key).then(|| LabelCondition { key: key.to_owned(), test })
    };
    if let Some((key, value)) = part.split_once("!=") {
        return made(key, LabelTest::NotIn(vec![value.trim().to_owned()]));
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return made(key, LabelTest::In(vec![value.trim().to_owned()]));
    }
    if let Some((key, value)) = part.split_once('>') {
        return made(key, LabelTest::Greater(value.trim().parse().ok()?));
    }
    if let Some((key, value)) = part.split_once('<') {
        return made(key, LabelTest::Less(value.trim().parse().ok()?));
    }
    if let Some((head, values)) = part.split_once('(') {
        let values = values.trim().strip_suffix(')')?;
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        let (key, word) = head.trim().rsplit_once(char::is_whitespace)?;
        return match word {
            "in" => made(key, LabelTest::In(values)),
            "notin" => made(key, LabelTest::NotIn(values)),
            _ => None,
        };
    }
    match part.strip_prefix('!') {
        Some(key) => made(key, LabelTest::Absent),
        None => made(part, LabelTest::Exists),
    }
}

fn is_label_key(key: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    !key.is_empty() && key.len() <= 317 && key.chars().all(is_plain)
}

/// Fields that must, or must not, have a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldSelector(Vec<FieldCondition>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldCondition {
    path: Vec<String>,
    value: String,
    is_equal: bool,
}

impl FieldSelector {
    /// Parses a selector. Every kind can be selected by name and namespace; `known` are further fields of the kind.
    pub(crate) fn parse(text: &str, known: &[&str]) -> Result<FieldSelector, ApiError> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let condition = |part: &str| {
            let (path, value, is_equal) = match part.split_once("!=") {
                Some((path, value)) => (path, value, false),
                None => {
                    let (path, value) = part.split_once("==").or_else(|| part.split_once('=')).ok_or_else(|| {
                        ApiError::bad_request(format!("invalid field selector: {part:?}; can't understand it"))
                    })?;
                    (path, value, true)
                }
            };
            let path = path.trim();
            if !["metadata.name", "metadata.namespace"].contains(&path) && !known.contains(&path) {
                return Err(ApiError::bad_request(format!("field label not supported: {path}")));
            }
            let path = path.split('.').map(str::to_owned).collect();
            Ok(FieldCondition { path, value: value.trim().to_owned(), is_equal })
        };
        parts.map(condition).collect::<Result<_, _>>().map(FieldSelector)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The name that objects must have, if the selector names one.
    pub(crate) fn name(&self) -> Option<&str> {
        let is_name = |c: &&FieldCondition| c.is_equal && c.path == ["metadata", "name"];
        self.0.iter().find(is_name).map(|condition| condition.value.as_str())
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|condition| {
            let found = condition.path.iter().try_fold(object, |value, key| value.get(key));
            let found = match found {
                Some(Value::String(text)) => text.clone(),
                None | Some(Value::Null) => String::new(),
                Some(other) => other.to_string(),
            };
            (found == condition.value) == condition.is_equal
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{FieldSelector, LabelConditions};

    #[test]
    fn label_selectors_have_all_operators_of_kubernetes() {
        let metadata = json!({"labels": {"app": "cart", "tier": "web", "weight": "5"}});
        for (selector, expected) in [
            ("", true),
            ("app", true),
            ("!app", false),
            ("!other", true),
            ("app=cart,tier==web", true),
            ("app!=cart", false),
            ("other!=x", true),
            ("app in (cart, pay),tier notin (db)", true),
            ("tier in (db)", false),
            ("weight>4,weight<6", true),
            ("weight>5", false),
        ] {
            let parsed = LabelConditions::parse(selector).expect("a selector");
            assert_eq!(parsed.matches(&metadata), expected, "{selector}");
        }
        for bad in ["a in b", "a in (b", "a b", "=x", "a>b"] {
            assert!(LabelConditions::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn field_selectors_know_the_fields_of_their_kind() {
        let object = json!({"metadata": {"name": "a", "namespace": "shop"}, "type": "Opaque"});
        let selector = FieldSelector::parse("metadata.name=a,type!=helm", &["type"]).expect("a selector");
        assert!(selector.matches(&object));
        assert_eq!(selector.name(), Some("a"));
        assert!(FieldSelector::parse("spec.x=1", &["type"]).is_err());
        assert!(!FieldSelector::parse("metadata.namespace=other", &[]).expect("a selector").matches(&object));
    }
}
