//! Values as text, in the forms of Go's `fmt`.

use std::fmt::Write;

use super::data::Data;
use super::limits::MOST_BYTES;

/// The form of `%v`.
pub(super) fn print(value: &Data) -> Result<String, String> {
    let mut out = String::new();
    print_into(&mut out, value, 0)?;
    Ok(out)
}

fn print_into(out: &mut String, value: &Data, depth: usize) -> Result<(), String> {
    if depth > 64 || out.len() > MOST_BYTES {
        return Err("a value is too large to print".to_owned());
    }
    match value {
        Data::Missing | Data::Nil => out.push_str("<nil>"),
        Data::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Data::Int(int) => {
            let _ = write!(out, "{int}");
        }
        Data::Float(value) => out.push_str(&float(*value)),
        Data::Text(text) => {
            if out.len() + text.len() > MOST_BYTES {
                return Err("a value is too large to print".to_owned());
            }
            out.push_str(text);
        }
        Data::List(list) => {
            out.push('[');
            for (at, item) in list.iter().enumerate() {
                if at > 0 {
                    out.push(' ');
                }
                print_into(out, item, depth + 1)?;
            }
            out.push(']');
        }
        Data::Map(map) => {
            out.push_str("map[");
            for (at, (key, item)) in map.entries.borrow().iter().enumerate() {
                if at > 0 {
                    out.push(' ');
                }
                out.push_str(key);
                out.push(':');
                print_into(out, item, depth + 1)?;
            }
            out.push(']');
        }
        Data::Struct(_, value) => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// A float in Go's shortest form: an exponent below 1e-4 and from 1e21.
fn float(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-4..1e21).contains(&size) {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(("+", exponent), |digits| ("-", digits));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{value}")
}

/// The form of `%q`.
pub(super) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\u{b}' => out.push_str("\\v"),
            c if u32::from(c) < 0x80 && c.is_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c if c.is_control() || matches!(c, '\u{feff}' | '\u{2028}' | '\u{2029}') => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Widest field of `printf`.
const MOST_WIDTH: usize = 10_000;

/// One directive such as `%-5.2f`.
#[derive(Default)]
struct Directive {
    minus: bool,
    plus: bool,
    zero: bool,
    sharp: bool,
    width: usize,
    precision: Option<usize>,
}

/// Go's `Sprintf`.
pub(super) fn printf(pattern: &str, arguments: &[Data]) -> Result<String, String> {
    let mut out = String::new();
    let mut arguments = arguments.iter();
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        if out.len() > MOST_BYTES {
            return Err("the result is too large".to_owned());
        }
        if c != '%' {
            out.push(c);
            continue;
        }
        let directive = directive(&mut chars);
        match chars.next() {
            None => out.push_str("%!(NOVERB)"),
            Some('%') => out.push('%'),
            Some(verb) => match arguments.next() {
                None => {
                    let _ = write!(out, "%!{verb}(MISSING)");
                }
                Some(value) => out.push_str(&pad(formatted(verb, &directive, value)?, &directive)),
            },
        }
    }
    Ok(out)
}

fn directive(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Directive {
    let mut found = Directive::default();
    while let Some(c) = chars.next_if(|c| "-+0# ".contains(*c)) {
        match c {
            '-' => found.minus = true,
            '+' => found.plus = true,
            '0' => found.zero = true,
            '#' => found.sharp = true,
            _ => {}
        }
    }
    found.width = number(chars);
    if chars.next_if_eq(&'.').is_some() {
        found.precision = Some(number(chars));
    }
    found
}

fn number(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> usize {
    let mut value = 0usize;
    while let Some(digit) = chars.next_if(char::is_ascii_digit).and_then(|c| c.to_digit(10)) {
        value = value.saturating_mul(10).saturating_add(digit as usize).min(MOST_WIDTH);
    }
    value
}

fn formatted(verb: char, directive: &Directive, value: &Data) -> Result<String, String> {
    let signed = |text: String| if directive.plus && !text.starts_with('-') { format!("+{text}") } else { text };
    Ok(match (verb, value) {
        ('v' | 's', Data::Text(text)) => {
            let text: String = text.chars().take(directive.precision.unwrap_or(usize::MAX)).collect();
            if directive.sharp { quote(&text) } else { text }
        }
        ('q', Data::Text(text)) => quote(text),
        ('x' | 'X', Data::Text(text)) => {
            let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
            if verb == 'X' { hex.to_uppercase() } else { hex }
        }
        ('v' | 'd', Data::Int(int)) => signed(int.to_string()),
        ('x', Data::Int(int)) => format!("{int:x}"),
        ('X', Data::Int(int)) => format!("{int:X}"),
        ('o', Data::Int(int)) => format!("{int:o}"),
        ('b', Data::Int(int)) => format!("{int:b}"),
        ('c', Data::Int(int)) => u32::try_from(*int).ok().and_then(char::from_u32).unwrap_or('\u{fffd}').to_string(),
        ('q', Data::Int(int)) => {
            format!("'{}'", u32::try_from(*int).ok().and_then(char::from_u32).unwrap_or('\u{fffd}'))
        }
        ('f' | 'F', Data::Float(float)) => signed(format!("{float:.*}", directive.precision.unwrap_or(6))),
        ('g' | 'v', Data::Float(value)) => signed(float(*value)),
        ('e', Data::Float(value)) => signed(format!("{value:e}")),
        ('t' | 'v', Data::Bool(value)) => value.to_string(),
        ('v', _) | ('s' | 'd', Data::List(_) | Data::Map(_) | Data::Struct(..)) => print(value)?,
        (_, Data::Missing | Data::Nil) => format!("%!{verb}(<nil>)"),
        (_, other) => format!("%!{verb}({}={})", other.kind(), print(other)?),
    })
}

fn pad(text: String, directive: &Directive) -> String {
    let missing = directive.width.saturating_sub(text.chars().count());
    if missing == 0 {
        return text;
    }
    if directive.minus {
        return text + &" ".repeat(missing);
    }
    if directive.zero {
        let (sign, digits) = text.split_at(usize::from(text.starts_with(['-', '+'])));
        return format!("{sign}{}{digits}", "0".repeat(missing));
    }
    " ".repeat(missing) + &text
}
