//! Splits Rust text into code tokens and prose (comments and string literals), both with their lines, so that rules
//! on code ignore prose and the other way round. Not a parser.

/// A word (identifier, keyword, number, lifetime) or one punctuation character; `::` is one token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    pub text: String,
    pub line: usize,
}

/// One comment or string literal as written, with the line on which it begins.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Prose {
    pub text: String,
    pub line: usize,
    /// Position of the first byte.
    pub start: usize,
}

/// The tokens of a Rust file, and its prose.
pub(crate) fn split(text: &str) -> (Vec<Token>, Vec<Prose>) {
    let mut lexer = Lexer { length: text.len(), rest: text, line: 1, tokens: Vec::new(), prose: Vec::new() };
    while lexer.step() {}
    (lexer.tokens, lexer.prose)
}

struct Lexer<'a> {
    length: usize,
    rest: &'a str,
    line: usize,
    tokens: Vec<Token>,
    prose: Vec<Prose>,
}

impl Lexer<'_> {
    fn step(&mut self) -> bool {
        let Some(c) = self.rest.chars().next() else { return false };
        if self.rest.starts_with("//") {
            self.prose(self.rest.find('\n').unwrap_or(self.rest.len()));
        } else if self.rest.starts_with("/*") {
            self.prose(block_comment(self.rest));
        } else if let Some(length) = raw_string(self.rest) {
            self.prose(length);
        } else if c == '"' || self.rest.starts_with("b\"") || self.rest.starts_with("c\"") {
            let open = self.rest.find('"').unwrap_or(0) + 1;
            self.prose(open + quoted(&self.rest[open..], '"'));
        } else if c == '\'' {
            match character(self.rest) {
                Some(length) => self.skip(length),
                None => self.take(1 + word(&self.rest[1..])),
            }
        } else if c.is_alphanumeric() || c == '_' {
            self.take(word(self.rest));
        } else if self.rest.starts_with("::") {
            self.take(2);
        } else if c.is_whitespace() {
            self.skip(c.len_utf8());
        } else {
            self.take(c.len_utf8());
        }
        true
    }

    fn take(&mut self, length: usize) {
        self.tokens.push(Token { text: self.rest[..length].to_owned(), line: self.line });
        self.skip(length);
    }

    fn prose(&mut self, length: usize) {
        let start = self.length - self.rest.len();
        self.prose.push(Prose { text: self.rest[..length].to_owned(), line: self.line, start });
        self.skip(length);
    }

    fn skip(&mut self, length: usize) {
        let (gone, rest) = self.rest.split_at(length);
        self.line += gone.matches('\n').count();
        self.rest = rest;
    }
}

/// Length of a comment that starts here; block comments nest.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest.starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// Length of a raw string that starts here, if one does.
fn raw_string(text: &str) -> Option<usize> {
    let body = ["r", "br", "cr"].iter().find_map(|p| text.strip_prefix(p))?;
    let hashes = body.len() - body.trim_start_matches('#').len();
    let body = body[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let prefix = text.len() - body.len();
    Some(body.find(&end).map_or(text.len(), |at| prefix + at + end.len()))
}

/// Length up to and with the closing quote, after the opening one.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Length of a character literal; none for a lifetime, which has no closing quote.
fn character(text: &str) -> Option<usize> {
    let mut chars = text.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), _) => Some(1 + quoted(&text[1..], '\'')),
        (Some(_), Some((at, '\''))) => Some(at + 1),
        _ => None,
    }
}

/// Length of the identifier or number that starts here.
fn word(text: &str) -> usize {
    text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> String {
        split(text).0.iter().map(|t| t.text.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn prose_is_separated_from_code() {
        assert_eq!(words("a /* x /* y */ z */ b // c\nd"), "a b d");
        let (_, prose) = split("a // b\n\"c\"");
        assert_eq!(prose.iter().map(|p| (p.line, p.text.as_str())).collect::<Vec<_>>(), [(1, "// b"), (2, "\"c\"")]);
        assert_eq!(words(r##"f("x \" y", b"z", r#"a " b"#) "##), "f ( , , )");
    }

    #[test]
    fn characters_are_distinguished_from_lifetimes() {
        assert_eq!(words(r"'{' '\'' '\u{7b}' x"), "x");
        assert_eq!(words("fn f<'a>(x: &'a str)"), "fn f < 'a > ( x : & 'a str )");
    }

    #[test]
    fn lines_are_counted_through_strings() {
        let (found, _) = split("a\n\"x\ny\"\n::b");
        assert_eq!(found.iter().map(|t| t.line).collect::<Vec<_>>(), [1, 4, 4]);
    }
}
