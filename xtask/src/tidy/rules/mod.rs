//! The table of rules. A rule is one small file and one row here.

pub(crate) mod cycles;
mod declared;
mod doc_paths;
mod imports;
mod opening;
mod panics;
mod paths;
mod pure;
mod size;
mod snapshot;
mod type_names;
mod unsafe_code;
pub(crate) mod words;

use super::Finding;
use super::tree::Tree;

pub(crate) struct TidyRule {
    pub name: &'static str,
    pub check: fn(&Tree) -> Vec<Finding>,
}

pub(crate) const TABLE: &[TidyRule] = &[
    TidyRule { name: "pure crates do no I/O", check: pure::check },
    TidyRule { name: "translate sees views and plans only", check: snapshot::check },
    TidyRule { name: "crates import only what the design allows", check: imports::check },
    TidyRule { name: "no import cycle between modules of a folder", check: cycles::check },
    TidyRule { name: "files and functions stay short", check: size::check },
    TidyRule { name: "a file begins with what it is for", check: opening::check },
    TidyRule { name: "every module and test file is declared", check: declared::check },
    TidyRule { name: "unsafe code is forbidden", check: unsafe_code::check },
    TidyRule { name: "no unwrap, todo or unimplemented outside tests", check: panics::check },
    TidyRule { name: "no paths of one machine", check: paths::check },
    TidyRule { name: "documents name files that exist", check: doc_paths::check },
    TidyRule { name: "plain words", check: words::check },
    TidyRule { name: "a type name is declared in at most two crates", check: type_names::check },
];

/// The findings of a rule over files given as (path, text), as "path:line message".
#[cfg(test)]
fn check_files(check: fn(&Tree) -> Vec<Finding>, files: &[(&str, &str)]) -> Vec<String> {
    let tree = Tree::of(files.iter().map(|(p, t)| (p.to_string(), t.to_string())).collect());
    check(&tree).iter().map(|f| format!("{}:{} {}", f.file, f.line, f.message)).collect()
}
