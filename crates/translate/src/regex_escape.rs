//! Escapes literal text for RE2, as Go's `regexp.QuoteMeta` does.

/// A regular expression that matches exactly this text.
pub(crate) fn escaped(text: &str) -> String {
    let mut expression = String::with_capacity(text.len());
    for letter in text.chars() {
        if r"\.+*?()|[]{}^$".contains(letter) {
            expression.push('\\');
        }
        expression.push(letter);
    }
    expression
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn only_metacharacters_are_escaped() {
        assert_eq!(escaped("team-a.b/c_d~#"), r"team-a\.b/c_d~#");
        assert_eq!(escaped(r"\.+*?()|[]{}^$"), r"\\\.\+\*\?\(\)\|\[\]\{\}\^\$");
    }
}
