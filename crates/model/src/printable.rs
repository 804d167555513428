//! Texts of others (clients, registries, authors of objects) as they may be shown: on one line, without characters
//! that steer a terminal or change the order of what is read, and no longer than they are worth.

use std::borrow::Cow;

/// The text with every character that is not seen as such written as an escape: a line break as `\n`.
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

/// Control characters, other ends of lines, and marks that change the direction of writing.
fn is_unseen(character: char) -> bool {
    let steers = matches!(character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    character.is_control() || steers
}

/// The beginning of a text, of at most this many bytes.
pub fn clipped(text: &str, most_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(most_bytes)]
}

/// The beginning of a text, on one line, and how much more there was.
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
    fn unseen_characters_are_shown_as_escapes() {
        assert_eq!(escaped("caf\u{e9} 'x' \"y\""), "caf\u{e9} 'x' \"y\"");
        assert_eq!(escaped("a\nb\tc\r\u{1b}[2J\u{202e}\0"), "a\\nb\\tc\\r\\u{1b}[2J\\u{202e}\\u{0}");
    }

    #[test]
    fn characters_are_not_cut_in_halves() {
        assert_eq!([clipped("é1", 1), clipped("é1", 2), clipped("é1", 9)], ["", "é", "é1"]);
        assert_eq!(excerpt("one\ntwo", 4), "one\\n… (3 more bytes)");
        assert_eq!(excerpt("one", 4), "one");
    }
}
