//! Functions of Go's template language, and Sprig's for numbers, defaults and types.

use std::cmp::Ordering;

use super::arguments::{ANY, Arguments, Outcome, Row, count, int, shown, text, to_float, to_int};
use super::data::Data;
use super::limits::MOST_ITEMS;
use super::{format, strings};

pub(super) const TABLE: &[Row] = &[
    ("not", 1, 1, |a| Ok(Data::Bool(!a[0].is_true()))),
    ("len", 1, 1, length),
    ("index", 1, ANY, index),
    ("slice", 1, 4, slice),
    ("print", 0, ANY, print),
    ("println", 0, ANY, |a| strings::spaced(a).map(|text| Data::text(text + "\n"))),
    ("printf", 1, ANY, |a| format::printf(text(a, 0)?, &a[1..]).map(Data::text)),
    ("eq", 2, ANY, |a| equal_any(a).map(Data::Bool)),
    ("ne", 2, 2, |a| equal_any(a).map(|equal| Data::Bool(!equal))),
    ("lt", 2, 2, |a| compare(a).map(|order| Data::Bool(order == Ordering::Less))),
    ("le", 2, 2, |a| compare(a).map(|order| Data::Bool(order != Ordering::Greater))),
    ("gt", 2, 2, |a| compare(a).map(|order| Data::Bool(order == Ordering::Greater))),
    ("ge", 2, 2, |a| compare(a).map(|order| Data::Bool(order != Ordering::Less))),
    ("default", 1, 2, |a| Ok(if a.len() == 2 && a[1].is_true() { a[1].clone() } else { a[0].clone() })),
    ("empty", 1, 1, |a| Ok(Data::Bool(!a[0].is_true()))),
    ("coalesce", 0, ANY, |a| Ok(a.iter().find(|value| value.is_true()).cloned().unwrap_or(Data::Nil))),
    ("all", 0, ANY, |a| Ok(Data::Bool(a.iter().all(|value| value.is_true())))),
    ("any", 0, ANY, |a| Ok(Data::Bool(a.iter().any(|value| value.is_true())))),
    ("ternary", 3, 3, |a| Ok(if a[2].is_true() { a[0].clone() } else { a[1].clone() })),
    ("fail", 1, 1, |a| Err(text(a, 0)?.to_owned())),
    ("kindOf", 1, 1, |a| Ok(Data::text(a[0].kind()))),
    ("kindIs", 2, 2, |a| Ok(Data::Bool(text(a, 0)? == a[1].kind()))),
    ("typeOf", 1, 1, |a| Ok(Data::text(a[0].kind()))),
    ("typeIs", 2, 2, |a| Ok(Data::Bool(text(a, 0)? == a[1].kind()))),
    ("int", 1, 1, |a| Ok(Data::Int(int(a, 0)))),
    ("int64", 1, 1, |a| Ok(Data::Int(int(a, 0)))),
    ("float64", 1, 1, |a| Ok(Data::Float(to_float(&a[0])))),
    ("atoi", 1, 1, |a| Ok(Data::Int(text(a, 0)?.parse().unwrap_or_default()))),
    ("toDecimal", 1, 1, |a| Ok(Data::Int(i64::from_str_radix(&shown(a, 0)?, 8).unwrap_or_default()))),
    ("add", 0, ANY, |a| Ok(Data::Int(a.iter().map(to_int).fold(0, i64::wrapping_add)))),
    ("add1", 1, 1, |a| Ok(Data::Int(int(a, 0).wrapping_add(1)))),
    ("sub", 2, 2, |a| Ok(Data::Int(int(a, 0).wrapping_sub(int(a, 1))))),
    ("mul", 1, ANY, |a| Ok(Data::Int(a.iter().map(to_int).fold(1, i64::wrapping_mul)))),
    ("div", 2, 2, |a| int(a, 0).checked_div(int(a, 1)).map(Data::Int).ok_or_else(by_zero)),
    ("mod", 2, 2, |a| int(a, 0).checked_rem(int(a, 1)).map(Data::Int).ok_or_else(by_zero)),
    ("max", 1, ANY, |a| Ok(Data::Int(a.iter().map(to_int).max().unwrap_or_default()))),
    ("biggest", 1, ANY, |a| Ok(Data::Int(a.iter().map(to_int).max().unwrap_or_default()))),
    ("min", 1, ANY, |a| Ok(Data::Int(a.iter().map(to_int).min().unwrap_or_default()))),
    ("addf", 0, ANY, |a| Ok(Data::Float(a.iter().map(to_float).sum()))),
    ("subf", 1, ANY, |a| Ok(Data::Float(a[1..].iter().map(to_float).fold(to_float(&a[0]), |x, y| x - y)))),
    ("mulf", 1, ANY, |a| Ok(Data::Float(a.iter().map(to_float).product()))),
    ("divf", 1, ANY, |a| Ok(Data::Float(a[1..].iter().map(to_float).fold(to_float(&a[0]), |x, y| x / y)))),
    ("maxf", 1, ANY, |a| Ok(Data::Float(a.iter().map(to_float).fold(f64::NEG_INFINITY, f64::max)))),
    ("minf", 1, ANY, |a| Ok(Data::Float(a.iter().map(to_float).fold(f64::INFINITY, f64::min)))),
    ("floor", 1, 1, |a| Ok(Data::Float(to_float(&a[0]).floor()))),
    ("ceil", 1, 1, |a| Ok(Data::Float(to_float(&a[0]).ceil()))),
    ("round", 2, 3, round),
    ("until", 1, 1, |a| steps(0, int(a, 0), if int(a, 0) < 0 { -1 } else { 1 })),
    ("untilStep", 3, 3, |a| steps(int(a, 0), int(a, 1), int(a, 2))),
    ("seq", 0, 3, seq),
];

