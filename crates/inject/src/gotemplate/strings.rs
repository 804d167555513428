//! Sprig's functions for texts, regular expressions, paths and encodings.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use regex::Regex;

use super::arguments::{ANY, Arguments, Outcome, Row, count, joined, list, shown, text, to_int};
use super::data::Data;
use super::format;
use super::limits::MOST_BYTES;

pub(super) const TABLE: &[Row] = &[
    ("trim", 1, 1, |a| Ok(Data::text(text(a, 0)?.trim()))),
    ("trimAll", 2, 2, |a| Ok(Data::text(trimmed(text(a, 0)?, text(a, 1)?)))),
    ("trimall", 2, 2, |a| Ok(Data::text(trimmed(text(a, 0)?, text(a, 1)?)))),
    ("trimSuffix", 2, 2, |a| Ok(Data::text(text(a, 1)?.strip_suffix(text(a, 0)?).unwrap_or(text(a, 1)?)))),
    ("trimPrefix", 2, 2, |a| Ok(Data::text(text(a, 1)?.strip_prefix(text(a, 0)?).unwrap_or(text(a, 1)?)))),
    ("upper", 1, 1, |a| Ok(Data::text(text(a, 0)?.to_uppercase()))),
    ("lower", 1, 1, |a| Ok(Data::text(text(a, 0)?.to_lowercase()))),
    ("title", 1, 1, |a| Ok(Data::text(titled(text(a, 0)?, char::to_ascii_uppercase)))),
    ("untitle", 1, 1, |a| Ok(Data::text(titled(text(a, 0)?, char::to_ascii_lowercase)))),
    ("swapcase", 1, 1, |a| Ok(Data::text(text(a, 0)?.chars().map(swapped).collect::<String>()))),
    ("nospace", 1, 1, |a| Ok(Data::text(text(a, 0)?.split_whitespace().collect::<String>()))),
    ("repeat", 2, 2, repeat),
    ("substr", 3, 3, substr),
    ("trunc", 2, 2, truncated),
    ("abbrev", 2, 2, abbreviated),
    ("initials", 1, 1, |a| {
        Ok(Data::text(text(a, 0)?.split_whitespace().filter_map(|w| w.chars().next()).collect::<String>()))
    }),
    ("quote", 0, ANY, |a| quoted(a, format::quote)),
    ("squote", 0, ANY, |a| quoted(a, |text| format!("'{text}'"))),
    ("cat", 0, ANY, |a| {
        let kept: Vec<Data> = a.iter().filter(|value| !value.is_nil()).cloned().collect();
        joined(&texts(&kept)?, " ")
    }),
    ("nindent", 2, 2, |a| indented(count(a, 0)?, text(a, 1)?).map(|text| Data::text(format!("\n{text}")))),
    ("replace", 3, 3, |a| replaced(text(a, 2)?, text(a, 0)?, text(a, 1)?)),
    ("plural", 3, 3, |a| Ok(a[usize::from(to_int(&a[2]) != 1)].clone())),
    ("snakecase", 1, 1, |a| Ok(Data::text(words(text(a, 0)?).join("_")))),
    ("kebabcase", 1, 1, |a| Ok(Data::text(words(text(a, 0)?).join("-")))),
    ("camelcase", 1, 1, |a| {
        Ok(Data::text(words(text(a, 0)?).iter().map(|word| titled(word, char::to_ascii_uppercase)).collect::<String>()))
    }),
    ("hasPrefix", 2, 2, |a| Ok(Data::Bool(text(a, 1)?.starts_with(text(a, 0)?)))),
    ("hasSuffix", 2, 2, |a| Ok(Data::Bool(text(a, 1)?.ends_with(text(a, 0)?)))),
    ("toString", 1, 1, |a| shown(a, 0).map(Data::text)),
    ("toStrings", 1, 1, |a| Ok(Data::list(texts(list(a, 0)?)?.into_iter().map(Data::text)))),
    ("join", 2, 2, join),
    ("splitList", 2, 2, |a| Ok(Data::list(split(text(a, 1)?, text(a, 0)?).map(Data::text)))),
    ("split", 2, 2, |a| Ok(numbered(split(text(a, 1)?, text(a, 0)?)))),
    ("splitn", 3, 3, |a| Ok(numbered(text(a, 2)?.splitn(count(a, 1)?, text(a, 0)?)))),
    ("sortAlpha", 1, 1, |a| {
        let mut sorted = texts(list(a, 0)?)?;
        sorted.sort();
        Ok(Data::list(sorted.into_iter().map(Data::text)))
    }),
    ("regexMatch", 2, 2, |a| Ok(Data::Bool(pattern(a)?.is_match(text(a, 1)?)))),
    ("mustRegexMatch", 2, 2, |a| Ok(Data::Bool(pattern(a)?.is_match(text(a, 1)?)))),
    ("regexFind", 2, 2, |a| Ok(Data::text(pattern(a)?.find(text(a, 1)?).map_or("", |found| found.as_str())))),
    ("regexFindAll", 3, 3, |a| {
        let most = usize::try_from(to_int(&a[2])).unwrap_or(usize::MAX);
        Ok(Data::list(pattern(a)?.find_iter(text(a, 1)?).take(most).map(|found| Data::text(found.as_str()))))
    }),
    ("regexReplaceAll", 3, 3, |a| regex_replaced(a, true)),
    ("mustRegexReplaceAll", 3, 3, |a| regex_replaced(a, true)),
    ("regexReplaceAllLiteral", 3, 3, |a| regex_replaced(a, false)),
    ("regexSplit", 3, 3, |a| {
        let most = usize::try_from(to_int(&a[2])).unwrap_or(usize::MAX);
        Ok(Data::list(pattern(a)?.splitn(text(a, 1)?, most).map(Data::text)))
    }),
    ("regexQuoteMeta", 1, 1, |a| Ok(Data::text(regex::escape(text(a, 0)?)))),
    ("b64enc", 1, 1, |a| Ok(Data::text(STANDARD.encode(text(a, 0)?)))),
    ("b64dec", 1, 1, |a| {
        let bytes = STANDARD.decode(text(a, 0)?).map_err(|error| error.to_string())?;
        Ok(Data::text(String::from_utf8_lossy(&bytes)))
    }),
    ("toJson", 1, 1, |a| Ok(Data::text(a[0].to_json()?.to_string()))),
    ("mustToJson", 1, 1, |a| Ok(Data::text(a[0].to_json()?.to_string()))),
    ("toRawJson", 1, 1, |a| Ok(Data::text(a[0].to_json()?.to_string()))),
    ("toPrettyJson", 1, 1, |a| Ok(Data::text(format!("{:#}", a[0].to_json()?)))),
    ("fromJson", 1, 1, |a| Ok(serde_json::from_str(text(a, 0)?).map_or(Data::Nil, |value| Data::of_json(&value)))),
    ("mustFromJson", 1, 1, |a| {
        serde_json::from_str(text(a, 0)?).map(|value| Data::of_json(&value)).map_err(|error| error.to_string())
    }),
    ("base", 1, 1, |a| Ok(Data::text(text(a, 0)?.trim_end_matches('/').rsplit('/').next().unwrap_or(".")))),
    ("dir", 1, 1, |a| Ok(Data::text(folder(text(a, 0)?)))),
    ("ext", 1, 1, |a| {
        let name = text(a, 0)?.rsplit('/').next().unwrap_or_default();
        Ok(Data::text(name.rfind('.').map_or("", |at| &name[at..])))
    }),
    ("isAbs", 1, 1, |a| Ok(Data::Bool(text(a, 0)?.starts_with('/')))),
    ("html", 1, ANY, |a| Ok(Data::text(escaped_html(&spaced(a)?)))),
    ("urlquery", 1, ANY, |a| Ok(Data::text(url_query(&spaced(a)?)))),
];

