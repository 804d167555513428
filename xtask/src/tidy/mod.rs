//! The project's invariants as a check: each rule reads the source tree and returns findings.
//! `rules/mod.rs` has the table of rules; `tree.rs`, `lexer.rs` and `modules.rs` prepare what they read.

pub(crate) mod lexer;
mod modules;
mod rules;
mod tree;

use std::path::Path;

use anyhow::{Result, bail};
use tree::Tree;

/// One broken rule at one place.
#[derive(Debug, PartialEq)]
pub(crate) struct Finding {
    pub file: String,
    pub line: usize,
    pub message: String,
}

impl Finding {
    fn new(file: &str, line: usize, message: impl Into<String>) -> Self {
        Finding { file: file.to_owned(), line, message: message.into() }
    }
}

/// Prints every finding; an error when there is one.
pub(crate) fn run(root: &Path) -> Result<()> {
    let tree = Tree::read(root)?;
    let findings = findings(&tree);
    for line in &findings {
        eprintln!("{line}");
    }
    if !findings.is_empty() {
        bail!("{} places break a rule", findings.len());
    }
    println!("tidy: {} rules hold over {} files", rules::TABLE.len(), tree.sources.len());
    Ok(())
}

fn findings(tree: &Tree) -> Vec<String> {
    let mut lines = Vec::new();
    for rule in rules::TABLE {
        for f in (rule.check)(tree) {
            lines.push(format!("{}:{}: [{}] {}", f.file, f.line, rule.name, f.message));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_project_is_tidy() {
        let tree = Tree::read(&crate::workspace::root()).unwrap();
        let findings = findings(&tree);
        assert!(findings.is_empty(), "\n{}", findings.join("\n"));
    }
}
