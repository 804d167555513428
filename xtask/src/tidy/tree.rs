//! The source tree as the rules read it: Rust files with their tokens, manifests, and the
//! other texts. Knows which code is test code.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::lexer::{Prose, Token, split};
use crate::workspace;

/// Extensions of the files that are read.
const TEXTS: &[&str] = &["rs", "toml", "md", "sh", "go", "py", "yaml", "yml"];

pub(crate) struct Tree {
    pub sources: Vec<SourceFile>,
    /// Crate name to its manifest.
    pub manifests: BTreeMap<String, TextFile>,
    /// Every file that was read, Rust files included.
    pub texts: Vec<TextFile>,
    /// The paths of all files, read or not.
    pub paths: Vec<String>,
}

pub(crate) struct TextFile {
    pub path: String,
    pub text: String,
}

/// One Rust file.
pub(crate) struct SourceFile {
    /// Relative to the root, with forward slashes.
    pub path: String,
    pub text: String,
    pub tokens: Vec<Token>,
    /// Comments and string literals.
    pub prose: Vec<Prose>,
    /// Parallel to `tokens`: is this token part of test code?
    in_test: Vec<bool>,
}

impl Tree {
    pub(crate) fn read(root: &Path) -> Result<Tree> {
        let (mut files, mut paths) = (Vec::new(), Vec::new());
        for path in workspace::files(root)? {
            let name = path.strip_prefix(root).expect("the walk starts at the root").to_string_lossy().into_owned();
            let extension = path.extension().map(|e| e.to_string_lossy().into_owned()).unwrap_or_default();
            let plain = TEXTS.contains(&extension.as_str()) || extension.is_empty();
            // Of recorded cases only the prose: their index has the first line of each.
            if plain && (!name.starts_with("tests/cases/") || extension == "md") {
                let bytes = fs::read(&path).with_context(|| format!("could not read {name}"))?;
                files.push((name.clone(), String::from_utf8_lossy(&bytes).into_owned()));
            }
            paths.push(name);
        }
        Ok(Tree { paths, ..Tree::of(files) })
    }

    /// The tree of these (path, text) pairs.
    pub(crate) fn of(files: Vec<(String, String)>) -> Tree {
        let texts: Vec<TextFile> = files.into_iter().map(|(path, text)| TextFile { path, text }).collect();
        let rust = texts.iter().filter(|t| t.path.ends_with(".rs"));
        let mut sources: Vec<SourceFile> = rust.map(|t| SourceFile::new(&t.path, &t.text)).collect();
        mark_test_modules(&mut sources);
        let manifests = texts.iter().filter_map(|t| {
            let folder = t.path.strip_suffix("/Cargo.toml")?;
            Some((crate_of(folder).to_owned(), TextFile { path: t.path.clone(), text: t.text.clone() }))
        });
        let paths = texts.iter().map(|text| text.path.clone()).collect();
        Tree { manifests: manifests.collect(), sources, texts, paths }
    }

    /// The Rust files below `src` of one crate.
    pub(crate) fn sources_of<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a SourceFile> {
        let folder = format!("crates/{name}/src/");
        self.sources.iter().filter(move |s| s.path.starts_with(&folder))
    }
}

/// `crates/model` and `crates/model/src/x.rs` are of crate `model`.
pub(crate) fn crate_of(path: &str) -> &str {
    let path = path.strip_prefix("crates/").unwrap_or(path);
    path.split('/').next().unwrap_or(path)
}

impl SourceFile {
    fn new(path: &str, text: &str) -> SourceFile {
        let (tokens, prose) = split(text);
        let whole = ["/tests/", "/benches/"].iter().any(|f| path.contains(f)) || path.ends_with("/tests.rs");
        let in_test = if whole { vec![true; tokens.len()] } else { test_items(&tokens) };
        SourceFile { path: path.to_owned(), text: text.to_owned(), tokens, prose, in_test }
    }

    /// Tokens outside `#[cfg(test)]` items, with their positions.
    pub(crate) fn product(&self) -> impl Iterator<Item = (usize, &Token)> {
        self.tokens.iter().enumerate().filter(|(at, _)| !self.in_test[*at])
    }

    /// Where product code matches `pattern` (tokens separated by blanks).
    pub(crate) fn product_matches(&self, pattern: &str) -> Vec<&Token> {
        self.product().filter(|(at, _)| self.matches(*at, pattern)).map(|(_, token)| token).collect()
    }

    /// Does `pattern` start at this token?
    pub(crate) fn matches(&self, at: usize, pattern: &str) -> bool {
        let mut rest = self.tokens[at..].iter();
        pattern.split(' ').all(|word| rest.next().is_some_and(|t| t.text == word))
    }

    /// The text of a token; empty past the end.
    pub(crate) fn word(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", |t| t.text.as_str())
    }

    /// Position of the brace that closes the first one at or after `at`; `;` before it ends an item early.
    pub(crate) fn item_end(&self, at: usize) -> usize {
        item_end(&self.tokens, at)
    }
}

fn item_end(tokens: &[Token], at: usize) -> usize {
    let (mut braces, mut others) = (0, 0);
    for (i, token) in tokens.iter().enumerate().skip(at) {
        match token.text.as_str() {
            "{" => braces += 1,
            "}" => {
                braces -= 1;
                if braces == 0 && others == 0 {
                    return i;
                }
            }
            "(" | "[" => others += 1,
            ")" | "]" => others -= 1,
            ";" if braces == 0 && others == 0 => return i,
            _ => {}
        }
    }
    tokens.len().saturating_sub(1)
}

const CFG_TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];

fn test_items(tokens: &[Token]) -> Vec<bool> {
    let mut marks = vec![false; tokens.len()];
    for start in 0..tokens.len() {
        let window = tokens[start..].iter().map(|t| t.text.as_str());
        if window.take(CFG_TEST.len()).eq(CFG_TEST) {
            let end = item_end(tokens, start + CFG_TEST.len());
            marks[start..=end].fill(true);
        }
    }
    marks
}

/// A file declared by `#[cfg(test)] mod x;` is test code as a whole.
fn mark_test_modules(sources: &mut [SourceFile]) {
    let mut files = Vec::new();
    for s in sources.iter() {
        for at in 0..s.tokens.len() {
            if s.in_test[at] && s.word(at) == "mod" && s.word(at + 2) == ";" {
                files.extend(module_files(&s.path, s.word(at + 1)));
            }
        }
    }
    for s in sources {
        if files.contains(&s.path) {
            s.in_test.fill(true);
        }
    }
}

/// The two paths where `mod name;` in the file `parent` may find its text.
pub(crate) fn module_files(parent: &str, name: &str) -> [String; 2] {
    let (folder, file) = parent.rsplit_once('/').unwrap_or(("", parent));
    let stem = file.trim_end_matches(".rs");
    let own_folder = ["lib", "main", "mod", "build"].contains(&stem) || is_root(parent);
    let base = if own_folder { folder.to_owned() } else { format!("{folder}/{stem}") };
    [format!("{base}/{name}.rs"), format!("{base}/{name}/mod.rs")]
}

/// Files that cargo finds by itself: crate, test, bench and build roots.
pub(crate) fn is_root(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        [.., "src", "lib.rs" | "main.rs"] | [.., "build.rs"] => true,
        [.., "tests" | "benches" | "examples" | "bin", file] => file.ends_with(".rs") && !path.contains("/src/tests/"),
        [.., "tests" | "benches" | "examples", _, "main.rs"] => true,
        _ => false,
    }
}
