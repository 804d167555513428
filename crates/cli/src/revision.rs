//! The git commit of a build and whether the sources were modified. Shared by the build script, which compiles both into
//! release builds, and its tests.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Commit and state of a checkout.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Revision {
    /// The whole hash.
    pub(crate) commit: String,
    /// `Clean`, or `Modified` with local changes, as in upstream.
    pub(crate) status: &'static str,
}

/// Revision of the checkout with this top folder. `None` without git, or if the sources are inside another project's
/// checkout.
pub(crate) fn of_checkout(folder: &Path) -> Option<Revision> {
    let top = git(folder, &["rev-parse", "--show-toplevel"])?;
    if Path::new(top.trim()).canonicalize().ok()? != folder.canonicalize().ok()? {
        return None;
    }
    let commit = git(folder, &["rev-parse", "HEAD"])?.trim().to_owned();
    let changes = git(folder, &["status", "--porcelain", "--untracked-files=no"])?;
    Some(Revision { commit, status: if changes.trim().is_empty() { "Clean" } else { "Modified" } })
}

/// Git files that change with every commit.
#[allow(dead_code, reason = "only the build script watches them")]
pub(crate) fn files_of_commits(folder: &Path) -> Vec<PathBuf> {
    let path = |name: &str| git(folder, &["rev-parse", "--git-path", name]).map(|path| folder.join(path.trim()));
    ["HEAD", "index", "refs/heads", "packed-refs"].iter().filter_map(|name| path(name)).filter(|p| p.exists()).collect()
}

fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    // A git hook that runs the build sets GIT_DIR to another repository.
    let output = Command::new("git").arg("-C").arg(folder).args(arguments).env_remove("GIT_DIR").output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
