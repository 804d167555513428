//! Regular expressions in RE2 syntax, which Envoy uses. They are checked with the `regex` crate under a size limit, after
//! rewriting syntax that only RE2 has.

use regex::bytes::{Regex, RegexBuilder};

/// Like upstream, limits the length of the text instead of RE2's program size.
pub(super) const LONGEST: usize = 1024;
/// Memory limit of a compiled expression, against `((a{1000}){1000})`.
const SIZE_LIMIT: usize = 4 << 20;
/// The nesting limit of RE2.
const NEST_LIMIT: u32 = 1000;

/// Why an expression is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PatternError {
    #[error("regex is too large, max length allowed is 1024")]
    TooLong,
    #[error("expression too large")]
    TooLarge,
    /// One line.
    #[error("error parsing regexp: {0}")]
    Syntax(String),
}

/// Compiles an expression.
pub(super) fn compile(pattern: &str) -> Result<Regex, PatternError> {
    if pattern.len() > LONGEST {
        return Err(PatternError::TooLong);
    }
    build(pattern).map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => PatternError::TooLarge,
        other => {
            let text = other.to_string();
            let reason = text.lines().rev().find_map(|line| line.trim().strip_prefix("error: "));
            PatternError::Syntax(reason.unwrap_or("syntax error").to_owned())
        }
    })
}

fn build(pattern: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(&translated(pattern)).size_limit(SIZE_LIMIT).nest_limit(NEST_LIMIT).octal(true).build()
}

/// Rewrites what differs in RE2: a brace without repetition and a bracket inside a class are literals, `\Q…\E` quotes,
/// and `\w`, `\d` and `\s` are ASCII.
fn translated(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        rest = match c {
            '\\' => escape(after, PatternContext::Outside, &mut out),
            '[' => class(after, &mut out),
            '{' => brace(after, &mut out),
            '}' => {
                out.push_str(r"\}");
                after
            }
            _ => {
                out.push(c);
                after
            }
        };
    }
    out
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PatternContext {
    Outside,
    InClass,
}

/// Copies an escape sequence.
fn escape<'a>(rest: &'a str, place: PatternContext, out: &mut String) -> &'a str {
    let Some(c) = rest.chars().next() else {
        out.push('\\');
        return rest;
    };
    let after = &rest[c.len_utf8()..];
    let ascii = match c {
        'd' => Some("0-9"),
        'w' => Some("0-9A-Za-z_"),
        's' => Some(r"\t\n\f\r "),
        _ => None,
    };
    match (c, ascii, place) {
        ('Q', _, PatternContext::Outside) => return quoted(after, out),
        (_, Some(set), PatternContext::InClass) => out.push_str(set),
        (_, Some(set), PatternContext::Outside) => {
            out.push('[');
            out.push_str(set);
            out.push(']');
        }
        // Literals in RE2, word boundaries in the `regex` crate.
        ('<' | '>', _, _) => out.push(c),
        ('p' | 'P' | 'x', _, _) if after.starts_with('{') => {
            let end = after.find('}').map_or(after.len(), |end| end + 1);
            out.push('\\');
            out.push(c);
            out.push_str(&after[..end]);
            return &after[end..];
        }
        _ => {
            out.push('\\');
            out.push(c);
        }
    }
    after
}

/// Literal text up to `\E` or the end.
fn quoted<'a>(rest: &'a str, out: &mut String) -> &'a str {
    let (literal, after) = rest.split_once(r"\E").unwrap_or((rest, ""));
    out.push_str(&regex::escape(literal));
    after
}

/// A character class, after its `[` up to its `]`.
fn class<'a>(rest: &'a str, out: &mut String) -> &'a str {
    out.push('[');
    let mut rest = rest;
    if let Some(after) = rest.strip_prefix('^') {
        out.push('^');
        rest = after;
    }
    let mut first = true;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        rest = match c {
            ']' if !first => {
                out.push(']');
                return after;
            }
            '\\' => escape(after, PatternContext::InClass, out),
            '[' if after.starts_with(':') && after.contains(":]") => {
                let end = after.find(":]").map_or(after.len(), |end| end + 2);
                out.push('[');
                out.push_str(&after[..end]);
                &after[end..]
            }
            // Literals in RE2, nested classes and set operations in the `regex` crate.
            '[' | ']' | '&' | '~' => {
                out.push('\\');
                out.push(c);
                after
            }
            '-' if after.starts_with('-') => {
                out.push_str(r"\-");
                after
            }
            _ => {
                out.push(c);
                after
            }
        };
        first = false;
    }
    rest
}

/// Keeps a repetition such as `{2,5}`; any other brace is a literal.
fn brace<'a>(rest: &'a str, out: &mut String) -> &'a str {
    let inside = rest.split_once('}').map(|(inside, _)| inside);
    let is_count = inside.is_some_and(|inside| {
        let (least, most) = inside.split_once(',').unwrap_or((inside, ""));
        let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        !least.is_empty() && digits(least) && digits(most)
    });
    match inside.filter(|_| is_count) {
        Some(inside) => {
            out.push('{');
            out.push_str(inside);
            out.push('}');
            &rest[inside.len() + 1..]
        }
        None => {
            out.push_str(r"\{");
            rest
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, proptest};

    use super::{PatternError, build, compile};

    #[test]
    fn re2_syntax_is_accepted() {
        for pattern in [
            ".*",
            "^/api/v[0-9]+$",
            "/items/{id}",
            "a{2,5}",
            "a{2}b{3,}",
            r"\Qa.b[\E.*",
            "[[a-z]+",
            "[a&&b]",
            r"[\w.-]+",
            r"\d{100}",
            r"(?i)foo",
            "(?P<name>x)",
            r"\pL\p{Greek}\x{10FFFF}",
            "[[:alpha:]_]",
            "[]a]",
            "[^]a]",
            r"\012",
            "}",
            "x{,3}",
            r"\<b\>",
            r"[a\]b]",
            r"\w{1000}",
            "[--/]",
            "(a|b|)",
        ] {
            assert!(compile(pattern).is_ok(), "{pattern}");
        }
    }

    #[test]
    fn invalid_re2_syntax_is_rejected() {
        for pattern in ["(", "a)", "[a", r"\8", "(?=a)", "(?<!a)", "*a", r"[b-a]", "\\", r"a(?Qb)"] {
            assert!(compile(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn huge_expressions_are_rejected() {
        assert_eq!(compile("((a{1000}){1000}){1000}").err(), Some(PatternError::TooLarge));
        assert_eq!(compile(&"a".repeat(1025)).err(), Some(PatternError::TooLong));
        let nested = |depth| format!("{}a{}", "(".repeat(depth), ")".repeat(depth));
        assert!(compile(&nested(500)).is_ok());
        assert!(build(&nested(100_000)).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_is_judged(pattern in ".{0,60}", marks in r"[\\\[\]{}(),0-9a-zQEpx:^&~|*+?-]{0,40}") {
            let _ = compile(&pattern);
            let _ = compile(&marks);
        }
    }
}
