//! `model`, `scope`, `translate` and `inject` touch no runtime, disk, environment, socket or clock,
//! and keep no state between calls.

use super::super::tree::{SourceFile, Tree};
use super::Finding;

const CRATES: &[&str] = &["model", "scope", "translate", "inject"];
const NAMES: &[&str] = &[
    "tokio",
    "std :: fs",
    "std :: env",
    "std :: process",
    "std :: thread",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "UnixStream",
    "Instant",
    "SystemTime",
    "static mut",
    "thread_local !",
];
/// A static of one of these types changes while the program runs. `LazyLock` alone does not.
const CELLS: &[&str] = &["Mutex", "RwLock", "OnceLock", "OnceCell", "RefCell", "Cell", "ArcSwap", "DashMap"];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    CRATES.iter().flat_map(|name| tree.sources_of(name)).flat_map(file).collect()
}

fn file(source: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in NAMES {
        for token in source.product_matches(name) {
            findings.push(Finding::new(&source.path, token.line, format!("names {}", name.replace(' ', ""))));
        }
    }
    for (at, token) in source.product() {
        if token.text == "static" && static_type(source, at).any(is_cell) {
            findings.push(Finding::new(&source.path, token.line, "has a static that changes"));
        }
    }
    findings
}

/// The words between the name of a static and its value.
fn static_type(source: &SourceFile, at: usize) -> impl Iterator<Item = &str> {
    source.tokens[at..].iter().map(|t| t.text.as_str()).take_while(|t| !["=", ";", "{"].contains(t))
}

fn is_cell(word: &str) -> bool {
    CELLS.contains(&word) || word.starts_with("Atomic")
}

#[cfg(test)]
mod tests {
    use super::super::check_files;

    fn check(text: &str) -> Vec<String> {
        check_files(super::check, &[("crates/model/src/lib.rs", text)])
    }

    #[test]
    fn clocks_disks_and_changing_statics_are_found() {
        assert_eq!(check("use std::fs;\nfn f() { Instant::now(); }").len(), 2);
        assert_eq!(check("static N: AtomicU64 = AtomicU64::new(0);").len(), 1);
        assert_eq!(check("static N: LazyLock<Mutex<u8>> = x();").len(), 1);
    }

    #[test]
    fn prose_tests_and_constants_are_not() {
        assert!(check("// tokio\nstatic A: LazyLock<Regex> = x();").is_empty());
        assert!(check("fn f(x: &'static str, y: Cell<u8>) {}").is_empty());
        assert!(check("#[cfg(test)]\nmod tests { use std::fs; }").is_empty());
        assert!(check_files(super::check, &[("crates/sources/src/lib.rs", "use std::fs;")]).is_empty());
    }
}
