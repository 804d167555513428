//! Comments of a document that is replaced by another one: those before it stay there, all others are put above the spec.

/// The new document with the comments of the old one.
pub(super) fn kept(old: &str, new: &str) -> String {
    let lines: Vec<&str> = old.trim_start_matches("---").trim_matches('\n').lines().collect();
    let is_head = |line: &&str| line.trim().is_empty() || line.trim_start().starts_with('#');
    let content = lines.iter().position(|line| !is_head(line)).unwrap_or(lines.len());
    let head = lines[..content].iter().map(|line| line.trim()).filter(|line| !line.is_empty());
    let inside: Vec<&str> = lines[content..].iter().filter_map(|line| comment(line)).collect();
    let mut text: Vec<&str> = head.collect();
    for line in new.lines() {
        if line.starts_with("spec:") {
            text.extend(&inside);
        }
        text.push(line);
    }
    text.join("\n")
}

/// The comment of a line, from its `#`. A `#` in quotes or inside a word is none.
fn comment(line: &str) -> Option<&str> {
    let mut quote = None;
    let mut before = ' ';
    for (at, letter) in line.char_indices() {
        match (quote, letter) {
            (None, '#') if before.is_whitespace() => return Some(line[at..].trim_end()),
            (None, '"' | '\'') if !before.is_alphanumeric() => quote = Some(letter),
            (Some(open), _) if open == letter && before != '\\' => quote = None,
            _ => {}
        }
        before = letter;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{comment, kept};

    #[test]
    fn comments_are_found_outside_of_quotes() {
        for (line, expected) in [
            ("# all", Some("# all")),
            ("a: b # why", Some("# why")),
            ("a: 'x # y' # z ", Some("# z")),
            ("a: b#c", None),
            ("a: \"# no\"", None),
            ("a: it's # yes", Some("# yes")),
        ] {
            assert_eq!(comment(line), expected, "{line}");
        }
    }

    #[test]
    fn comments_keep_their_order() {
        let old = "---\n# first\n\n# second\nkind: A # third\nspec:\n  # fourth\n  a: 1\n";
        assert_eq!(kept(old, "kind: B\nspec:\n  b: 1"), "# first\n# second\nkind: B\n# third\n# fourth\nspec:\n  b: 1");
    }
}
