//! Obtains the real servers that tests and the demo run against, into a cache folder outside
//! the checkout: `$PILOTAGE_CACHE`, else `pilotage` in the user's cache folder.
//! Whatever is obtained appears as `bin/NAME` in it; testkit looks there.

mod envoy;

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};

use anyhow::{Context, Result, bail};

/// A server and how to obtain it. `get` is quick when it is there already.
struct Part {
    name: &'static str,
    get: fn(root: &Path, cache: &Path) -> Result<PathBuf>,
}

const PARTS: &[Part] = &[Part { name: "envoy", get: envoy::get }];

/// Obtains every part and gives the names of those that cannot be had.
/// Under CI such a part is an error.
pub(crate) fn run(root: &Path) -> Result<Vec<&'static str>> {
    let cache = cache()?;
    let mut missing = Vec::new();
    for part in PARTS {
        match (part.get)(root, &cache).and_then(|binary| publish(&cache, part.name, &binary)) {
            Ok(path) => println!("setup: {} is {}", part.name, path.display()),
            Err(error) => {
                eprintln!("setup: no {}: {error:#}", part.name);
                missing.push(part.name);
            }
        }
    }
    if !missing.is_empty() && env::var_os("CI").is_some() {
        bail!("could not obtain {}", missing.join(", "));
    }
    Ok(missing)
}

fn cache() -> Result<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let user = || set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|h| h.join(".cache")));
    let cache = set("PILOTAGE_CACHE").or_else(|| user().map(|u| u.join("pilotage")));
    cache.context("no cache folder: set PILOTAGE_CACHE")
}

/// Makes `bin/NAME` point to the binary; a reader never sees it half done.
fn publish(cache: &Path, name: &str, binary: &Path) -> Result<PathBuf> {
    let link = cache.join("bin").join(name);
    if fs::read_link(&link).is_ok_and(|target| target == binary) {
        return Ok(link);
    }
    fs::create_dir_all(cache.join("bin"))?;
    let fresh = cache.join("bin").join(format!(".{name}-{}", process::id()));
    symlink(binary, &fresh)?;
    fs::rename(&fresh, &link)?;
    Ok(link)
}

/// A folder of one attempt, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(cache: &Path) -> io::Result<Scratch> {
        let path = cache.join(format!(".part-{}", process::id()));
        fs::create_dir_all(&path)?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs a tool; its complaint is the error.
fn tool(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("could not run {name}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("it said nothing");
    bail!("{name} failed: {last}")
}
