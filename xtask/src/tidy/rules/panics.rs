//! Outside tests there is no `unwrap()`, `todo!` or `unimplemented!`.

use super::super::tree::Tree;
use super::Finding;

const CALLS: &[&str] = &[". unwrap ( )", "todo !", "unimplemented !"];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &tree.sources {
        for call in CALLS {
            for token in source.product_matches(call) {
                findings.push(Finding::new(&source.path, token.line, format!("calls {}", call.replace(' ', ""))));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::check_files;

    #[test]
    fn unwrap_is_found_outside_tests_only() {
        let files = [
            ("crates/x/src/a.rs", "fn f() {\n g().unwrap();\n todo!() }\n#[cfg(test)]\nfn h() { g().unwrap() }"),
            ("crates/x/tests/a.rs", "fn f() { g().unwrap(); }"),
        ];
        assert_eq!(
            check_files(super::check, &files),
            ["crates/x/src/a.rs:2 calls .unwrap()", "crates/x/src/a.rs:3 calls todo!"]
        );
    }
}
