//! The top-level modules of a crate form no import cycle.
//! An edge is a path that starts with `crate::NAME`, or with as many `super` as lead there.

use std::collections::{BTreeMap, BTreeSet};

use super::super::tree::{Source, Tree, crate_of};
use super::Finding;

/// Module to the modules it names, each with the first place.
type Edges<'a> = BTreeMap<&'a str, BTreeMap<&'a str, (&'a str, usize)>>;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for source in tree.sources.iter().filter(|s| s.path.contains("/src/")) {
        crates.entry(crate_of(&source.path)).or_default().push(source);
    }
    crates.values().filter_map(|sources| cycle(&edges(sources))).collect()
}

/// The module path of a file inside its crate: `a/b.rs` and `a/b/mod.rs` are `[a, b]`.
fn module_of(path: &str) -> Vec<&str> {
    let inside = path.split_once("/src/").map_or(path, |(_, rest)| rest).trim_end_matches(".rs");
    let mut parts: Vec<&str> = inside.split('/').collect();
    if ["mod", "lib", "main"].contains(parts.last().unwrap_or(&"")) {
        parts.pop();
    }
    parts
}

fn edges<'a>(sources: &[&'a Source]) -> Edges<'a> {
    let modules: BTreeSet<&str> = sources.iter().filter_map(|s| module_of(&s.path).first().copied()).collect();
    let mut edges = Edges::new();
    for source in sources {
        let module = module_of(&source.path);
        let Some(&from) = module.first() else { continue };
        for (name, line) in roots_named(source, module.len()) {
            if name != from && modules.contains(name) {
                edges.entry(from).or_default().entry(name).or_insert((&source.path, line));
            }
        }
    }
    edges
}

/// The names that follow the crate's root in product code; groups in braces are opened.
fn roots_named(source: &Source, depth: usize) -> Vec<(&str, usize)> {
    let mut names = Vec::new();
    for (at, token) in source.product() {
        let after = match token.text.as_str() {
            "crate" => at + 1,
            "super" if at == 0 || source.word(at - 1) != "::" => match supers(source, at) {
                (count, after) if count == depth => after,
                _ => continue,
            },
            _ => continue,
        };
        if source.word(after) != "::" {
            continue;
        }
        if source.word(after + 1) == "{" {
            names.extend(group(source, after + 1));
        } else {
            names.push((source.word(after + 1), token.line));
        }
    }
    names
}

/// How many `super` stand in a row, and the position after the last.
fn supers(source: &Source, at: usize) -> (usize, usize) {
    let mut count = 1;
    while source.matches(at + 2 * count - 1, ":: super") {
        count += 1;
    }
    (count, at + 2 * count - 1)
}

/// The first word of each part of a `{a::b, c}` group.
fn group(source: &Source, open: usize) -> Vec<(&str, usize)> {
    let mut names = Vec::new();
    let mut depth = 0;
    for at in open..=source.item_end(open) {
        match source.word(at) {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        if depth == 1 && ["{", ","].contains(&source.word(at)) {
            names.push((source.word(at + 1), source.tokens[at].line));
        }
    }
    names
}

/// The first cycle, told as a chain of modules at the place of its first import.
fn cycle(edges: &Edges) -> Option<Finding> {
    edges.keys().find_map(|start| {
        let mut trail = vec![*start];
        let found = walk(edges, &mut trail, &mut BTreeSet::new());
        found.then(|| {
            let (file, line) = edges[trail[0]][trail[1]];
            Finding::new(file, line, format!("import cycle {}", trail.join(" -> ")))
        })
    })
}

/// Extends the trail until it comes back to its start.
fn walk<'a>(edges: &Edges<'a>, trail: &mut Vec<&'a str>, seen: &mut BTreeSet<&'a str>) -> bool {
    let here = trail[trail.len() - 1];
    for next in edges.get(here).into_iter().flat_map(|m| m.keys()) {
        trail.push(next);
        if *next == trail[0] || (seen.insert(next) && walk(edges, trail, seen)) {
            return true;
        }
        trail.pop();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::check_files;

    const ROOT: (&str, &str) = ("crates/x/src/lib.rs", "mod a; mod b; mod c;");

    #[test]
    fn a_cycle_is_told_as_a_chain() {
        let files = [
            ROOT,
            ("crates/x/src/a.rs", "\nuse crate::{c::C, b::{D, E}};"),
            ("crates/x/src/b/mod.rs", "mod deep;"),
            ("crates/x/src/b/deep.rs", "use super::super::c;"),
            ("crates/x/src/c.rs", "fn f() { super::a::g() }"),
        ];
        assert_eq!(check_files(super::check, &files), ["crates/x/src/a.rs:2 import cycle a -> b -> c -> a"]);
    }

    #[test]
    fn arrows_one_way_are_fine() {
        let files = [
            ROOT,
            ("crates/x/src/a.rs", "use crate::b;"),
            ("crates/x/src/b.rs", "#[cfg(test)] mod tests { use crate::a; }"),
            ("crates/x/src/c.rs", "use crate::{a, b};"),
        ];
        assert!(check_files(super::check, &files).is_empty());
    }
}
