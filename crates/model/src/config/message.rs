//! Parses JSON as a protobuf message of any descriptor pool, as leniently as upstream: fields by either name, numbers in
//! quotes, Go durations, enums by name or number. Unknown fields are findings, not failures.

use std::collections::HashMap;
use std::fmt::Write as _;

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage, Value as Field};
use serde_json::{Map, Value};

use super::encode;
use super::text::clip;
use super::timestamp;
use crate::config::problem::Severity;
use crate::duration;
use crate::suggest;

/// A finding about one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldFinding {
    pub severity: Severity,
    /// Such as `spec.http[0].timeout`.
    pub path: String,
    /// The path as single steps, for the lookup of its line.
    pub steps: Vec<String>,
    pub message: String,
    /// The end of the message for an unknown field, such as `; did you mean "http"?`.
    pub hint: String,
}

impl FieldFinding {
    /// An error of the whole message.
    pub(super) fn error(message: &str) -> FieldFinding {
        FieldFinding {
            severity: Severity::Error,
            path: String::new(),
            steps: Vec::new(),
            message: message.to_owned(),
            hint: String::new(),
        }
    }
}

/// Parses a message of this type. `root` is the first step of every path. Findings of severity error mean that part of
/// the input was not understood.
pub fn read(descriptor: &MessageDescriptor, json: &Value, root: &str) -> (DynamicMessage, Vec<FieldFinding>) {
    let mut message = DynamicMessage::new(descriptor.clone());
    let findings = read_into(&mut message, json, root);
    (message, findings)
}

/// Parses fields into an existing message. A given field replaces the old value completely, nested messages too; `null`
/// keeps it.
pub fn read_into(message: &mut DynamicMessage, json: &Value, root: &str) -> Vec<FieldFinding> {
    let mut reader = MessageReader { path: vec![PathStep::Field(root)], enclosing: Vec::new(), findings: Vec::new() };
    if !json.is_null() {
        reader.fields(message, json);
    }
    reader.findings
}

/// The key of an `Any`'s type.
const TYPE: &str = "@type";

enum PathStep<'a> {
    Field(&'a str),
    Key(&'a str),
    Index(usize),
}

struct MessageReader<'a> {
    path: Vec<PathStep<'a>>,
    /// Messages around the current one, with the length of their paths.
    enclosing: Vec<(MessageDescriptor, usize)>,
    findings: Vec<FieldFinding>,
}

impl<'a> MessageReader<'a> {
    fn fields(&mut self, message: &mut DynamicMessage, json: &'a Value) {
        let Value::Object(entries) = json else {
            return self.mismatch("an object", json);
        };
        let descriptor = message.descriptor();
        self.enclosing.push((descriptor.clone(), self.path.len()));
        for (name, value) in entries {
            let Some(field) = field_of(&descriptor, entries, name) else {
                if name != TYPE {
                    self.unknown(&descriptor, name);
                }
                continue;
            };
            if value.is_null() && !accepts_null(&field) {
                continue;
            }
            self.path.push(PathStep::Field(name));
            if let Some(value) = self.field(&field, value) {
                message.set_field(&field, value);
            }
            self.path.pop();
        }
        self.enclosing.pop();
    }

    fn field(&mut self, field: &FieldDescriptor, json: &'a Value) -> Option<Field> {
        if field.is_map() {
            self.map(field, json)
        } else if field.is_list() {
            self.list(field, json)
        } else {
            self.single(&field.kind(), json)
        }
    }

