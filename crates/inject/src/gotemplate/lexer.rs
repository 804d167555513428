//! Splits a template into text and the tokens of its actions.

use super::TemplateError;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum ActionToken {
    Text(String),
    /// The end of an action.
    End,
    Identifier(String),
    /// `.Name`
    Field(String),
    /// `$` or `$name`
    Variable(String),
    Dot,
    String(String),
    Int(i64),
    Float(f64),
    Open,
    Close,
    Pipe,
    Comma,
    Declare,
    Assign,
}

/// A token with its line, and whether a space is before it.
#[derive(Clone, Debug)]
pub(super) struct Lexed {
    pub(super) token: ActionToken,
    pub(super) line: usize,
    pub(super) spaced: bool,
}

pub(super) fn tokens(text: &str) -> Result<Vec<Lexed>, TemplateError> {
    let mut lexer = Lexer { text, at: 0, line: 1, found: Vec::new() };
    lexer.run()?;
    Ok(lexer.found)
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: usize,
    found: Vec<Lexed>,
}

impl<'a> Lexer<'a> {
    fn run(&mut self) -> Result<(), TemplateError> {
        let mut trims_left = false;
        loop {
            let rest = self.rest();
            let length = rest.find("{{").unwrap_or(rest.len());
            let mut text = &rest[..length];
            let is_last = length == rest.len();
            let trims_right = !is_last && is_trimmed(&rest[length + 2..]);
            if trims_left {
                text = text.trim_start_matches(is_space);
            }
            if trims_right {
                text = text.trim_end_matches(is_space);
            }
            if !text.is_empty() {
                self.push(ActionToken::Text(text.to_owned()), false);
            }
            self.advance(length);
            if is_last {
                return Ok(());
            }
            self.advance(if trims_right { 3 } else { 2 });
            trims_left = self.action()?;
        }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn advance(&mut self, bytes: usize) {
        let passed = &self.text.as_bytes()[self.at..self.at + bytes];
        self.line += passed.iter().filter(|byte| **byte == b'\n').count();
        self.at += bytes;
    }

    fn push(&mut self, token: ActionToken, spaced: bool) {
        self.found.push(Lexed { token, line: self.line, spaced });
    }

    fn error<T>(&self, message: impl Into<String>) -> Result<T, TemplateError> {
        Err(TemplateError { line: self.line, message: message.into() })
    }

    /// Reads an action up to its end; returns whether it trims the text after it.
    fn action(&mut self) -> Result<bool, TemplateError> {
        let begin = self.rest().trim_start_matches(is_space);
        if begin.starts_with("/*") {
            return self.comment();
        }
        loop {
            let rest = self.rest();
            let spaces = rest.len() - rest.trim_start_matches(is_space).len();
            let spaced = spaces > 0;
            self.advance(spaces);
            let rest = self.rest();
            if spaced && rest.starts_with("-}}") {
                self.push(ActionToken::End, true);
                self.advance(3);
                return Ok(true);
            }
            if rest.starts_with("}}") {
                self.push(ActionToken::End, spaced);
                self.advance(2);
                return Ok(false);
            }
            let Some(first) = rest.chars().next() else { return self.error("unclosed action") };
            self.token(first, spaced)?;
        }
    }

    fn comment(&mut self) -> Result<bool, TemplateError> {
        let rest = self.rest();
        let Some(end) = rest.find("*/") else { return self.error("unclosed comment") };
        self.advance(end + 2);
        let rest = self.rest();
        let spaces = rest.len() - rest.trim_start_matches(is_space).len();
        let after = &rest[spaces..];
        let trims = spaces > 0 && after.starts_with("-}}");
        let ends = trims || spaces == 0 && after.starts_with("}}");
        if !ends {
            return self.error("a comment must be the whole action");
        }
        self.advance(spaces + if trims { 3 } else { 2 });
        Ok(trims)
    }

    fn token(&mut self, first: char, spaced: bool) -> Result<(), TemplateError> {
        let rest = self.rest();
        let simple = match first {
            '(' => Some(ActionToken::Open),
            ')' => Some(ActionToken::Close),
            '|' => Some(ActionToken::Pipe),
            ',' => Some(ActionToken::Comma),
            '=' => Some(ActionToken::Assign),
            _ => None,
        };
        if let Some(token) = simple {
            self.push(token, spaced);
            self.advance(1);
            return Ok(());
        }
        let (token, length) = match first {
            ':' if rest.starts_with(":=") => (ActionToken::Declare, 2),
            '"' => self.quoted(rest)?,
            '`' => match rest[1..].find('`') {
                Some(end) => (ActionToken::String(rest[1..=end].to_owned()), end + 2),
                None => return self.error("unclosed raw string"),
            },
            '\'' => self.character(rest)?,
            '$' => {
                let name = word(&rest[1..]);
                (ActionToken::Variable(format!("${name}")), 1 + name.len())
            }
            '.' if !rest[1..].starts_with(|c: char| c.is_ascii_digit()) => match word(&rest[1..]) {
                "" => (ActionToken::Dot, 1),
                name => (ActionToken::Field(name.to_owned()), 1 + name.len()),
            },
            _ if first.is_ascii_digit() || matches!(first, '+' | '-' | '.') => self.number(rest)?,
            _ if first.is_alphabetic() || first == '_' => {
                let name = word(rest);
                (ActionToken::Identifier(name.to_owned()), name.len())
            }
            other => return self.error(format!("unexpected {other:?} in an action")),
        };
        self.push(token, spaced);
        self.advance(length);
        Ok(())
    }

    fn quoted(&self, rest: &str) -> Result<(ActionToken, usize), TemplateError> {
        let mut text = String::new();
        let mut chars = rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => return Ok((ActionToken::String(text), at + 1)),
                '\n' => break,
                '\\' => match chars.next().and_then(|(_, escaped)| escape(escaped, &mut chars)) {
                    Some(c) => text.push(c),
                    None => return self.error("unknown escape in a string"),
                },
                other => text.push(other),
            }
        }
        self.error("unclosed string")
    }

    fn character(&self, rest: &str) -> Result<(ActionToken, usize), TemplateError> {
        let mut chars = rest.char_indices().skip(1);
        let c = match chars.next() {
            Some((_, '\\')) => chars.next().and_then(|(_, escaped)| escape(escaped, &mut chars)),
            Some((_, c)) if c != '\'' => Some(c),
            _ => None,
        };
        match (c, chars.next()) {
            (Some(c), Some((end, '\''))) => Ok((ActionToken::Int(i64::from(u32::from(c))), end + 1)),
            _ => self.error("bad character constant"),
        }
    }

    fn number(&self, rest: &str) -> Result<(ActionToken, usize), TemplateError> {
        let mut length = 0;
        for (at, c) in rest.char_indices() {
            let after_exponent = at > 0 && matches!(&rest[at - 1..at], "e" | "E") && !rest.starts_with("0x");
            if c.is_ascii_alphanumeric()
                || c == '.'
                || c == '_'
                || (matches!(c, '+' | '-') && (at == 0 || after_exponent))
            {
                length = at + c.len_utf8();
            } else {
                break;
            }
        }
        let text = rest[..length].replace('_', "");
        let (sign, digits) = match text.strip_prefix('-') {
            Some(digits) => (-1, digits),
            None => (1, text.strip_prefix('+').unwrap_or(&text)),
        };
        let radix = |prefix: &str, radix: u32| {
            let digits = digits.strip_prefix(prefix).or_else(|| digits.strip_prefix(&prefix.to_uppercase()))?;
            i64::from_str_radix(digits, radix).ok()
        };
        let octal = || (digits.len() > 1 && digits.starts_with('0')).then(|| i64::from_str_radix(digits, 8).ok())?;
        let int = radix("0x", 16).or_else(|| radix("0b", 2)).or_else(|| radix("0o", 8)).or_else(octal);
        if let Some(int) = int.or_else(|| digits.parse().ok()) {
            return Ok((ActionToken::Int(sign * int), length));
        }
        match text.parse::<f64>() {
            Ok(float) if digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') => {
                Ok((ActionToken::Float(float), length))
            }
            _ => self.error(format!("bad number {text:?}")),
        }
    }
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

/// Whether an action begins with a trim marker.
fn is_trimmed(action: &str) -> bool {
    let mut chars = action.chars();
    chars.next() == Some('-') && chars.next().is_some_and(is_space)
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

fn escape(c: char, chars: &mut impl Iterator<Item = (usize, char)>) -> Option<char> {
    let digits = match c {
        'n' => return Some('\n'),
        't' => return Some('\t'),
        'r' => return Some('\r'),
        'a' => return Some('\u{7}'),
        'b' => return Some('\u{8}'),
        'f' => return Some('\u{c}'),
        'v' => return Some('\u{b}'),
        '\\' | '"' | '\'' => return Some(c),
        'x' => 2,
        'u' => 4,
        'U' => 8,
        _ => return None,
    };
    let text: String = chars.take(digits).map(|(_, c)| c).collect();
    char::from_u32(u32::from_str_radix(&text, 16).ok()?)
}
