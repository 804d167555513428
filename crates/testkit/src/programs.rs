//! Binaries of this workspace for tests of other crates; a crate's own tests use `CARGO_BIN_EXE_NAME`.
//! `cargo test --workspace` has built them; a test of one crate alone may have to build them.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use parking_lot::Mutex;

/// Folder with the sources of the binaries.
const CRATES: &str = "crates";

/// The binary of a crate; builds it if it is missing or older than the sources.
pub fn binary(package: &str, name: &str) -> PathBuf {
    // One build at a time: tests run in parallel.
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

/// The release build of a binary, for benchmarks that measure it.
pub fn release_binary(package: &str, name: &str) -> PathBuf {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .current_dir(root())
        .args(["build", "--quiet", "--locked", "--release", "--package", package, "--bin", name])
        .status();
    assert!(built.is_ok_and(|status| status.success()), "could not build {name}");
    folder().with_file_name("release").join(name)
}

/// The binary for long measurements: in the folder that `$PILOTAGE_PROGRAMS` names, else the release build if there is one
/// of these sources, else the debug build.
pub fn measured_binary(package: &str, name: &str) -> PathBuf {
    if let Some(given) = env::var_os("PILOTAGE_PROGRAMS") {
        let path = Path::new(&given).join(name);
        assert!(path.is_file(), "no {name} at {}", path.display());
        return path;
    }
    let release = folder().with_file_name("release").join(name);
    if is_fresh(&release, &root().join(CRATES)) { release } else { binary(package, name) }
}

/// The folder of binaries. Release benchmarks use the debug build of binaries that they do not measure.
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

/// Whether a binary is newer than all sources. Sources of other binaries count too; then cargo finds nothing to do.
fn is_fresh(program: &Path, sources: &Path) -> bool {
    let changed = |path: &Path| fs::metadata(path).and_then(|m| m.modified()).ok();
    match (changed(program), newest(sources)) {
        (Some(built), Some(newest)) => built >= newest,
        _ => false,
    }
}

/// Modification time of the newest Rust source.
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
