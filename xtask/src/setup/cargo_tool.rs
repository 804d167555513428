//! Tools written in Rust, built by cargo at a pinned version.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::{Scratch, tool};

/// A program of the package of the same name.
pub(super) struct CargoTool {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
}

/// Checks bans, licences and sources of dependencies. A development build takes 90 CPU seconds and is fast enough.
pub(super) const DENY: CargoTool = CargoTool { name: "cargo-deny", version: "0.20.2" };

/// The path of the binary; builds it unless the cache has this version.
pub(super) fn get(wanted: &CargoTool, cache: &Path) -> Result<PathBuf> {
    let folder = cache.join(format!("{}-{}", wanted.name, wanted.version));
    let binary = folder.join(wanted.name);
    if binary.is_file() {
        return Ok(binary);
    }
    println!("setup: building {}, which takes about a minute the first time", wanted.name);
    let scratch = Scratch::new(cache, wanted.name)?;
    let mut install = Command::new(env!("CARGO"));
    install.current_dir(cache).args(["install", wanted.name, "--version", wanted.version, "--locked", "--debug"]);
    install.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_TARGET_DIR", scratch.0.join("target"));
    tool(install.arg("--root").arg(&scratch.0))?;
    fs::create_dir_all(&folder)?;
    fs::rename(scratch.0.join("bin").join(wanted.name), &binary)?;
    Ok(binary)
}