    fn list(&mut self, field: &FieldDescriptor, json: &'a Value) -> Option<Field> {
        let Value::Array(items) = json else {
            self.mismatch("a list", json);
            return None;
        };
        let kind = field.kind();
        let mut list = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            self.path.push(PathStep::Index(index));
            list.extend(self.single(&kind, item));
            self.path.pop();
        }
        Some(Field::List(list))
    }

    fn map(&mut self, field: &FieldDescriptor, json: &'a Value) -> Option<Field> {
        let (Value::Object(entries), Kind::Message(entry)) = (json, field.kind()) else {
            self.mismatch("an object", json);
            return None;
        };
        let (key_kind, value_kind) = (entry.map_entry_key_field().kind(), entry.map_entry_value_field().kind());
        let mut map = HashMap::with_capacity(entries.len());
        for (name, value) in entries {
            self.path.push(PathStep::Key(name));
            match map_key(&key_kind, name) {
                Some(key) => map.extend(self.single(&value_kind, value).map(|value| (key, value))),
                None => self.error(format!("{:?} cannot be a key here", clip(name))),
            }
            self.path.pop();
        }
        Some(Field::Map(map))
    }

    /// One value. `null` inside a list or map means the default of the type.
    fn single(&mut self, kind: &Kind, json: &'a Value) -> Option<Field> {
        if let Kind::Message(descriptor) = kind {
            return self.message(descriptor, json).map(Field::Message);
        }
        if json.is_null() {
            return Some(Field::default_value(kind));
        }
        let (value, expected) = match kind {
            Kind::Bool => (json.as_bool().map(Field::Bool), "true or false"),
            Kind::String => (json.as_str().map(|s| Field::String(s.to_owned())), "a string"),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => (integer(json).map(Field::I32), "a 32-bit integer"),
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => (integer(json).map(Field::I64), "a 64-bit integer"),
            Kind::Uint32 | Kind::Fixed32 => (integer(json).map(Field::U32), "an integer from 0 to 4294967295"),
            Kind::Uint64 | Kind::Fixed64 => (integer(json).map(Field::U64), "an integer from 0"),
            Kind::Float => (float(json).map(|f| Field::F32(f as f32)), "a number"),
            Kind::Double => (float(json).map(Field::F64), "a number"),
            Kind::Bytes => (bytes(json), "base64 text"),
            Kind::Enum(values) => return self.enumeration(values, json),
            Kind::Message(_) => (None, "an object"),
        };
        if value.is_none() {
            self.mismatch(expected, json);
        }
        value
    }

    fn enumeration(&mut self, values: &prost_reflect::EnumDescriptor, json: &Value) -> Option<Field> {
        let number = match json {
            Value::String(name) => values.get_value_by_name(name).map(|value| value.number()),
            other => integer::<i32>(other),
        };
        if number.is_none() {
            let names: Vec<String> = values.values().map(|value| value.name().to_owned()).collect();
            self.mismatch(&format!("one of {}", names.join(", ")), json);
        }
        number.map(Field::EnumNumber)
    }

    fn message(&mut self, descriptor: &MessageDescriptor, json: &'a Value) -> Option<DynamicMessage> {
        let mut message = DynamicMessage::new(descriptor.clone());
        match descriptor.full_name() {
            "google.protobuf.Duration" => {
                let Some(d) = text_or_null(json).and_then(duration::parse) else {
                    self.mismatch("a duration such as 1m30s", json);
                    return None;
                };
                message.set_field_by_number(1, Field::I64(d.seconds));
                message.set_field_by_number(2, Field::I32(d.nanos));
            }
            "google.protobuf.Timestamp" => {
                let Some((seconds, nanos)) = text_or_null(json).and_then(timestamp::parse) else {
                    self.mismatch("a timestamp such as 2024-01-02T03:04:05Z", json);
                    return None;
                };
                message.set_field_by_number(1, Field::I64(seconds));
                message.set_field_by_number(2, Field::I32(nanos));
            }
            name if is_wrapper(name) => {
                let inner = descriptor.get_field(1)?;
                message.set_field(&inner, self.single(&inner.kind(), json)?);
            }
            "google.protobuf.Struct"
            | "google.protobuf.Value"
            | "google.protobuf.ListValue"
            | "google.protobuf.FieldMask" => match DynamicMessage::deserialize(descriptor.clone(), json.clone()) {
                Ok(read) => message = read,
                Err(error) => {
                    self.error(clip(&error.to_string()).to_owned());
                    return None;
                }
            },
            _ if json.is_null() => {}
            "google.protobuf.Any" => {
                let (name, inner) = self.any(descriptor, json)?;
                message.set_field_by_number(1, Field::String(name));
                message.set_field_by_number(2, Field::Bytes(encode::encode(&inner).into()));
            }
            _ => self.fields(&mut message, json),
        }
        Some(message)
    }

    /// The type URL and content of an `Any`. Its type is looked up in the pool of the containing message.
    fn any(&mut self, holder: &MessageDescriptor, json: &'a Value) -> Option<(String, DynamicMessage)> {
        let Some(url) = json.get(TYPE).and_then(Value::as_str) else {
            self.error("an Any needs the name of its type in \"@type\"".to_owned());
            return None;
        };
        let name = url.rsplit('/').next().unwrap_or(url);
        let Some(descriptor) = holder.parent_pool().get_message_by_name(name) else {
            self.error(format!("could not resolve Any message type: {}", clip(url)));
            return None;
        };
        let inner = match is_well_known(name) {
            true => self.message(&descriptor, json.get("value").unwrap_or(&Value::Null))?,
            false => {
                let mut inner = DynamicMessage::new(descriptor);
                self.fields(&mut inner, json);
                inner
            }
        };
        Some((url.to_owned(), inner))
    }

    fn mismatch(&mut self, expected: &str, found: &Value) {
        let found = match found {
            Value::Null => "null".to_owned(),
            Value::Bool(b) => format!("the boolean {b}{}", quotes_help(expected)),
            Value::Number(n) => format!("the number {n}{}", quotes_help(expected)),
            Value::String(s) => format!("{:?}", clip(s)),
            Value::Array(_) => "a list".to_owned(),
            Value::Object(_) => "an object".to_owned(),
        };
        self.error(format!("expected {expected}, found {found}"));
    }

    fn error(&mut self, message: String) {
        self.find(Severity::Error, message);
    }

    fn unknown(&mut self, descriptor: &MessageDescriptor, name: &'a str) {
        let hint = self.hint(descriptor, name);
        self.path.push(PathStep::Field(name));
        self.add(Severity::Warning, "unknown field".to_owned(), hint);
        self.path.pop();
    }

    /// What the user may have meant: a similar name, or the same one at another level.
    fn hint(&self, descriptor: &MessageDescriptor, name: &str) -> String {
        let fields: Vec<FieldDescriptor> = descriptor.fields().collect();
        if let Some(similar) = suggest::similar(name, fields.iter().map(FieldDescriptor::json_name)) {
            return format!("; did you mean {similar:?}?");
        }
        let around = self.enclosing.iter().rev().skip(1).find(|(message, _)| has_field(message, name));
        if let Some((_, length)) = around {
            let place = match rendered(&self.path[..*length]) {
                path if path.is_empty() => "the top level".to_owned(),
                path => format!("{path:?}"),
            };
            return format!("; it is a field of {place}: check the indentation");
        }
        let holds = |field: &&FieldDescriptor| field.kind().as_message().is_some_and(|inner| has_field(inner, name));
        let below: Vec<&str> = fields.iter().filter(holds).map(FieldDescriptor::json_name).take(3).collect();
        match below.as_slice() {
            [] => String::new(),
            names => format!("; it belongs below {}: check the indentation", names.join(" or ")),
        }
    }

    fn find(&mut self, severity: Severity, message: String) {
        self.add(severity, message, String::new());
    }

    fn add(&mut self, severity: Severity, message: String, hint: String) {
        let steps = self.path.iter().filter_map(|step| match step {
            PathStep::Field("") => None,
            PathStep::Field(name) | PathStep::Key(name) => Some((*name).to_owned()),
            PathStep::Index(index) => Some(index.to_string()),
        });
        let (path, steps) = (rendered(&self.path), steps.collect());
        self.findings.push(FieldFinding { severity, path, steps, message, hint });
    }
}

