//! Where the real servers lie that `make setup` obtained.

use std::env;
use std::path::PathBuf;

/// Was this part given up by `make test` because the machine cannot obtain it?
/// A test that needs it returns at once then. Without that word a missing part fails the test.
pub fn without(part: &str) -> bool {
    env::var("PILOTAGE_WITHOUT").is_ok_and(|parts| parts.split(',').any(|p| p == part))
}

/// The binary of a part: `$PILOTAGE_NAME`, else `bin/NAME` in the cache folder.
pub fn binary(part: &str) -> PathBuf {
    let own = env::var_os(format!("PILOTAGE_{}", part.to_uppercase())).map(PathBuf::from);
    let path = own.or_else(|| cache().map(|c| c.join("bin").join(part)));
    match path {
        Some(path) if path.is_file() => path,
        Some(path) => panic!("no {part} at {}: run make setup", path.display()),
        None => panic!("no cache folder to find {part} in: set PILOTAGE_CACHE"),
    }
}

fn cache() -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let user = || set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|h| h.join(".cache")));
    set("PILOTAGE_CACHE").or_else(|| user().map(|u| u.join("pilotage")))
}
