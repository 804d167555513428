//! Compiles the commit into release builds. `PILOTAGE_REVISION` and `PILOTAGE_BUILD_STATUS` take precedence, for builds
//! from archives. Debug builds do not name a commit: every commit would recompile all programs.

#[path = "src/revision.rs"]
mod revision;

use std::env;
use std::path::Path;

fn main() {
    for name in ["PILOTAGE_REVISION", "PILOTAGE_BUILD_STATUS"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let found = is_release.then(|| revision::of_checkout(&folder)).flatten();
    let (commit, status) = match (&found, is_release) {
        (Some(revision), _) => (revision.commit.as_str(), revision.status),
        (None, true) => ("not_from_git", "Unversioned"),
        (None, false) => ("development", "Debug"),
    };
    for (name, value) in [("PILOTAGE_REVISION", commit), ("PILOTAGE_BUILD_STATUS", status)] {
        let given = env::var(name).ok().filter(|value| !value.is_empty());
        println!("cargo::rustc-env={name}={}", given.as_deref().unwrap_or(value));
    }
    if is_release {
        watch(&folder);
    }
}

/// Runs again when a commit is made or a source changes.
fn watch(folder: &Path) {
    let sources = ["crates", "Cargo.toml", "Cargo.lock"].map(|name| folder.join(name));
    for path in sources.into_iter().chain(revision::files_of_commits(folder)) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}
