//! ARCHITECTURE.md leads a newcomer to the right file: every path that it names is there. A path may begin at the root,
//! at a crate (`model/config`) or inside one (`serve/world`), and leave out `.rs`.

use super::super::Finding;
use super::super::tree::{Tree, crate_of};

const DOCUMENT: &str = "ARCHITECTURE.md";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(document) = tree.texts.iter().find(|text| text.path == DOCUMENT) else { return Vec::new() };
    let lines = document.text.lines().enumerate();
    let named = lines.flat_map(|(at, line)| line.split('`').skip(1).step_by(2).map(move |word| (at + 1, word)));
    named
        .filter(|(_, word)| is_path(word) && !exists(tree, word.trim_end_matches('/')))
        .map(|(line, word)| Finding::new(DOCUMENT, line, format!("there is no {word}")))
        .collect()
}

/// Names of other things have blanks, colons or capital letters.
fn is_path(word: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_./-".contains(c);
    word.contains('/') && !word.starts_with('/') && word.chars().all(fits)
}

fn exists(tree: &Tree, path: &str) -> bool {
    tree.paths.iter().any(|file| {
        let in_crate = file.strip_prefix("crates/").unwrap_or(file);
        let source = in_crate.split_once("/src/").map(|(_, rest)| rest);
        let shortened = source.map(|rest| format!("{}/{rest}", crate_of(file)));
        [Some(file.as_str()), Some(in_crate), source, shortened.as_deref()].into_iter().flatten().any(|known| {
            known.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest == ".rs" || rest.starts_with('/'))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::check_files;
    use super::check;

    #[test]
    fn a_path_that_is_not_there_is_told() {
        let text = "See `model/config`, `config/kinds/`, `serve/world`, `tools/dump/main.go`, `model/tests`.\n\
                    `GET /debug`, `a/B`, `/debug/x` and a/b are no paths, `model/old.rs` is gone, and `config/kind` too.\n";
        let files = [
            ("ARCHITECTURE.md", text),
            ("crates/model/src/config/kinds/mod.rs", ""),
            ("crates/model/tests/any.rs", ""),
            ("crates/discovery/src/serve/world.rs", ""),
            ("tools/dump/main.go", ""),
        ];
        let found = check_files(check, &files);
        assert_eq!(found, ["ARCHITECTURE.md:2 there is no model/old.rs", "ARCHITECTURE.md:2 there is no config/kind"]);
    }
}
