//! No file over 800 lines, no function over 80, tests included.

use super::super::tree::{SourceFile, Tree};
use super::Finding;

const FILE_LINES: usize = 800;
const FUNCTION_LINES: usize = 80;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    tree.sources.iter().flat_map(|s| file(s).into_iter().chain(functions(s))).collect()
}

fn file(source: &SourceFile) -> Option<Finding> {
    let lines = source.text.lines().count();
    (lines > FILE_LINES).then(|| Finding::new(&source.path, FILE_LINES + 1, format!("the file has {lines} lines")))
}

fn functions(source: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, token) in source.tokens.iter().enumerate() {
        let name = source.word(at + 1);
        if token.text != "fn" || name == "(" {
            continue;
        }
        let lines = source.tokens[source.item_end(at)].line - token.line + 1;
        if lines > FUNCTION_LINES {
            findings.push(Finding::new(&source.path, token.line, format!("fn {name} has {lines} lines")));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::check_files;

    fn check(text: &str) -> Vec<String> {
        check_files(super::check, &[("crates/x/src/a.rs", text)])
    }

    #[test]
    fn long_things_are_found() {
        let body = "x();\n".repeat(79);
        assert!(check(&format!("fn short(f: fn(u8)) {{\n{}}}", "x();\n".repeat(78))).is_empty());
        assert_eq!(check(&format!("\nfn long() {{\n{body}}}")), ["crates/x/src/a.rs:2 fn long has 81 lines"]);
        assert_eq!(check(&"//\n".repeat(801)), ["crates/x/src/a.rs:801 the file has 801 lines"]);
    }
}
