//! Documents lead to files that exist: paths in backticks, and targets of links. ARCHITECTURE.md may also name a path
//! from a crate (`model/config`) or inside one (`serve/views`), leave out `.rs`, or name a file alone (`session.rs`).

use std::collections::BTreeSet;

use super::super::Finding;
use super::super::tree::{TextFile, Tree, crate_of};

const ARCHITECTURE: &str = "ARCHITECTURE.md";
/// Names paths of other projects.
const SKIPPED: &[&str] = &["STYLE.md"];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let folders: BTreeSet<&str> = tree.paths.iter().filter_map(|path| Some(path.split_once('/')?.0)).collect();
    let documents = tree.texts.iter().filter(|t| t.path.ends_with(".md") && !SKIPPED.contains(&t.path.as_str()));
    let mut findings = Vec::new();
    for document in documents {
        for (at, line) in document.text.lines().enumerate() {
            let missing = |word: &&str| !word.is_empty() && is_missing(tree, &folders, document, word);
            let words = line.split('`').skip(1).step_by(2).filter(missing);
            let links = links(line).filter(|target| !has(tree, &resolved(&document.path, target)));
            let message = |path: &str| Finding::new(&document.path, at + 1, format!("there is no {path}"));
            findings.extend(words.chain(links).map(message));
        }
    }
    findings
}

fn is_missing(tree: &Tree, folders: &BTreeSet<&str>, document: &TextFile, word: &str) -> bool {
    let path = word.trim_end_matches('/');
    if is_from_root(folders, path) {
        return !has(tree, path);
    }
    document.path == ARCHITECTURE && (is_source_path(word) || word.ends_with(".rs")) && !has_source(tree, path)
}

/// Other words in backticks have blanks, colons or placeholders.
fn is_plain(path: &str) -> bool {
    path.chars().all(|c| c.is_ascii_alphanumeric() || "_./-".contains(c))
}

fn is_from_root(folders: &BTreeSet<&str>, path: &str) -> bool {
    path.split_once('/').is_some_and(|(first, _)| folders.contains(first)) && is_plain(path)
}

fn is_source_path(word: &str) -> bool {
    let is_lower = word.chars().all(|c| !c.is_ascii_uppercase());
    word.contains('/') && !word.starts_with('/') && is_plain(word) && is_lower
}

/// Is there a file of this path, or below it?
fn has(tree: &Tree, path: &str) -> bool {
    tree.paths.iter().any(|file| file.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

fn has_source(tree: &Tree, path: &str) -> bool {
    tree.paths.iter().any(|file| {
        let in_crate = file.strip_prefix("crates/").unwrap_or(file);
        let source = in_crate.split_once("/src/").map(|(_, rest)| rest);
        let shortened = source.map(|rest| format!("{}/{rest}", crate_of(file)));
        let name = file.rsplit('/').next().filter(|_| !path.contains('/'));
        let known = [Some(file.as_str()), Some(in_crate), source, shortened.as_deref(), name];
        known.into_iter().flatten().any(|known| {
            known.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest == ".rs" || rest.starts_with('/'))
        })
    })
}

/// Targets of `[text](target)` that are files; anchors are dropped.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.map(|target| target.split('#').next().unwrap_or_default()).filter(|t| !t.is_empty() && !t.contains(':'))
}

/// The path from the root of a link in this document.
fn resolved(document: &str, target: &str) -> String {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in target.trim_end_matches('/').split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::super::check_files;
    use super::check;

    #[test]
    fn a_missing_path_is_found_in_architecture() {
        let text = "See `model/config`, `config/kinds/`, `serve/world`, `tools/dump/main.go`, `model/tests`, `world.rs`.\n\
                    `GET /debug`, `a/B`, `/debug/x` and a/b are no paths, `model/old.rs` is gone, and `config/kind` too, `old.rs`.\n";
        let files = [
            ("ARCHITECTURE.md", text),
            ("crates/model/src/config/kinds/mod.rs", ""),
            ("crates/model/tests/any.rs", ""),
            ("crates/discovery/src/serve/world.rs", ""),
            ("tools/dump/main.go", ""),
        ];
        let gone = ["model/old.rs", "config/kind", "old.rs"];
        assert_eq!(check_files(check, &files), gone.map(|path| format!("ARCHITECTURE.md:2 there is no {path}")));
    }

    #[test]
    fn links_and_paths_from_the_root_are_found_in_all_documents() {
        let text =
            "[a](../README.md#top), [b](b.md), [web](https://x.example/y)\n`docs/c.md`, `other/c.md`, `docs/*.md`\n";
        let files = [("README.md", ""), ("docs/a.md", text)];
        let gone = ["docs/a.md:1 there is no b.md", "docs/a.md:2 there is no docs/c.md"];
        assert_eq!(check_files(check, &files), gone);
    }
}
