//! The chart's values: ConfigMap key `values`.

use serde_json::Value;

use crate::error::InjectError;
use crate::yaml;

/// Most bytes of the injector's configuration or values.
const MOST_BYTES: usize = 4 << 20;

/// The chart's values.
#[derive(Clone, Debug)]
pub struct ChartValues(pub(crate) Value);

impl Default for ChartValues {
    fn default() -> ChartValues {
        ChartValues(Value::Object(serde_json::Map::new()))
    }
}

impl ChartValues {
    /// Parses values from JSON or YAML.
    pub fn parse(text: &str) -> Result<ChartValues, InjectError> {
        match read("values", text)? {
            Value::Null => Ok(ChartValues::default()),
            map @ Value::Object(_) => Ok(ChartValues(map)),
            _ => Err(InjectError::Config { what: "values", reason: "expected a map".to_owned() }),
        }
    }

    /// The value at a path such as `global.proxy.image`; null counts as absent.
    pub(crate) fn at(&self, path: &str) -> Option<&Value> {
        let found = path.split('.').try_fold(&self.0, |value, key| value.get(key))?;
        (!found.is_null()).then_some(found)
    }

    /// A value as text, or the default.
    pub(crate) fn text(&self, path: &str, default: &str) -> String {
        match self.at(path) {
            Some(Value::String(text)) => text.clone(),
            Some(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string(),
            _ => default.to_owned(),
        }
    }

    /// A value as text; an empty one counts as absent.
    pub(crate) fn given(&self, path: &str) -> Option<String> {
        Some(self.text(path, "")).filter(|text| !text.is_empty())
    }

    /// Whether a value is true by the rules of templates: not false, zero, empty or absent.
    pub(crate) fn is_set(&self, path: &str) -> bool {
        match self.at(path) {
            None | Some(Value::Null) => false,
            Some(Value::Bool(value)) => *value,
            Some(Value::Number(number)) => number.as_f64() != Some(0.0),
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Array(list)) => !list.is_empty(),
            Some(Value::Object(map)) => !map.is_empty(),
        }
    }
}

/// Parses a setting within its limit.
pub(crate) fn read(what: &'static str, text: &str) -> Result<Value, InjectError> {
    if text.len() > MOST_BYTES {
        return Err(InjectError::Config { what, reason: format!("more than {MOST_BYTES} bytes") });
    }
    yaml::read(text).map_err(|reason| InjectError::Config { what, reason })
}
