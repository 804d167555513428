//! Words and phrases that comments, string literals and documents do not use: they make a reader guess.
//! STYLE.md says what to write instead.

use super::super::tree::{TextFile, Tree};
use super::Finding;

/// Each phrase is matched word by word, in any case of letters.
const BANNED: &[&str] = &[
    "told",
    "tell",
    "tells",
    "stands",
    "standing",
    "lies",
    "beside",
    "besides",
    "anew",
    "nobody",
    "whoever",
    "somebody",
    "begun again",
    "none of those",
    "what is missing",
    "of its own",
    "brings",
    "is of use",
    "by chance",
    "at all",
    "no more",
    "set aside",
    "writes down",
    "gives back",
    "takes back",
    "goes by",
];

/// "no more than" is a bound, not "no longer".
const EXCEPTIONS: &[&str] = &["no more than"];

/// Texts that quote the phrases, are not ours, or are generated from strings that are checked.
const SKIPPED: &[&str] = &["xtask/src/tidy/rules/words.rs", "STYLE.md", "LICENSE", "Cargo.lock", "docs/reference/"];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in tree.sources.iter().filter(|s| !is_skipped(&s.path)) {
        let lines = source.prose.iter().flat_map(|p| numbered(&p.text, p.line));
        findings.extend(in_lines(&source.path, lines));
    }
    for text in tree.texts.iter().filter(|t| is_document(t)) {
        findings.extend(in_lines(&text.path, numbered(&text.text, 1)));
    }
    findings
}

fn is_document(text: &TextFile) -> bool {
    let generated = text.path.ends_with(".rs") || text.path.ends_with("go.sum");
    !generated && !is_skipped(&text.path)
}

fn is_skipped(path: &str) -> bool {
    SKIPPED.iter().any(|skipped| path.starts_with(skipped))
}

fn numbered(text: &str, first: usize) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(move |(at, line)| (first + at, line))
}

/// Phrases may continue on the next line.
fn in_lines<'a>(path: &str, lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<Finding> {
    let words: Vec<(usize, String)> = lines.flat_map(|(line, text)| words(text).map(move |w| (line, w))).collect();
    let matches = |at: usize, phrase: &str| {
        let mut rest = words[at..].iter();
        phrase.split(' ').all(|wanted| rest.next().is_some_and(|(_, word)| word == wanted))
    };
    let mut findings = Vec::new();
    for (at, (line, _)) in words.iter().enumerate() {
        if EXCEPTIONS.iter().any(|phrase| matches(at, phrase)) {
            continue;
        }
        for phrase in BANNED.iter().filter(|phrase| matches(at, phrase)) {
            findings.push(Finding::new(path, *line, format!("says {phrase:?}")));
        }
    }
    findings
}

/// The words of a line in lower case; comment marks and most punctuation are dropped.
fn words(line: &str) -> impl Iterator<Item = String> {
    let parts = line.split(|c: char| !c.is_alphanumeric() && !"'_".contains(c));
    parts.filter(|w| !w.is_empty()).map(str::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::super::check_files;

    #[test]
    fn a_banned_word_is_found_in_comments_strings_and_documents() {
        let files = [
            ("crates/x/src/a.rs", "//! Nobody knows.\nfn told() { f(\"no\nmore\"); g(\"no more than 3\") }"),
            ("README.md", "It is done at\nall times, outstanding, and set\naside.\n"),
        ];
        assert_eq!(
            check_files(super::check, &files),
            [
                "crates/x/src/a.rs:1 says \"nobody\"",
                "crates/x/src/a.rs:2 says \"no more\"",
                "README.md:1 says \"at all\"",
                "README.md:2 says \"set aside\"",
            ]
        );
    }
}
