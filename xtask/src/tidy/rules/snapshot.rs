//! `translate` never names `Snapshot`, and its `render` never names `View`: each step reads only the output of the step
//! before it.

use super::super::tree::Tree;
use super::Finding;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in tree.sources_of("translate") {
        let mut forbidden = vec!["Snapshot"];
        if source.path.starts_with("crates/translate/src/render") {
            forbidden.push("View");
        }
        for name in forbidden {
            for token in source.product_matches(name) {
                findings.push(Finding::new(&source.path, token.line, format!("names {name}")));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::check_files;

    #[test]
    fn looking_back_is_found() {
        let files = [
            ("crates/translate/src/lib.rs", "fn f(v: &View) {}\nfn g(s: &Snapshot) {}"),
            ("crates/translate/src/render/cluster.rs", "use scope::View;"),
        ];
        assert_eq!(
            check_files(super::check, &files),
            ["crates/translate/src/lib.rs:2 names Snapshot", "crates/translate/src/render/cluster.rs:1 names View"]
        );
    }
}
