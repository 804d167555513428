//! A type name means one thing: it is declared in at most two crates.

use std::collections::{BTreeMap, BTreeSet};

use super::super::tree::{SourceFile, Tree, crate_of};
use super::Finding;

const MOST: usize = 2;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut names: BTreeMap<&str, Vec<(&str, usize)>> = BTreeMap::new();
    for source in tree.sources.iter().filter(|s| s.path.contains("src/")) {
        for (name, line) in declared(source) {
            names.entry(name).or_default().push((&source.path, line));
        }
    }
    let mut findings = Vec::new();
    for (name, places) in names {
        let crates: BTreeSet<&str> = places.iter().map(|(path, _)| crate_of(path)).collect();
        if crates.len() > MOST {
            let all: Vec<String> = places.iter().map(|(path, line)| format!("{path}:{line}")).collect();
            let message = format!("{name} is declared in {} crates: {}", crates.len(), all.join(", "));
            findings.push(Finding::new(places[0].0, places[0].1, message));
        }
    }
    findings
}

/// Structs, enums, traits and type aliases with their lines; associated types do not count.
fn declared(source: &SourceFile) -> Vec<(&str, usize)> {
    let mut names = Vec::new();
    let mut body_end = 0;
    for (at, token) in source.tokens.iter().enumerate() {
        if ["impl", "trait"].contains(&token.text.as_str()) && at >= body_end && is_item(source, at) {
            body_end = source.item_end(at);
        }
        let declares = match token.text.as_str() {
            "struct" | "enum" | "trait" => true,
            "type" => at >= body_end,
            _ => false,
        };
        let name = source.word(at + 1);
        if declares && name.starts_with(char::is_uppercase) {
            names.push((name, token.line));
        }
    }
    names
}

/// `impl` also occurs in types (`-> impl Trait`): there an operator or a bracket precedes it.
fn is_item(source: &SourceFile, at: usize) -> bool {
    at == 0 || ["}", ";", "]", ")", "{", "pub", "unsafe"].contains(&source.word(at - 1))
}

#[cfg(test)]
mod tests {
    use super::super::check_files;

    #[test]
    fn a_name_of_three_crates_is_found() {
        let files = [
            (
                "crates/a/src/lib.rs",
                "struct Kept;\nimpl Iterator for Kept { type Item = u8; }\nfn f() -> impl T { type Local = u8; }",
            ),
            ("crates/b/src/lib.rs", "enum Kept {}\nstruct Twice;\nimpl Iterator for X { type Item = u8; }"),
            ("crates/c/src/lib.rs", "type Kept = u8;\nstruct Twice;\ntrait T { type Item; }"),
        ];
        let message = "Kept is declared in 3 crates: \
                       crates/a/src/lib.rs:1, crates/b/src/lib.rs:1, crates/c/src/lib.rs:1";
        assert_eq!(check_files(super::check, &files), [format!("crates/a/src/lib.rs:1 {message}")]);
    }
}
