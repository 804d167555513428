//! The crates that binaries are built from, with licence and checksum, as `cargo tree` and Cargo.lock list them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// One crate from a registry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) version: String,
    /// An SPDX expression.
    pub(crate) license: String,
    /// SHA-256 of the published archive.
    pub(crate) checksum: String,
}

/// The crates from registries that `packages` are built from, in order of name and version.
pub(crate) fn of_packages(root: &Path, packages: &[&str]) -> Result<Vec<Dependency>> {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root).args(["tree", "--locked", "--edges", "normal", "--prefix", "none"]);
    command.args(["--format", "{p}\t{l}"]).args(packages.iter().flat_map(|name| ["--package", name]));
    let output = command.output().context("could not run cargo tree")?;
    if !output.status.success() {
        bail!("cargo tree failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let lock = fs::read_to_string(root.join("Cargo.lock")).context("could not read Cargo.lock")?;
    join(&String::from_utf8_lossy(&output.stdout), &checksums(&lock))
}

/// Crates of the workspace have no checksum and are left out.
fn join(tree: &str, checksums: &BTreeMap<(&str, &str), &str>) -> Result<Vec<Dependency>> {
    let mut found = BTreeSet::new();
    for line in tree.lines().filter(|line| !line.is_empty()) {
        let (package, license) = line.split_once('\t').with_context(|| format!("could not read {line:?}"))?;
        let mut words = package.split(' ');
        let (Some(name), Some(version)) = (words.next(), words.next()) else { bail!("could not read {line:?}") };
        let version = version.trim_start_matches('v');
        if let Some(checksum) = checksums.get(&(name, version)) {
            // `A/B` is an old spelling of `A OR B`; `(*)` marks a repeated line.
            let license = license.trim_end_matches("(*)").trim().replace(" / ", " OR ").replace('/', " OR ");
            let [name, version, checksum] = [name, version, *checksum].map(str::to_owned);
            found.insert(Dependency { name, version, license, checksum });
        }
    }
    Ok(found.into_iter().collect())
}

/// Name and version to checksum.
fn checksums(lock: &str) -> BTreeMap<(&str, &str), &str> {
    let packages = lock.split("[[package]]").skip(1);
    let read = |package| Some(((value(package, "name")?, value(package, "version")?), value(package, "checksum")?));
    packages.filter_map(read).collect()
}

/// The text of `key = "text"` in one entry of Cargo.lock.
fn value<'a>(package: &'a str, key: &str) -> Option<&'a str> {
    let line = package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""))?;
    line.strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"registry\"\n\
                        checksum = \"00ff\"\n\n[[package]]\nname = \"ours\"\nversion = \"0.1.0\"\n";

    #[test]
    fn crates_of_registries_are_listed_once_with_licence_and_checksum() {
        let tree =
            "ours v0.1.0 (dir)\tApache-2.0\na v1.0.0\tMIT/Apache-2.0\n\na v1.0.0 (proc-macro)\tMIT/Apache-2.0 (*)\n";
        let [name, version, license, checksum] = ["a", "1.0.0", "MIT OR Apache-2.0", "00ff"].map(str::to_owned);
        assert_eq!(join(tree, &checksums(LOCK)).unwrap(), [Dependency { name, version, license, checksum }]);
    }
}
