//! The modules of a folder form no import cycle, at every folder level of every crate.
//! A folder's own file (`mod.rs`, `lib.rs`) is above its children and does not count; re-exports through it do.

use std::collections::{BTreeMap, BTreeSet};

use super::super::modules::{Modules, Reference};
use super::super::tree::{SourceFile, Tree, crate_of};
use super::Finding;

/// Module to the modules it uses, each with the first place.
type Edges<'a> = BTreeMap<&'a str, BTreeMap<&'a str, (&'a str, usize)>>;

/// Modules of one folder that all lead to one another.
struct Cycle<'a> {
    folder: String,
    modules: BTreeSet<&'a str>,
    /// The uses between them: from, to, place.
    uses: Vec<(&'a str, &'a str, (&'a str, usize))>,
}

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    cycles(tree).iter().flat_map(|cycle| findings(tree, cycle)).collect()
}

/// The cycle, then each use that makes it.
fn findings(tree: &Tree, cycle: &Cycle) -> Vec<Finding> {
    let names: Vec<&str> = cycle.modules.iter().copied().collect();
    let mut findings = vec![Finding::new(&cycle.folder, 1, format!("import cycle of {}", names.join(", ")))];
    for (from, to, (file, line)) in &cycle.uses {
        let source = tree.sources.iter().find(|s| s.path == *file);
        let text = source.and_then(|s| s.text.lines().nth(line - 1)).unwrap_or_default();
        findings.push(Finding::new(file, *line, format!("{from} -> {to}: {}", text.trim())));
    }
    findings
}

fn cycles(tree: &Tree) -> Vec<Cycle<'_>> {
    let mut crates: BTreeMap<&str, Vec<&SourceFile>> = BTreeMap::new();
    for source in tree.sources.iter().filter(|s| s.path.contains("/src/")) {
        crates.entry(crate_of(&source.path)).or_default().push(source);
    }
    crates.values().flat_map(|sources| levels(sources)).flat_map(|(folder, edges)| knots(&folder, &edges)).collect()
}

/// Every folder of a crate with the uses between its modules.
fn levels<'a>(sources: &[&'a SourceFile]) -> BTreeMap<String, Edges<'a>> {
    let mut levels: BTreeMap<String, Edges> = BTreeMap::new();
    for Reference { from, to, file, line } in Modules::of(sources).references() {
        let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
        if shared == from.len() || shared == to.len() {
            continue; // One is above the other.
        }
        let base = file.split_once("/src/").map_or("", |(base, _)| base);
        let folder = [&[base, "src"], &from[..shared]].concat().join("/");
        let edges = levels.entry(folder).or_default();
        edges.entry(from[shared]).or_default().entry(to[shared]).or_insert((file, line));
    }
    levels
}

/// The groups of modules that reach one another.
fn knots<'a>(folder: &str, edges: &Edges<'a>) -> Vec<Cycle<'a>> {
    let reach: BTreeMap<&str, BTreeSet<&str>> = edges.keys().map(|from| (*from, reached(edges, from))).collect();
    let mut cycles: Vec<Cycle> = Vec::new();
    for (from, reached) in &reach {
        if !reached.contains(from) || cycles.iter().any(|cycle| cycle.modules.contains(from)) {
            continue;
        }
        let together = |to: &&&'a str| reach.get(**to).is_some_and(|back| back.contains(from));
        let modules: BTreeSet<&str> = reached.iter().filter(together).copied().collect();
        let pairs = modules.iter().flat_map(|from| edges[from].iter().map(move |(to, place)| (*from, *to, *place)));
        let uses = pairs.filter(|(_, to, _)| modules.contains(to)).collect();
        cycles.push(Cycle { folder: folder.to_owned(), modules, uses });
    }
    cycles
}

fn reached<'a>(edges: &Edges<'a>, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        for next in edges.get(module).into_iter().flat_map(|to| to.keys()) {
            if reached.insert(*next) {
                open.push(next);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::super::check_files;

    const ROOT: (&str, &str) = ("crates/x/src/lib.rs", "mod a; mod b; mod c; pub use b::deep::D;");

    #[test]
    fn a_cycle_is_printed_with_the_uses_that_make_it() {
        let files = [
            ROOT,
            ("crates/x/src/a.rs", "\nuse crate::{c::C, b::{D, E}};"),
            ("crates/x/src/b/mod.rs", "mod deep;"),
            ("crates/x/src/b/deep.rs", "use super::super::c::F;"),
            ("crates/x/src/c.rs", "fn f() { super::a::g() }"),
        ];
        assert_eq!(
            check_files(super::check, &files),
            [
                "crates/x/src:1 import cycle of a, b, c",
                "crates/x/src/a.rs:2 a -> b: use crate::{c::C, b::{D, E}};",
                "crates/x/src/a.rs:2 a -> c: use crate::{c::C, b::{D, E}};",
                "crates/x/src/b/deep.rs:1 b -> c: use super::super::c::F;",
                "crates/x/src/c.rs:1 c -> a: fn f() { super::a::g() }",
            ]
        );
    }

    #[test]
    fn re_exports_and_imported_modules_are_followed_below_the_root() {
        let files = [
            ROOT,
            ("crates/x/src/a.rs", "use crate::D;"),
            ("crates/x/src/b/mod.rs", "pub mod deep; pub mod flat; pub use flat::F;"),
            ("crates/x/src/b/deep.rs", "use crate::b;\nfn f() { b::F::new() }"),
            ("crates/x/src/b/flat.rs", "use crate::D;"),
        ];
        assert_eq!(
            check_files(super::check, &files),
            [
                "crates/x/src/b:1 import cycle of deep, flat",
                "crates/x/src/b/deep.rs:2 deep -> flat: fn f() { b::F::new() }",
                "crates/x/src/b/flat.rs:1 flat -> deep: use crate::D;",
            ]
        );
    }

    #[test]
    fn one_direction_and_the_folder_s_own_file_are_fine() {
        let files = [
            ROOT,
            ("crates/x/src/a.rs", "use crate::b::B;"),
            ("crates/x/src/b.rs", "#[cfg(test)] mod tests { use crate::a::A; }"),
            ("crates/x/src/c/mod.rs", "mod d; use d::D;"),
            ("crates/x/src/c/d.rs", "use super::C; use crate::{a::A, b::B};"),
        ];
        assert!(check_files(super::check, &files).is_empty());
    }
}
