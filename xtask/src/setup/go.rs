//! Programs in Go, built from modules that `tools/servers/*/go.mod` pins by version and hash.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{Scratch, fingerprint, tool};

/// The package of a program whose `main.go` is in our own module.
pub(crate) const OWN: &str = ".";

/// One program of a pinned module.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// Under `tools/servers`.
    pub(crate) module: &'static str,
    pub(crate) package: &'static str,
    pub(crate) tags: &'static str,
}

/// The path of the binary; builds it unless the cache has these versions.
pub(crate) fn get(program: &Program, root: &Path, cache: &Path) -> Result<PathBuf> {
    let module = root.join("tools/servers").join(program.module);
    let own = (program.package == OWN).then(|| module.join("main.go"));
    let files: Vec<PathBuf> = ["go.mod", "go.sum"].map(|name| module.join(name)).into_iter().chain(own).collect();
    let pins = fingerprint(&files)?;
    let folder = cache.join(format!("{}-{pins}", program.name));
    let binary = folder.join(program.name);
    if binary.is_file() {
        return Ok(binary);
    }
    println!("setup: building {}, which takes minutes the first time", program.name);
    let scratch = Scratch::new(cache, program.name)?;
    let fresh = scratch.0.join(program.name);
    tool(
        Command::new("go")
            .current_dir(&module)
            .envs([("CGO_ENABLED", "0"), ("GOTOOLCHAIN", "local"), ("GOFLAGS", ""), ("GOWORK", "off")])
            .args(["build", "-mod=readonly", "-trimpath", "-ldflags", "-s -w", "-tags", program.tags, "-o"])
            .arg(&fresh)
            .arg(program.package),
    )?;
    fs::create_dir_all(&folder)?;
    fs::rename(&fresh, &binary).with_context(|| format!("could not keep {}", binary.display()))?;
    Ok(binary)
}
