//! Values of templates, with the rules of Go: what is true, what is nil.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use prost_reflect::MessageDescriptor;
use serde_json::Value;

/// Maximum number of values in one that is converted to JSON.
const MOST_VALUES: usize = 100_000;

#[derive(Clone, Debug)]
pub(super) enum Data {
    /// No value, such as a key that a map does not have.
    Missing,
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Rc<str>),
    List(Rc<Vec<Data>>),
    Map(Rc<GoMap>),
    /// A Kubernetes or protobuf struct: fields are accessed by their Go names.
    Struct(Shape, Rc<Value>),
}

/// The type of a struct.
#[derive(Clone, Debug)]
pub(super) enum Shape {
    /// A Kubernetes type; "" for one that is not in the table of `schema`.
    Kube(&'static str),
    Message(MessageDescriptor),
}

/// A map; functions such as `set` change it in place.
#[derive(Debug, Default)]
pub(super) struct GoMap {
    pub(super) entries: RefCell<BTreeMap<String, Data>>,
    /// A `map[string]string`: an absent key is "".
    pub(super) of_strings: bool,
}

impl Data {
    pub(super) fn text(text: impl AsRef<str>) -> Data {
        Data::Text(Rc::from(text.as_ref()))
    }

    pub(super) fn list(items: impl IntoIterator<Item = Data>) -> Data {
        Data::List(Rc::new(items.into_iter().collect()))
    }

    pub(super) fn map(entries: impl IntoIterator<Item = (String, Data)>) -> Data {
        Data::Map(Rc::new(GoMap { entries: RefCell::new(entries.into_iter().collect()), of_strings: false }))
    }

    pub(super) fn string_map(entries: impl IntoIterator<Item = (String, String)>) -> Data {
        let entries = entries.into_iter().map(|(key, value)| (key, Data::text(value))).collect();
        Data::Map(Rc::new(GoMap { entries: RefCell::new(entries), of_strings: true }))
    }

    /// A value of YAML or JSON, in which Go has no integers.
    pub(super) fn of_json(value: &Value) -> Data {
        match value {
            Value::Null => Data::Nil,
            Value::Bool(value) => Data::Bool(*value),
            Value::Number(number) => Data::Float(number.as_f64().unwrap_or_default()),
            Value::String(text) => Data::text(text),
            Value::Array(list) => Data::list(list.iter().map(Data::of_json)),
            Value::Object(map) => Data::map(map.iter().map(|(key, value)| (key.clone(), Data::of_json(value)))),
        }
    }

    /// The value as JSON. Values that share parts may be much larger when written out, so their size is limited.
    pub(super) fn to_json(&self) -> Result<Value, String> {
        let mut left = MOST_VALUES;
        self.json_within(&mut left, 0)
    }

    fn json_within(&self, left: &mut usize, depth: usize) -> Result<Value, String> {
        *left = left.checked_sub(1).filter(|_| depth <= 64).ok_or("a value is too large")?;
        Ok(match self {
            Data::Missing | Data::Nil => Value::Null,
            Data::Bool(value) => (*value).into(),
            Data::Int(int) => (*int).into(),
            Data::Float(float) if float.fract() == 0.0 && float.abs() < 9e15 => (*float as i64).into(),
            Data::Float(float) => (*float).into(),
            Data::Text(text) => {
                *left = left.checked_sub(text.len() / 16).ok_or("a value is too large")?;
                (**text).into()
            }
            Data::List(list) => {
                let items = list.iter().map(|item| item.json_within(left, depth + 1));
                items.collect::<Result<Vec<_>, _>>()?.into()
            }
            Data::Map(map) => {
                let mut written = serde_json::Map::new();
                for (key, value) in map.entries.borrow().iter() {
                    written.insert(key.clone(), value.json_within(left, depth + 1)?);
                }
                Value::Object(written)
            }
            Data::Struct(_, value) => (**value).clone(),
        })
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Data::Missing | Data::Nil => false,
            Data::Bool(value) => *value,
            Data::Int(int) => *int != 0,
            Data::Float(float) => *float != 0.0,
            Data::Text(text) => !text.is_empty(),
            Data::List(list) => !list.is_empty(),
            Data::Map(map) => !map.entries.borrow().is_empty(),
            Data::Struct(..) => true,
        }
    }

    pub(super) fn is_nil(&self) -> bool {
        matches!(self, Data::Missing | Data::Nil)
    }

    /// The Go kind of a value.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Data::Missing | Data::Nil => "invalid",
            Data::Bool(_) => "bool",
            Data::Int(_) => "int",
            Data::Float(_) => "float64",
            Data::Text(_) => "string",
            Data::List(_) => "slice",
            Data::Map(_) => "map",
            Data::Struct(..) => "struct",
        }
    }
}