fn by_zero() -> String {
    "division by zero".to_owned()
}

fn length(a: Arguments<'_>) -> Outcome {
    let length = match &a[0] {
        Data::Text(text) => text.len(),
        Data::List(list) => list.len(),
        Data::Map(map) => map.entries.borrow().len(),
        other => return Err(format!("len of a {}", other.kind())),
    };
    Ok(Data::Int(length as i64))
}

fn index(a: Arguments<'_>) -> Outcome {
    let mut value = a[0].clone();
    for key in &a[1..] {
        value = match (&value, key) {
            (Data::Missing | Data::Nil, _) => return Err("index of untyped nil".to_owned()),
            (Data::Map(map), Data::Text(key)) => {
                let absent = if map.of_strings { Data::text("") } else { Data::Nil };
                map.entries.borrow().get(&**key).cloned().unwrap_or(absent)
            }
            (Data::List(list), Data::Int(at)) => {
                let item = usize::try_from(*at).ok().and_then(|at| list.get(at));
                item.cloned().ok_or_else(|| format!("index {at} out of range"))?
            }
            (Data::Text(text), Data::Int(at)) => {
                let byte = usize::try_from(*at).ok().and_then(|at| text.as_bytes().get(at));
                Data::Int(i64::from(*byte.ok_or_else(|| format!("index {at} out of range"))?))
            }
            (value, key) => return Err(format!("can't index a {} by a {}", value.kind(), key.kind())),
        };
    }
    Ok(value)
}

fn slice(a: Arguments<'_>) -> Outcome {
    let length = match &a[0] {
        Data::Text(text) => text.len(),
        Data::List(list) => list.len(),
        other => return Err(format!("slice of a {}", other.kind())),
    };
    let from = if a.len() > 1 { count(a, 1)? } else { 0 };
    let to = if a.len() > 2 { count(a, 2)? } else { length };
    if from > to || to > length {
        return Err(format!("slice {from}:{to} out of range"));
    }
    match &a[0] {
        Data::Text(text) => text.get(from..to).map(Data::text).ok_or_else(|| "slice within a character".to_owned()),
        Data::List(list) => Ok(Data::list(list[from..to].iter().cloned())),
        _ => Ok(Data::Nil),
    }
}

