//! Programs of this workspace for tests of other crates; a crate's own tests have `CARGO_BIN_EXE_NAME`.
//! `cargo test --workspace` has built them by then; a test of one crate alone may find them missing or old.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use parking_lot::Mutex;

/// Crates whose sources a program may be made of.
const CRATES: &str = "crates";

/// The binary of a crate, built now if it is missing or older than the sources.
pub fn binary(package: &str, name: &str) -> PathBuf {
    // One build at a time: the tests of a program run side by side.
    static BUILDING: Mutex<()> = Mutex::new(());
    let _one = BUILDING.lock();
    let path = folder().join(name);
    if is_fresh(&path, &root().join(CRATES)) {
        return path;
    }
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .current_dir(root())
        .args(["build", "--quiet", "--locked", "--package", package, "--bin", name])
        .status();
    assert!(built.is_ok_and(|status| status.success()), "could not build {name}");
    assert!(path.is_file(), "no {name} at {}", path.display());
    path
}

/// Where programs are built: two above a test program in `deps`. What a benchmark needs beside the program that it
/// measures is not measured, so the build for tests will do.
fn folder() -> PathBuf {
    let folder = own_folder();
    if folder.ends_with("release") { folder.with_file_name("debug") } else { folder }
}

fn own_folder() -> PathBuf {
    let this = env::current_exe().unwrap_or_else(|e| panic!("could not find this program: {e}"));
    let folder = this.parent().map(|deps| if deps.ends_with("deps") { deps.parent().unwrap_or(deps) } else { deps });
    folder.unwrap_or(Path::new(".")).to_owned()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A library that the program is not made of may count too; then cargo finds nothing to do.
fn is_fresh(program: &Path, sources: &Path) -> bool {
    let changed = |path: &Path| fs::metadata(path).and_then(|m| m.modified()).ok();
    match (changed(program), newest(sources)) {
        (Some(built), Some(newest)) => built >= newest,
        _ => false,
    }
}

/// When the newest Rust source of a product crate was changed.
fn newest(folder: &Path) -> Option<SystemTime> {
    let skipped = ["target", "tests", "benches", "testkit", "agent", "pilotctl"];
    let entries = fs::read_dir(folder).ok()?.flatten();
    let of = |entry: fs::DirEntry| {
        let path = entry.path();
        if path.is_dir() {
            let name = entry.file_name();
            return if skipped.iter().any(|s| name == *s) { None } else { newest(&path) };
        }
        path.extension().filter(|e| *e == "rs")?;
        entry.metadata().ok()?.modified().ok()
    };
    entries.filter_map(of).max()
}
