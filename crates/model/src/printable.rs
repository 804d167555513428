//! Untrusted text (from clients, registries and config authors) made safe for logs and pages: one line, bounded in
//! length, without control characters and bidirectional marks.

use std::borrow::Cow;

/// Replaces invisible characters by escapes, such as a line break by `\n`.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unseen) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            unseen if is_unseen(unseen) => shown.extend(unseen.escape_unicode()),
            seen => shown.push(seen),
        }
    }
    Cow::Owned(shown)
}

/// Control characters, Unicode line separators and bidirectional marks.
fn is_unseen(character: char) -> bool {
    let steers = matches!(character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    character.is_control() || steers
}

/// The first `most_bytes` bytes, cut at a character boundary.
pub fn clipped(text: &str, most_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(most_bytes)]
}

/// The escaped beginning of a text and the number of bytes left out.
pub fn excerpt(text: &str, most_bytes: usize) -> String {
    let beginning = escaped(clipped(text, most_bytes));
    match text.len().saturating_sub(most_bytes) {
        0 => beginning.into_owned(),
        more => format!("{beginning}… ({more} more bytes)"),
    }
}

#[cfg(test)]
mod tests {
    use super::{clipped, escaped, excerpt};

    #[test]
    fn invisible_characters_are_escaped() {
        assert_eq!(escaped("caf\u{e9} 'x' \"y\""), "caf\u{e9} 'x' \"y\"");
        assert_eq!(escaped("a\nb\tc\r\u{1b}[2J\u{202e}\0"), "a\\nb\\tc\\r\\u{1b}[2J\\u{202e}\\u{0}");
    }

    #[test]
    fn text_is_cut_at_character_boundaries() {
        assert_eq!([clipped("é1", 1), clipped("é1", 2), clipped("é1", 9)], ["", "é", "é1"]);
        assert_eq!(excerpt("one\ntwo", 4), "one\\n… (3 more bytes)");
        assert_eq!(excerpt("one", 4), "one");
    }
}