/// Values as texts.
pub(super) fn texts(values: &[Data]) -> Result<Vec<String>, String> {
    values.iter().map(format::print).collect()
}

/// Values as one text, with spaces between them.
pub(super) fn spaced(values: &[Data]) -> Result<String, String> {
    match joined(&texts(values)?, " ")? {
        Data::Text(text) => Ok(text.to_string()),
        _ => Ok(String::new()),
    }
}

/// Lines of a text with spaces before each.
pub(super) fn indented(spaces: usize, source: &str) -> Result<String, String> {
    let lines = source.matches('\n').count() + 1;
    if spaces.saturating_mul(lines).saturating_add(source.len()) > MOST_BYTES {
        return Err("the result is too large".to_owned());
    }
    let pad = " ".repeat(spaces);
    Ok(format!("{pad}{}", source.replace('\n', &format!("\n{pad}"))))
}

fn trimmed<'a>(cut: &str, text: &'a str) -> &'a str {
    text.trim_matches(|c| cut.contains(c))
}

fn titled(text: &str, change: fn(&char) -> char) -> String {
    let mut begins = true;
    let mut titled = String::with_capacity(text.len());
    for c in text.chars() {
        titled.push(if begins { change(&c) } else { c });
        begins = !c.is_alphanumeric() && c != '\'';
    }
    titled
}

fn swapped(c: char) -> char {
    if c.is_ascii_uppercase() { c.to_ascii_lowercase() } else { c.to_ascii_uppercase() }
}