/// The path as users write it.
fn rendered(steps: &[PathStep<'_>]) -> String {
    let mut path = String::new();
    for step in steps {
        let _ = match step {
            PathStep::Field(name) if path.is_empty() => write!(path, "{}", clip(name)),
            PathStep::Field(name) => write!(path, ".{}", clip(name)),
            PathStep::Key(key) => write!(path, "[{:?}]", clip(key)),
            PathStep::Index(index) => write!(path, "[{index}]"),
        };
    }
    path
}

fn has_field(message: &MessageDescriptor, name: &str) -> bool {
    !is_well_known(message.full_name()) && message.get_field_by_json_name(name).is_some()
}

/// A hint: YAML parses an unquoted `y` or `1.10` as a boolean or number.
fn quotes_help(expected: &str) -> &'static str {
    let is_text = expected == "a string" || expected.starts_with("one of ");
    if is_text { " (text needs quotes)" } else { "" }
}

/// The field of this name, in camelCase or as in the .proto file; camelCase wins if both are given.
fn field_of(descriptor: &MessageDescriptor, entries: &Map<String, Value>, name: &str) -> Option<FieldDescriptor> {
    descriptor.get_field_by_json_name(name).or_else(|| {
        let field = descriptor.get_field_by_name(name)?;
        (!entries.contains_key(field.json_name())).then_some(field)
    })
}

