//! `cargo xtask package [--debug]`: builds the programs and packs them into `target/dist`: an archive, a Debian package, a
//! bill of materials, a list of what is inside, and checksums. `release` packs the same way.

mod debian;
mod sbom;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::dependencies;

const PACKAGES: &[&str] = &["discovery", "agent", "pilotctl"];
const BINARIES: &[&str] = &["pilot-discovery", "pilot-agent", "pilotctl"];
/// What the archive has next to the binaries.
const FILES: &[&str] = &["README.md", "CHANGELOG.md", "SECURITY.md", "LICENSE", "deploy", "docs", "samples"];

/// Which build of the programs is packed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum PackedBuild {
    Release,
    Debug,
}

/// Packs the version of the workspace.
pub(crate) fn run(root: &Path, build: PackedBuild) -> Result<()> {
    let dist = pack(root, &workspace_version(root)?, build)?;
    println!("package: {}", dist.display());
    print!("{}", fs::read_to_string(dist.join("SHA256SUMS"))?);
    Ok(())
}

/// Builds and packs; returns the folder of the files.
pub(crate) fn pack(root: &Path, version: &str, build: PackedBuild) -> Result<PathBuf> {
    let (arguments, folder): (&[&str], &str) = match build {
        PackedBuild::Release => (&["--release", "-p", "discovery", "-p", "agent", "-p", "pilotctl"], "release"),
        PackedBuild::Debug => (&["--workspace", "--bins"], "debug"),
    };
    output(Command::new(env!("CARGO")).current_dir(root).args(["build", "--locked"]).args(arguments))?;
    let dist = root.join("target/dist");
    if dist.exists() {
        fs::remove_dir_all(&dist)?;
    }
    fs::create_dir_all(&dist)?;
    let programs: Vec<PathBuf> = BINARIES.iter().map(|name| root.join("target").join(folder).join(name)).collect();
    // The same files give the same packages.
    let time = output(Command::new("git").current_dir(root).args(["log", "-1", "--format=%ct"]))?.trim().to_owned();
    let name = format!("pilotage-{version}-{}-linux", std::env::consts::ARCH);
    let archive = archive(root, &dist, &name, &programs, &time)?;
    let package = debian::package(root, &dist, version, &programs, &time)?;
    let bill = format!("{name}.cdx.json");
    fs::write(dist.join(&bill), sbom::document(version, &dependencies::of_packages(root, PACKAGES)?))?;
    let listed = [
        (archive.as_str(), output(Command::new("tar").current_dir(&dist).args(["--list", "-f", &archive]))?),
        (package.as_str(), output(Command::new("dpkg-deb").current_dir(&dist).args(["--contents", &package]))?),
    ];
    let list = format!("{name}.contents.txt");
    fs::write(dist.join(&list), listed.map(|(file, content)| format!("{file}\n{content}\n")).concat())?;
    let sums = output(Command::new("sha256sum").current_dir(&dist).args([&archive, &package, &bill, &list]))?;
    fs::write(dist.join("SHA256SUMS"), sums)?;
    Ok(dist)
}

/// The archive; returns its name.
fn archive(root: &Path, dist: &Path, name: &str, programs: &[PathBuf], time: &str) -> Result<String> {
    let stage = dist.join(name);
    fs::create_dir_all(&stage)?;
    copy_into(programs, &stage)?;
    output(Command::new("cp").current_dir(root).arg("--recursive").args(FILES).arg(&stage))?;
    let archive = format!("{name}.tar.gz");
    let mut tar = Command::new("tar");
    tar.current_dir(dist).args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    let packed = ["--use-compress-program=gzip -n", "-cf", &archive, name];
    output(tar.arg(format!("--mtime=@{time}")).args(packed))?;
    fs::remove_dir_all(&stage)?;
    Ok(archive)
}

fn copy_into(files: &[PathBuf], folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    for file in files {
        let name = file.file_name().with_context(|| format!("{} has no name", file.display()))?;
        fs::copy(file, folder.join(name)).with_context(|| format!("could not copy {}", file.display()))?;
    }
    Ok(())
}

/// The version in the root `Cargo.toml`.
fn workspace_version(root: &Path) -> Result<String> {
    let text = fs::read_to_string(root.join("Cargo.toml"))?;
    let section = text.split("[workspace.package]").nth(1).context("no [workspace.package] in Cargo.toml")?;
    let line =
        section.lines().find_map(|line| line.strip_prefix("version = \"")).context("no version in Cargo.toml")?;
    Ok(line.trim_end_matches('"').to_owned())
}

/// Runs a tool and returns what it prints.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("could not run {name}"))?;
    if !output.status.success() {
        bail!("{name} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{fs, workspace_version};
    use crate::workspace;

    #[test]
    fn the_version_is_that_of_the_workspace() {
        assert_eq!(workspace_version(&workspace::root()).unwrap(), env!("CARGO_PKG_VERSION"));
    }

    /// systemd knows every setting of the units, and they are hardened.
    #[test]
    fn units_are_accepted_by_systemd() {
        if Command::new("systemd-analyze").arg("--version").output().is_err() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        for name in ["pilot-discovery", "pilot-agent"] {
            let path = workspace::root().join(format!("deploy/systemd/{name}.service"));
            let text = fs::read_to_string(path).unwrap();
            // The programs are not installed here.
            let (program, present) = (format!("/usr/bin/{name} "), "/bin/true ");
            assert!(text.contains(&program) && text.contains("Type=notify"));
            let unit = folder.path().join(format!("{name}.service"));
            fs::write(&unit, text.replace(&program, present)).unwrap();
            let run = |args: &[&str]| {
                let output = Command::new("systemd-analyze").args(args).arg(&unit).output().unwrap();
                let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
                (output.status.success(), text.concat())
            };
            let (passed, said) = run(&["verify", "--man=no"]);
            assert!(passed && !said.contains(name), "{said}");
            let (passed, said) = run(&["security", "--offline=true", "--threshold=40"]);
            assert!(passed, "{said}");
        }
    }
}
