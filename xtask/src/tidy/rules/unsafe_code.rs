//! Every crate root has `#![forbid(unsafe_code)]`, which no module can override.

use super::super::tree::Tree;
use super::Finding;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let is_crate_root = |p: &str| p.ends_with("/src/lib.rs") || p.ends_with("/src/main.rs") || p.contains("/src/bin/");
    let roots = tree.sources.iter().filter(|s| is_crate_root(&s.path));
    let open = roots.filter(|s| s.product_matches("# ! [ forbid ( unsafe_code ) ]").is_empty());
    open.map(|s| Finding::new(&s.path, 1, "lacks #![forbid(unsafe_code)]")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::check_files;

    #[test]
    fn a_root_without_it_is_found() {
        let files = [("crates/x/src/lib.rs", "mod a;"), ("crates/x/src/main.rs", "#![forbid(unsafe_code)]")];
        assert_eq!(check_files(super::check, &files), ["crates/x/src/lib.rs:1 lacks #![forbid(unsafe_code)]"]);
    }
}