/// Whether `null` is a value of the field, instead of "not given".
fn accepts_null(field: &FieldDescriptor) -> bool {
    let kind = field.kind();
    !field.is_list() && !field.is_map() && kind.as_message().is_some_and(|m| m.full_name() == "google.protobuf.Value")
}

fn is_wrapper(name: &str) -> bool {
    const WRAPPED: &[&str] = &["Bool", "Bytes", "String", "Int32", "UInt32", "Float", "Int64", "UInt64", "Double"];
    name.strip_prefix("google.protobuf.")
        .and_then(|name| name.strip_suffix("Value"))
        .is_some_and(|name| WRAPPED.contains(&name))
}

/// Whether a message has a special JSON form, which an `Any` contains under `value`.
fn is_well_known(name: &str) -> bool {
    let others = ["Any", "Duration", "Timestamp", "Struct", "Value", "ListValue", "FieldMask", "Empty"];
    is_wrapper(name) || name.strip_prefix("google.protobuf.").is_some_and(|name| others.contains(&name))
}

fn text_or_null(json: &Value) -> Option<&str> {
    // A null in a list of durations is an empty message, that is zero.
    if json.is_null() { Some("0") } else { json.as_str() }
}

/// An integer, also in quotes or as a float without fraction: upstream accepts 80.0 as 80.
fn integer<T: TryFrom<i128>>(json: &Value) -> Option<T> {
    let wide = match json {
        Value::String(text) => text.trim().parse::<i128>().ok().filter(|_| !text.trim().starts_with('+')),
        Value::Number(number) => (number.as_i64().map(i128::from))
            .or_else(|| number.as_u64().map(i128::from))
            .or_else(|| number.as_f64().filter(|f| f.fract() == 0.0 && f.abs() < 1e20).map(|f| f as i128)),
        _ => None,
    };
    wide.and_then(|wide| T::try_from(wide).ok())
}

fn float(json: &Value) -> Option<f64> {
    match json {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            digits => digits.trim().parse::<f64>().ok().filter(|f| f.is_finite()),
        },
        _ => None,
    }
}

/// Base64 text, decoded by prost-reflect through the wrapper type.
fn bytes(json: &Value) -> Option<Field> {
    let wrapper = api::reflect::istio().get_message_by_name("google.protobuf.BytesValue")?;
    let message = DynamicMessage::deserialize(wrapper, json.clone()).ok()?;
    message.get_field_by_number(1).map(|value| value.into_owned())
}

fn map_key(kind: &Kind, name: &str) -> Option<MapKey> {
    match kind {
        Kind::String => Some(MapKey::String(name.to_owned())),
        Kind::Bool => name.parse().ok().map(MapKey::Bool),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => name.parse().ok().map(MapKey::I32),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => name.parse().ok().map(MapKey::I64),
        Kind::Uint32 | Kind::Fixed32 => name.parse().ok().map(MapKey::U32),
        Kind::Uint64 | Kind::Fixed64 => name.parse().ok().map(MapKey::U64),
        _ => None,
    }
}
