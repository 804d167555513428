//! Paths of the real servers that `make setup` downloaded or built.

use std::env;
use std::path::PathBuf;

/// Whether `make test` runs without this server because it is not available on this machine. Tests that need it return
/// at once. Otherwise a missing server fails the test.
pub fn without(part: &str) -> bool {
    env::var("PILOTAGE_WITHOUT").is_ok_and(|parts| parts.split(',').any(|p| p == part))
}

/// Whether a server that tests only compare with is on this machine.
pub fn has(part: &str) -> bool {
    !without(part) && optional_binary(part).is_some()
}

/// The binary of a server: `$PILOTAGE_NAME`, else `bin/NAME` in the cache folder.
pub fn binary(part: &str) -> PathBuf {
    match path(part) {
        Some(path) if path.is_file() => path,
        Some(path) => panic!("no {part} at {}: run make setup", path.display()),
        None => panic!("no cache folder to find {part} in: set PILOTAGE_CACHE"),
    }
}

/// The same if it exists, for measurements that compare with it.
pub fn optional_binary(part: &str) -> Option<PathBuf> {
    path(part).filter(|path| path.is_file())
}

fn path(part: &str) -> Option<PathBuf> {
    let own = env::var_os(format!("PILOTAGE_{}", part.to_uppercase())).map(PathBuf::from);
    own.or_else(|| cache().map(|c| c.join("bin").join(part)))
}

fn cache() -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let user = || set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|h| h.join(".cache")));
    set("PILOTAGE_CACHE").or_else(|| user().map(|u| u.join("pilotage")))
}
