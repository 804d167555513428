//! Which module of a crate refers to which: paths in code and `use` items, resolved to the module that declares the
//! item. Re-exports are followed. Glob imports count for the module that they name.

use std::collections::BTreeMap;

use super::tree::SourceFile;

/// How many re-exports a path may pass through; more is a loop.
const MOST_HOPS: usize = 16;

pub(crate) type ModulePath<'a> = Vec<&'a str>;

/// The modules of one crate by path; the root is the empty path.
pub(crate) struct Modules<'a> {
    by_path: BTreeMap<ModulePath<'a>, Module<'a>>,
}

struct Module<'a> {
    source: &'a SourceFile,
    paths: Vec<Path<'a>>,
    /// Names that `use` items bind, with the path as written.
    bindings: BTreeMap<&'a str, Vec<&'a str>>,
}

/// One path in the code of a module.
struct Path<'a> {
    segments: Vec<&'a str>,
    /// The name that a `use` item binds.
    binds: Option<&'a str>,
    line: usize,
}

/// A place where one module names an item of another.
#[derive(Clone, Debug)]
pub(crate) struct Reference<'a> {
    pub from: ModulePath<'a>,
    pub to: ModulePath<'a>,
    pub file: &'a str,
    pub line: usize,
}

impl<'a> Modules<'a> {
    /// The modules below `src` of one crate. A `main.rs` next to a `lib.rs` is another crate and left out.
    pub(crate) fn of(sources: &[&'a SourceFile]) -> Modules<'a> {
        let has_library = sources.iter().any(|s| s.path.ends_with("src/lib.rs"));
        let own = sources.iter().filter(|s| !(has_library && s.path.ends_with("src/main.rs")));
        Modules { by_path: own.map(|s| (module_of(&s.path), Module::new(s))).collect() }
    }

    pub(crate) fn references(&self) -> Vec<Reference<'a>> {
        let mut references = Vec::new();
        for (from, module) in &self.by_path {
            for path in &module.paths {
                let target = self.absolute(from, &path.segments).and_then(|path| self.declaring(path, MOST_HOPS));
                if let Some(to) = target.filter(|to| to != from) {
                    let (file, line) = (module.source.path.as_str(), path.line);
                    references.push(Reference { from: from.clone(), to, file, line });
                }
            }
        }
        references
    }

    /// The path from the root of the crate; none for paths into other crates and for items of the same file.
    fn absolute(&self, from: &[&'a str], path: &[&'a str]) -> Option<Vec<&'a str>> {
        let (first, rest) = path.split_first()?;
        match *first {
            "crate" => Some(rest.to_vec()),
            "self" => Some([from, rest].concat()),
            "super" => {
                let (_, parent) = from.split_last()?;
                match rest.first() {
                    Some(&"super") => self.absolute(parent, rest),
                    _ => Some([parent, rest].concat()),
                }
            }
            name => {
                let child = [from, &[name]].concat();
                if self.by_path.contains_key(&child) {
                    return Some([from, path].concat());
                }
                let bound = self.by_path.get(from)?.bindings.get(name).filter(|bound| bound.first() != Some(first))?;
                let outer = self.absolute(from, bound)?;
                Some([outer.as_slice(), rest].concat())
            }
        }
    }

    /// The module that declares the item at this path. None where the path names a module only, or leaves the crate.
    fn declaring(&self, path: Vec<&'a str>, hops: usize) -> Option<ModulePath<'a>> {
        let depth = (0..=path.len()).rev().find(|depth| self.by_path.contains_key(&path[..*depth]))?;
        let (module, rest) = path.split_at(depth);
        let (name, tail) = rest.split_first()?;
        match self.by_path[module].bindings.get(name) {
            None => Some(module.to_vec()),
            Some(_) if hops == 0 => None,
            Some(bound) => {
                let outer = self.absolute(module, bound)?;
                self.declaring([outer.as_slice(), tail].concat(), hops - 1)
            }
        }
    }
}

/// `src/a/b.rs` and `src/a/b/mod.rs` are `[a, b]`.
fn module_of(path: &str) -> ModulePath<'_> {
    let inside = path.split_once("src/").map_or(path, |(_, rest)| rest).trim_end_matches(".rs");
    let mut parts: Vec<&str> = inside.split('/').collect();
    if ["mod", "lib", "main"].contains(parts.last().unwrap_or(&"")) {
        parts.pop();
    }
    parts
}

impl<'a> Module<'a> {
    fn new(source: &'a SourceFile) -> Module<'a> {
        let mut paths = Vec::new();
        let mut skip_until = 0;
        for (at, token) in source.product() {
            if at < skip_until {
                continue;
            }
            if token.text == "use" && source.word(at + 1) != "<" {
                skip_until = use_tree(source, at + 1, &[], &mut paths);
            } else if let Some(segments) = code_path(source, at) {
                paths.push(Path { segments, binds: None, line: token.line });
            }
        }
        let bindings = paths.iter().filter_map(|path| Some((path.binds?, path.segments.clone()))).collect();
        Module { source, paths, bindings }
    }
}

/// The path that starts at this token, if it has two segments or more. Visibilities are no references.
fn code_path(source: &SourceFile, at: usize) -> Option<Vec<&str>> {
    let before = |back: usize| at.checked_sub(back).map_or("", |at| source.word(at));
    let is_visibility = before(1) == "in" && before(2) == "(" && before(3) == "pub";
    if before(1) == "::" || is_visibility || source.word(at + 1) != "::" || !is_name(source.word(at)) {
        return None;
    }
    let mut segments = vec![source.word(at)];
    let mut next = at + 1;
    while source.word(next) == "::" && is_name(source.word(next + 1)) {
        segments.push(source.word(next + 1));
        next += 2;
    }
    Some(segments)
}

/// Reads `a::{b, c as d}` from `at` into paths and returns the position after it.
fn use_tree<'a>(source: &'a SourceFile, mut at: usize, prefix: &[&'a str], paths: &mut Vec<Path<'a>>) -> usize {
    let mut segments = prefix.to_vec();
    loop {
        match source.word(at) {
            "{" => {
                at += 1;
                while !["}", ""].contains(&source.word(at)) {
                    at = use_tree(source, at, &segments, paths);
                    at += usize::from(source.word(at) == ",");
                }
                return at + 1;
            }
            "::" => at += 1,
            "*" => {
                segments.push("*");
                paths.push(Path { segments, binds: None, line: source.tokens[at].line });
                return at + 1;
            }
            word if is_name(word) => {
                // `{self, X}` names the prefix itself.
                if word != "self" || segments.is_empty() {
                    segments.push(word);
                }
                at += 1;
                if source.word(at) == "::" {
                    continue;
                }
                let renamed = source.word(at) == "as";
                let name = if renamed { source.word(at + 1) } else { segments.last().copied().unwrap_or_default() };
                let line = source.tokens[at - 1].line;
                paths.push(Path { segments, binds: Some(name), line });
                return at + if renamed { 2 } else { 0 };
            }
            _ => return at + 1,
        }
    }
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}
