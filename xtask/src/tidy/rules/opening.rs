//! Every Rust file begins with a `//!` line that says what it is for.

use super::super::tree::Tree;
use super::Finding;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let silent = tree.sources.iter().filter(|s| !s.text.starts_with("//! "));
    silent.map(|s| Finding::new(&s.path, 1, "does not open with a //! line")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::check_files;

    #[test]
    fn a_silent_file_is_found() {
        let files = [("crates/x/src/a.rs", "use y;\n"), ("crates/x/src/b.rs", "//! Says it.\n")];
        assert_eq!(check_files(super::check, &files), ["crates/x/src/a.rs:1 does not open with a //! line"]);
    }
}