/// Go's `Sprint`: a space between operands when neither is a string.
fn print(a: Arguments<'_>) -> Outcome {
    let mut out = String::new();
    let mut was_text = true;
    for (at, value) in a.iter().enumerate() {
        let is_text = matches!(value, Data::Text(_));
        if at > 0 && !is_text && !was_text {
            out.push(' ');
        }
        out.push_str(&format::print(value)?);
        was_text = is_text;
    }
    Ok(Data::text(out))
}

fn equal_any(a: Arguments<'_>) -> Result<bool, String> {
    for other in &a[1..] {
        if equal(&a[0], other)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Go's comparison: values of different types are an error, nil differs from all others.
fn equal(one: &Data, other: &Data) -> Result<bool, String> {
    match (one, other) {
        (Data::Missing | Data::Nil, Data::Missing | Data::Nil) => Ok(true),
        (Data::Missing | Data::Nil, _) | (_, Data::Missing | Data::Nil) => Ok(false),
        (Data::Bool(a), Data::Bool(b)) => Ok(a == b),
        (Data::Int(a), Data::Int(b)) => Ok(a == b),
        (Data::Float(a), Data::Float(b)) => Ok(a == b),
        (Data::Text(a), Data::Text(b)) => Ok(a == b),
        (a, b) => Err(format!("incompatible types for comparison: {} and {}", a.kind(), b.kind())),
    }
}

fn compare(a: Arguments<'_>) -> Result<Ordering, String> {
    match (&a[0], &a[1]) {
        (Data::Int(a), Data::Int(b)) => Ok(a.cmp(b)),
        (Data::Float(a), Data::Float(b)) => Ok(a.partial_cmp(b).unwrap_or(Ordering::Equal)),
        (Data::Text(a), Data::Text(b)) => Ok(a.cmp(b)),
        (a, b) => Err(format!("incompatible types for comparison: {} and {}", a.kind(), b.kind())),
    }
}

fn round(a: Arguments<'_>) -> Outcome {
    let places = i32::try_from(int(a, 1).clamp(-300, 300)).unwrap_or_default();
    let half = a.get(2).map_or(0.5, to_float);
    let factor = 10f64.powi(places);
    let scaled = to_float(&a[0]) * factor;
    let rounded = if scaled.fract().abs() >= half { scaled.trunc() + scaled.signum() } else { scaled.trunc() };
    Ok(Data::Float(rounded / factor))
}

fn steps(from: i64, to: i64, step: i64) -> Outcome {
    if step == 0 || (step > 0) != (to > from) {
        return Ok(Data::list([]));
    }
    let length = to.abs_diff(from) / step.unsigned_abs();
    if length > MOST_ITEMS as u64 {
        return Err(format!("more than {MOST_ITEMS} numbers"));
    }
    let mut numbers = Vec::new();
    let mut at = from;
    while (step > 0 && at < to) || (step < 0 && at > to) {
        numbers.push(Data::Int(at));
        at = at.saturating_add(step);
    }
    Ok(Data::list(numbers))
}

fn seq(a: Arguments<'_>) -> Outcome {
    let (from, step, to) = match a.len() {
        0 => return Ok(Data::text("")),
        1 => (1, if int(a, 0) < 1 { -1 } else { 1 }, int(a, 0)),
        2 => (int(a, 0), if int(a, 1) < int(a, 0) { -1 } else { 1 }, int(a, 1)),
        _ => (int(a, 0), int(a, 1), int(a, 2)),
    };
    let Data::List(numbers) = steps(from, to.saturating_add(step.signum()), step)? else { return Ok(Data::text("")) };
    let numbers = numbers.iter().map(format::print).collect::<Result<Vec<_>, _>>()?;
    Ok(Data::text(numbers.join(" ")))
}
