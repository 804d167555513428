//! Programs in Go, built from modules that `tools/servers/*/go.mod` pins by version and hash, and files that such modules
//! contain.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{Scratch, fingerprint, tool};

/// The package of a program whose `main.go` is in our own module.
pub(crate) const OWN: &str = ".";
/// The package of a program in a folder of our own module.
pub(crate) const OWN_APP: &str = "./app";
/// The package of a test binary whose `suite_test.go` is in our own module.
pub(crate) const OWN_TESTS: &str = ". as tests";

/// One program of a pinned module.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// Under `tools/servers`.
    pub(crate) module: &'static str,
    pub(crate) package: &'static str,
    pub(crate) tags: &'static str,
}

/// Files of a module, joined into one.
pub(crate) struct ModuleFiles {
    pub(crate) name: &'static str,
    /// Under `tools/servers`.
    pub(crate) module: &'static str,
    pub(crate) path: &'static str,
    /// Folder in that module, and the beginning of the files' names.
    pub(crate) folder: &'static str,
    pub(crate) prefix: &'static str,
    /// Files with this in their names are left out.
    pub(crate) except: &'static str,
}

/// The path of the binary; builds it unless the cache has these versions.
pub(crate) fn get(program: &Program, root: &Path, cache: &Path) -> Result<PathBuf> {
    let module = root.join("tools/servers").join(program.module);
    let mut files: Vec<PathBuf> = ["go.mod", "go.sum"].map(|name| module.join(name)).into();
    match program.package {
        OWN | OWN_TESTS => files.extend(sources(&module)?),
        OWN_APP => files.extend(sources(&module.join(OWN_APP))?),
        _ => {}
    }
    let pins = fingerprint(&files)?;
    let folder = cache.join(format!("{}-{pins}", program.name));
    let binary = folder.join(program.name);
    if binary.is_file() {
        return Ok(binary);
    }
    println!("setup: building {}, which takes minutes the first time", program.name);
    let scratch = Scratch::new(cache, program.name)?;
    let fresh = scratch.0.join(program.name);
    let (verb, package): (&[&str], &str) = match program.package {
        OWN_TESTS => (&["test", "-c"], OWN),
        package => (&["build"], package),
    };
    tool(
        go(&module)
            .args(verb)
            .args(["-mod=readonly", "-trimpath", "-ldflags", "-s -w", "-tags", program.tags, "-o"])
            .arg(&fresh)
            .arg(package),
    )?;
    fs::create_dir_all(&folder)?;
    fs::rename(&fresh, &binary).with_context(|| format!("could not keep {}", binary.display()))?;
    Ok(binary)
}

/// The path of a file with all documents; written unless the cache has these versions.
pub(crate) fn files(wanted: &ModuleFiles, root: &Path, cache: &Path) -> Result<PathBuf> {
    let module = root.join("tools/servers").join(wanted.module);
    let pins = fingerprint(&["go.mod", "go.sum"].map(|name| module.join(name)))?;
    let folder = cache.join(format!("{}-{pins}", wanted.name));
    let file = folder.join(wanted.name);
    if file.is_file() {
        return Ok(file);
    }
    let source = module_folder(&module, wanted.path)?.join(wanted.folder);
    let mut names: Vec<PathBuf> = fs::read_dir(&source)
        .with_context(|| format!("could not list {}", source.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(wanted.prefix) && !name.contains(wanted.except)
        })
        .collect();
    names.sort();
    let texts: Vec<String> = names.iter().map(fs::read_to_string).collect::<Result<_, _>>()?;
    let scratch = Scratch::new(cache, wanted.name)?;
    let fresh = scratch.0.join(wanted.name);
    fs::write(&fresh, texts.join("\n---\n"))?;
    fs::create_dir_all(&folder)?;
    fs::rename(&fresh, &file)?;
    Ok(file)
}

/// The folder of a module that the module in `pins` names, downloaded if it is missing.
pub(crate) fn module_folder(pins: &Path, path: &str) -> Result<PathBuf> {
    tool(go(pins).args(["mod", "download", path]))?;
    let listed = go(pins).args(["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", path]).output()?;
    Ok(PathBuf::from(String::from_utf8(listed.stdout)?.trim()))
}

fn go(module: &Path) -> Command {
    let mut go = Command::new("go");
    go.current_dir(module);
    go.envs([("CGO_ENABLED", "0"), ("GOTOOLCHAIN", "local"), ("GOFLAGS", ""), ("GOWORK", "off")]);
    go
}

/// Go files of a folder, in order.
fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("could not list {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "go"));
    files.sort();
    Ok(files)
}
