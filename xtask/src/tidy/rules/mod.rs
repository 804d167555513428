//! The table of rules. A rule is one small file and one row here.

pub(crate) mod cycles;
mod declared;
mod imports;
mod named;
mod opening;
mod panics;
mod paths;
mod pure;
mod size;
mod snapshot;
pub(crate) mod type_names;
mod unsafe_code;
pub(crate) mod words;

use super::Finding;
use super::tree::Tree;

pub(crate) struct Rule {
    pub name: &'static str,
    pub check: fn(&Tree) -> Vec<Finding>,
}

pub(crate) const TABLE: &[Rule] = &[
    Rule { name: "pure crates do no I/O", check: pure::check },
    Rule { name: "translate sees views and plans only", check: snapshot::check },
    Rule { name: "crates import only what the design allows", check: imports::check },
    Rule { name: "no import cycle between modules of a folder", check: cycles::check },
    Rule { name: "files and functions stay short", check: size::check },
    Rule { name: "a file opens with what it is for", check: opening::check },
    Rule { name: "every module and test file is declared", check: declared::check },
    Rule { name: "unsafe code is forbidden", check: unsafe_code::check },
    Rule { name: "no panic is an answer", check: panics::check },
    Rule { name: "no paths of one machine", check: paths::check },
    Rule { name: "ARCHITECTURE.md names what is there", check: named::check },
    Rule { name: "plain words", check: words::check },
    Rule { name: "a type name is declared in at most two crates", check: type_names::check },
];

/// The findings of a rule over files given as (path, text), as "path:line message".
#[cfg(test)]
fn check_files(check: fn(&Tree) -> Vec<Finding>, files: &[(&str, &str)]) -> Vec<String> {
    let tree = Tree::of(files.iter().map(|(p, t)| (p.to_string(), t.to_string())).collect());
    check(&tree).iter().map(|f| format!("{}:{} {}", f.file, f.line, f.message)).collect()
}
