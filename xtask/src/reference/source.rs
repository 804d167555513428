//! Reads tables out of Rust source: string literals with the code around them, and the rows of a macro.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::tidy::lexer;

/// The text of a source file without its tests.
pub(super) fn read(root: &Path, file: &str) -> Result<String> {
    let text = fs::read_to_string(root.join(file)).with_context(|| format!("could not read {file}"))?;
    let end = text.find("#[cfg(test)]\nmod tests").unwrap_or(text.len());
    Ok(text[..end].to_owned())
}

/// A string literal without its quotes, and where it starts and ends in the text.
pub(super) struct Literal {
    pub(super) text: String,
    pub(super) start: usize,
    pub(super) end: usize,
}

pub(super) fn literals(text: &str) -> Vec<Literal> {
    let (_, prose) = lexer::split(text);
    let strings = prose.into_iter().filter(|p| p.text.starts_with('"') && p.text.len() > 1);
    let literal = |p: lexer::Prose| Literal {
        text: unescaped(&p.text[1..p.text.len() - 1]),
        end: p.start + p.text.len(),
        start: p.start,
    };
    strings.map(literal).collect()
}

/// A backslash at the end of a line joins it with the next.
fn unescaped(text: &str) -> String {
    let mut lines = text.split("\\\n");
    let first = lines.next().unwrap_or_default().to_owned();
    lines.fold(first, |text, line| text + line.trim_start()).replace("\\\"", "\"")
}

/// A row of a macro: its doc comment and its text, with blanks folded.
#[derive(Debug, PartialEq)]
pub(super) struct TableRow {
    pub(super) doc: String,
    pub(super) text: String,
}

/// The rows of `name! { … }`, which end with semicolons.
pub(super) fn macro_rows(text: &str, name: &str) -> Option<Vec<TableRow>> {
    let start = text.find(&format!("\n{name}! {{"))? + name.len() + 4;
    let body = &text[start..start + text[start..].find("\n}")?];
    let rows = body.split(";\n").map(|row| {
        let (docs, code): (Vec<&str>, Vec<&str>) = row.lines().map(str::trim).partition(|line| line.starts_with("///"));
        let docs: Vec<&str> = docs.iter().map(|line| line.trim_start_matches('/').trim()).collect();
        TableRow { doc: docs.join(" "), text: code.join(" ").trim().trim_end_matches(';').to_owned() }
    });
    Some(rows.filter(|row| !row.text.is_empty() && row.text != "}").collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_rows_are_read() {
        let found: Vec<String> = literals("f(\"a\", \"b \\\n   c\") // \"d\"").into_iter().map(|l| l.text).collect();
        assert_eq!(found, ["a", "b c"]);
        let text = "\nrows! {\n    /// Doc.\n    a: u8 = 1, \"A\";\n    b: u8 = 2, \"B\";\n}\n";
        let row = |doc: &str, text: &str| TableRow { doc: doc.to_owned(), text: text.to_owned() };
        let expected = [row("Doc.", "a: u8 = 1, \"A\""), row("", "b: u8 = 2, \"B\"")];
        assert_eq!(macro_rows(text, "rows").unwrap(), expected);
    }
}
