//! Every Rust file is part of the build: cargo finds roots by itself, all others need a `mod`. A test file without one
//! would never run.

use std::collections::BTreeSet;

use super::super::tree::{Tree, is_root, module_files};
use super::Finding;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut declared: BTreeSet<String> = BTreeSet::new();
    for source in &tree.sources {
        for at in 0..source.tokens.len() {
            if source.word(at) == "mod" && source.word(at + 2) == ";" {
                declared.extend(module_files(&source.path, source.word(at + 1)));
            }
        }
    }
    let lost = tree.sources.iter().filter(|s| !is_root(&s.path) && !declared.contains(&s.path));
    lost.map(|s| Finding::new(&s.path, 1, "no module declares this file")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::check_files;

    #[test]
    fn an_undeclared_file_is_found() {
        let files = [
            ("crates/x/src/lib.rs", "mod a;\n#[cfg(test)]\nmod tests;"),
            ("crates/x/src/a.rs", "mod b;"),
            ("crates/x/src/a/b.rs", ""),
            ("crates/x/src/tests.rs", ""),
            ("crates/x/src/lost.rs", ""),
            ("crates/x/tests/whole.rs", "mod part;"),
            ("crates/x/tests/part/mod.rs", ""),
            ("crates/x/tests/other/mod.rs", ""),
        ];
        assert_eq!(
            check_files(super::check, &files),
            [
                "crates/x/src/lost.rs:1 no module declares this file",
                "crates/x/tests/other/mod.rs:1 no module declares this file"
            ]
        );
    }
}