fn repeat(a: Arguments<'_>) -> Outcome {
    let (times, text) = (count(a, 0)?, text(a, 1)?);
    if times.saturating_mul(text.len()) > MOST_BYTES {
        return Err("the result is too large".to_owned());
    }
    Ok(Data::text(text.repeat(times)))
}

fn substr(a: Arguments<'_>) -> Outcome {
    let (from, to, text) = (to_int(&a[0]), to_int(&a[1]), text(a, 2)?);
    let from = usize::try_from(from).unwrap_or_default();
    let to = usize::try_from(to).unwrap_or(usize::MAX).min(text.len());
    text.get(from.min(to)..to).map(Data::text).ok_or_else(|| "not at the boundary of a character".to_owned())
}

fn truncated(a: Arguments<'_>) -> Outcome {
    let (length, text) = (to_int(&a[0]), text(a, 1)?);
    let size = usize::try_from(length.unsigned_abs()).unwrap_or(usize::MAX);
    if text.len() <= size {
        return Ok(Data::text(text));
    }
    let part = if length < 0 { text.get(text.len() - size..) } else { text.get(..size) };
    part.map(Data::text).ok_or_else(|| "not at the boundary of a character".to_owned())
}

fn abbreviated(a: Arguments<'_>) -> Outcome {
    let (width, text) = (count(a, 0)?, text(a, 1)?);
    if width < 4 || text.chars().count() <= width {
        return Ok(Data::text(text));
    }
    Ok(Data::text(text.chars().take(width - 3).chain("...".chars()).collect::<String>()))
}

fn quoted(a: Arguments<'_>, quote: fn(&str) -> String) -> Outcome {
    let kept: Vec<Data> = a.iter().filter(|value| !value.is_nil()).cloned().collect();
    let quoted: Vec<String> = texts(&kept)?.iter().map(|text| quote(text)).collect();
    joined(&quoted, " ")
}

fn replaced(text: &str, old: &str, new: &str) -> Outcome {
    let matches = if old.is_empty() { text.chars().count() + 1 } else { text.matches(old).count() };
    if matches.saturating_mul(new.len()).saturating_add(text.len()) > MOST_BYTES {
        return Err("the result is too large".to_owned());
    }
    Ok(Data::text(text.replace(old, new)))
}

/// Words of a name in any of the usual forms, in lower case.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut was_lower = false;
    for c in text.chars() {
        if !c.is_alphanumeric() {
            words.push(String::new());
            was_lower = false;
            continue;
        }
        if words.is_empty() || (c.is_uppercase() && was_lower) {
            words.push(String::new());
        }
        was_lower = !c.is_uppercase();
        if let Some(word) = words.last_mut() {
            word.extend(c.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

fn join(a: Arguments<'_>) -> Outcome {
    let separator = text(a, 0)?;
    match &a[1] {
        Data::List(items) => {
            let items: Vec<Data> = items.iter().filter(|item| !item.is_nil()).cloned().collect();
            joined(&texts(&items)?, separator)
        }
        other => format::print(other).map(Data::text),
    }
}

fn split<'a>(text: &'a str, separator: &'a str) -> Box<dyn Iterator<Item = &'a str> + 'a> {
    if separator.is_empty() {
        return Box::new(text.split("").filter(|part| !part.is_empty()));
    }
    Box::new(text.split(separator))
}

/// Parts as a map with keys `_0`, `_1` and so on.
fn numbered<'a>(parts: impl Iterator<Item = &'a str>) -> Data {
    Data::string_map(parts.enumerate().map(|(at, part)| (format!("_{at}"), part.to_owned())))
}

fn pattern(a: Arguments<'_>) -> Result<Regex, String> {
    let compiled = regex::RegexBuilder::new(text(a, 0)?).size_limit(1 << 20).build();
    compiled.map_err(|error| error.to_string().lines().last().unwrap_or_default().to_owned())
}

fn regex_replaced(a: Arguments<'_>, expands: bool) -> Outcome {
    let (regex, source, by) = (pattern(a)?, text(a, 1)?, text(a, 2)?);
    // Go writes ${1} and $name as this library does.
    let mut out = String::new();
    let mut at = 0;
    for found in regex.captures_iter(source) {
        let Some(whole) = found.get(0) else { continue };
        out.push_str(&source[at..whole.start()]);
        if expands {
            found.expand(by, &mut out);
        } else {
            out.push_str(by);
        }
        at = whole.end();
        if out.len() > MOST_BYTES {
            return Err("the result is too large".to_owned());
        }
    }
    out.push_str(&source[at..]);
    Ok(Data::text(out))
}

fn folder(path: &str) -> &str {
    match path.trim_end_matches('/').rfind('/') {
        None => ".",
        Some(0) => "/",
        Some(at) => &path[..at],
    }
}

fn escaped_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

fn url_query(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            b' ' => out.push('+'),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}
