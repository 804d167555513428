//! Literal text inside regular expressions, quoted as Go does it: nothing that RE2 takes literally anyway.

/// The text as an expression that matches it and nothing else.
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
    fn only_what_means_something_is_quoted() {
        assert_eq!(escaped("team-a.b/c_d~#"), r"team-a\.b/c_d~#");
        assert_eq!(escaped(r"\.+*?()|[]{}^$"), r"\\\.\+\*\?\(\)\|\[\]\{\}\^\$");
    }
}
