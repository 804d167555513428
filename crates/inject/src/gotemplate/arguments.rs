//! How functions read their arguments.

use super::data::Data;
use super::format;
use super::limits::MOST_BYTES;

pub(super) type Arguments<'a> = &'a [Data];
pub(super) type Outcome = Result<Data, String>;
pub(super) type Function = fn(Arguments<'_>) -> Outcome;

/// Name, smallest and largest number of arguments, function.
pub(super) type Row = (&'static str, usize, usize, Function);

/// No upper limit of arguments.
pub(super) const ANY: usize = usize::MAX;

/// An argument of type string.
pub(super) fn text<'a>(arguments: Arguments<'a>, at: usize) -> Result<&'a str, String> {
    match arguments.get(at) {
        Some(Data::Text(text)) => Ok(text),
        other => Err(wrong("string", at, other)),
    }
}

/// An argument of any type as text.
pub(super) fn shown(arguments: Arguments<'_>, at: usize) -> Result<String, String> {
    format::print(arguments.get(at).unwrap_or(&Data::Nil))
}

/// A number of any type, or a text that is one, as Sprig converts them; else 0.
pub(super) fn int(arguments: Arguments<'_>, at: usize) -> i64 {
    arguments.get(at).map_or(0, to_int)
}

pub(super) fn to_int(value: &Data) -> i64 {
    match value {
        Data::Int(int) => *int,
        Data::Float(float) => *float as i64,
        Data::Bool(value) => i64::from(*value),
        Data::Text(text) => text.trim().parse().unwrap_or_default(),
        _ => 0,
    }
}

pub(super) fn to_float(value: &Data) -> f64 {
    match value {
        Data::Int(int) => *int as f64,
        Data::Float(float) => *float,
        Data::Bool(value) => f64::from(u8::from(*value)),
        Data::Text(text) => text.trim().parse().unwrap_or_default(),
        _ => 0.0,
    }
}

/// An argument of type int.
pub(super) fn count(arguments: Arguments<'_>, at: usize) -> Result<usize, String> {
    match arguments.get(at) {
        Some(Data::Int(int)) => Ok(usize::try_from(*int).unwrap_or_default()),
        Some(Data::Float(float)) if float.fract() == 0.0 => Ok(*float as usize),
        other => Err(wrong("int", at, other)),
    }
}

pub(super) fn list<'a>(arguments: Arguments<'a>, at: usize) -> Result<&'a [Data], String> {
    match arguments.get(at) {
        Some(Data::List(list)) => Ok(list),
        Some(Data::Missing | Data::Nil) => Ok(&[]),
        other => Err(wrong("list", at, other)),
    }
}

/// A copy of the entries of a map.
pub(super) fn entries(arguments: Arguments<'_>, at: usize) -> Result<Vec<(String, Data)>, String> {
    match arguments.get(at) {
        Some(Data::Map(map)) => Ok(map.entries.borrow().iter().map(|(k, v)| (k.clone(), v.clone())).collect()),
        Some(Data::Missing | Data::Nil) => Ok(Vec::new()),
        other => Err(wrong("map", at, other)),
    }
}

/// Texts joined within the limit.
pub(super) fn joined<S: AsRef<str>>(parts: &[S], separator: &str) -> Outcome {
    let length: usize = parts.iter().map(|part| part.as_ref().len() + separator.len()).sum();
    if length > MOST_BYTES + separator.len() {
        return Err("the result is too large".to_owned());
    }
    let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
    Ok(Data::text(parts.join(separator)))
}

fn wrong(expected: &str, at: usize, found: Option<&Data>) -> String {
    let found = found.map_or("nothing", Data::kind);
    format!("argument {}: expected a {expected}, found {found}", at + 1)
}
