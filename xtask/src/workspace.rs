//! The workspace: its root and its files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Folders without source files (`.git` is a file in a linked worktree).
const SKIPPED: &[&str] = &[".git", "target", "node_modules"];

/// The folder of the root Cargo.toml.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the root").to_owned()
}

/// Every file below `folder` in path order, without build output. Links are not followed.
pub(crate) fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if SKIPPED.iter().any(|s| entry.file_name() == *s) {
                continue;
            }
            if kind.is_file() {
                found.push(entry.path());
            } else if kind.is_dir() {
                open.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}
