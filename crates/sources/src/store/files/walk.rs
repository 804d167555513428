//! Lists the config folder: its config files with their stamps, and the folders to watch. Opens no file; `read_file` does.
//! An entry on a dead mount is reported as unreadable and does not delay the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{FileType, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use crate::disk::{self, DirListing, FileId, FileStamp, is_absence};

/// Deeper folders are not listed.
const MAX_DEPTH: usize = 64;

/// Files that are reported as left out.
const MOST_LEFT_OUT: usize = 100;

/// The folder and everything below it.
#[derive(Debug, Default)]
pub(crate) struct DirTree {
    /// Config files, by their path below the root.
    pub(crate) files: BTreeMap<PathBuf, FileStatus>,
    /// Listed folders: the canonical path, and the path below the root.
    pub(crate) folders: BTreeMap<PathBuf, PathBuf>,
    /// Files that are no config files, up to a limit.
    pub(crate) left_out: BTreeSet<PathBuf>,
    /// Folders that cannot be listed, and why.
    pub(crate) unreadable: BTreeMap<PathBuf, String>,
}

/// A config file, without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileStatus {
    File {
        stamp: FileStamp,
        /// The target of a symlink.
        target: Option<PathBuf>,
    },
    Unreadable(String),
}

/// Lists the folder and everything below it. Fails only if the folder itself cannot be listed.
pub(crate) fn walk(root: &Path) -> io::Result<DirTree> {
    let mut walk = DirWalker::default();
    walk.folder(root, 0)?;
    Ok(walk.listing)
}

/// The config file at `path`; `None` if it does not exist.
pub(crate) fn entry(path: &Path) -> Option<FileStatus> {
    let here = match path.symlink_metadata() {
        Ok(here) => here,
        Err(e) if is_absence(&e) => return None,
        Err(e) => return Some(FileStatus::Unreadable(e.to_string())),
    };
    if !here.is_symlink() {
        return Some(of_metadata(&here, None));
    }
    Some(match disk::target(path) {
        Ok((there, target)) => of_metadata(&there, Some(target)),
        Err(e) if e.kind() == io::ErrorKind::TimedOut => FileStatus::Unreadable(e.to_string()),
        Err(e) => FileStatus::Unreadable(format!("the symlink is broken: {e}")),
    })
}

/// Whether this is the name of a config file. `.#x.yaml` is an editor's lock file.
pub(crate) fn is_config(path: &Path) -> bool {
    let ends_well = path.extension().is_some_and(|e| e == "yaml" || e == "yml");
    ends_well && !name_starts_with(path, ".#")
}

/// Whether editors and version control make such files; they come and go.
fn is_transient(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_number = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    is_number
        || name.starts_with(['.', '#', '_'])
        || name.ends_with(['~', '#'])
        || name.ends_with(".tmp")
        || is_config(path)
}

fn of_metadata(metadata: &Metadata, target: Option<PathBuf>) -> FileStatus {
    match metadata {
        m if m.is_file() => FileStatus::File { stamp: FileStamp::of(m), target },
        m if m.is_dir() => FileStatus::Unreadable("it is a folder".into()),
        _ => FileStatus::Unreadable("not a regular file".into()),
    }
}

#[derive(Default)]
struct DirWalker {
    listing: DirTree,
    visited: BTreeSet<FileId>,
}

impl DirWalker {
    fn folder(&mut self, path: &Path, depth: usize) -> io::Result<()> {
        if depth > MAX_DEPTH {
            return Err(io::Error::other("too deep"));
        }
        let DirListing { identity, canonical, entries } = disk::list(path)?;
        // Symlinks may form cycles or lead to one folder twice. Without inodes, no symlinks are followed.
        if identity != FileId::default() && !self.visited.insert(identity) {
            return Ok(());
        }
        self.listing.folders.insert(canonical, path.to_path_buf());
        for (path, file_type) in entries {
            self.entry(path, file_type, depth);
        }
        Ok(())
    }

    fn entry(&mut self, path: PathBuf, file_type: FileType, depth: usize) {
        if is_folder(file_type, &path) {
            self.subfolder(path, depth + 1);
        } else if is_config(&path)
            && let Some(file) = self::entry(&path)
        {
            self.listing.files.insert(path, file);
        } else if self.listing.left_out.len() < MOST_LEFT_OUT && file_type.is_file() && !is_transient(&path) {
            self.listing.left_out.insert(path);
        }
    }

    fn subfolder(&mut self, path: PathBuf, depth: usize) {
        // A mounted ConfigMap has its versions in such folders, with a symlink to the current one.
        if name_starts_with(&path, "..") {
            return;
        }
        match self.folder(&path, depth) {
            Ok(()) => {}
            Err(e) if is_absence(&e) => {}
            Err(e) => _ = self.listing.unreadable.insert(path, e.to_string()),
        }
    }
}

fn is_folder(file_type: FileType, path: &Path) -> bool {
    if file_type.is_symlink() { cfg!(unix) && is_dir(path) } else { file_type.is_dir() }
}

/// Whether there is a folder, or a symlink to one.
pub(crate) fn is_dir(path: &Path) -> bool {
    disk::target(path).is_ok_and(|(metadata, _)| metadata.is_dir())
}

fn name_starts_with(path: &Path, prefix: &str) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
}
