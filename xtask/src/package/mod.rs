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
    pack_programs(root, &dist, version, &root.join("target").join(folder))?;
    Ok(dist)
}

/// Packs the programs of a folder.
fn pack_programs(root: &Path, dist: &Path, version: &str, folder: &Path) -> Result<()> {
    let programs: Vec<PathBuf> = BINARIES.iter().map(|name| folder.join(name)).collect();
    let manuals = manuals(dist, &folder.join("pilotctl"))?;
    // The same files give the same packages.
    let time = output(Command::new("git").current_dir(root).args(["log", "-1", "--format=%ct"]))?.trim().to_owned();
    let name = format!("pilotage-{version}-{}-linux", std::env::consts::ARCH);
    let archive = archive(root, dist, &name, &programs, &time)?;
    let package = debian::package(root, dist, version, &programs, &time)?;
    fs::remove_dir_all(manuals)?;
    let bill = format!("{name}.cdx.json");
    fs::write(dist.join(&bill), sbom::document(version, &dependencies::of_packages(root, PACKAGES)?))?;
    let listed = [
        (archive.as_str(), output(Command::new("tar").current_dir(dist).args(["--list", "-f", &archive]))?),
        (package.as_str(), output(Command::new("dpkg-deb").current_dir(dist).args(["--contents", &package]))?),
    ];
    let list = format!("{name}.contents.txt");
    fs::write(dist.join(&list), listed.map(|(file, content)| format!("{file}\n{content}\n")).concat())?;
    let sums = output(Command::new("sha256sum").current_dir(dist).args([&archive, &package, &bill, &list]))?;
    fs::write(dist.join("SHA256SUMS"), sums)?;
    Ok(())
}

/// Completions of each shell: its name, and where Debian has the file.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "bash-completion/completions/pilotctl"),
    ("zsh", "zsh/vendor-completions/_pilotctl"),
    ("fish", "fish/vendor_completions.d/pilotctl.fish"),
];

/// Man pages and completions, which `pilotctl` makes, in the folders of `/usr/share`; returns the folder.
fn manuals(dist: &Path, pilotctl: &Path) -> Result<PathBuf> {
    let share = dist.join("share");
    let pages = share.join("man/man1");
    fs::create_dir_all(&pages)?;
    output(Command::new(pilotctl).arg("man").arg(&pages))?;
    for page in fs::read_dir(&pages)? {
        // Without a name and a time inside, the same page gives the same file.
        output(Command::new("gzip").args(["-n", "-9"]).arg(page?.path()))?;
    }
    for (shell, file) in COMPLETIONS {
        let path = share.join(file);
        fs::create_dir_all(path.parent().unwrap_or(&share))?;
        fs::write(path, output(Command::new(pilotctl).args(["completion", shell]))?)?;
    }
    Ok(share)
}

/// The archive; returns its name.
fn archive(root: &Path, dist: &Path, name: &str, programs: &[PathBuf], time: &str) -> Result<String> {
    let stage = dist.join(name);
    fs::create_dir_all(&stage)?;
    copy_into(programs, &stage)?;
    output(Command::new("cp").current_dir(root).arg("--recursive").args(FILES).arg(&stage))?;
    output(Command::new("cp").arg("--recursive").arg(dist.join("share")).arg(&stage))?;
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
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::Command;

    use super::{BINARIES, fs, output, pack_programs, workspace_version};
    use crate::workspace;

    /// Programs that print their names, and a pilotctl that makes one man page and completions.
    fn programs(folder: &Path) {
        for name in BINARIES {
            let text = format!(
                "#!/bin/sh\ncase \"$1\" in man) echo .TH > \"$2/pilotctl.1\";; completion) echo \"$2\";; *) echo {name};; esac\n"
            );
            fs::write(folder.join(name), text).unwrap();
            fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    #[test]
    fn packages_have_everything_and_are_the_same_each_time() {
        if Command::new("dpkg-deb").arg("--version").output().is_err() {
            return;
        }
        let (root, folder) = (workspace::root(), tempfile::tempdir().unwrap());
        programs(folder.path());
        let pack = |name: &str| {
            let dist = folder.path().join(name);
            fs::create_dir(&dist).unwrap();
            pack_programs(&root, &dist, "1.2.3", folder.path()).unwrap();
            dist
        };
        let (one, two) = (pack("one"), pack("two"));
        let sums = fs::read_to_string(one.join("SHA256SUMS")).unwrap();
        assert_eq!(sums, fs::read_to_string(two.join("SHA256SUMS")).unwrap());
        output(Command::new("sha256sum").args(["--check", "SHA256SUMS"]).current_dir(&one)).unwrap();
        let file = |end: &str| {
            let entries = fs::read_dir(&one).unwrap().map(|entry| entry.unwrap().path());
            entries.into_iter().find(|path| path.to_string_lossy().ends_with(end)).unwrap_or_else(|| panic!("no {end}"))
        };
        // Four files and their checksums: nothing else is left.
        assert_eq!(fs::read_dir(&one).unwrap().count(), 5);
        let (installed, unpacked) = (folder.path().join("installed"), folder.path().join("unpacked"));
        fs::create_dir(&unpacked).unwrap();
        output(Command::new("dpkg-deb").arg("--extract").arg(file(".deb")).arg(&installed)).unwrap();
        output(Command::new("tar").arg("-xf").arg(file(".tar.gz")).arg("-C").arg(&unpacked)).unwrap();
        let inside = unpacked.join(file(".tar.gz").file_name().unwrap().to_string_lossy().trim_end_matches(".tar.gz"));
        for (root, paths) in [(&installed, INSTALLED), (&inside, UNPACKED)] {
            let missing: Vec<&&str> = paths.iter().filter(|path| !root.join(path).exists()).collect();
            assert!(missing.is_empty(), "{}: {missing:?}", root.display());
        }
        for name in BINARIES {
            assert_eq!(output(&mut Command::new(installed.join("usr/bin").join(name))).unwrap().trim(), *name);
        }
        let about = output(Command::new("dpkg-deb").arg("--field").arg(file(".deb"))).unwrap();
        assert!(
            about.contains("Package: pilotage\nVersion: 1.2.3\n") && about.contains("\nInstalled-Size: "),
            "{about}"
        );
        let control = folder.path().join("control");
        output(Command::new("dpkg-deb").arg("--control").arg(file(".deb")).arg(&control)).unwrap();
        for script in ["postinst", "prerm", "postrm"] {
            output(Command::new("sh").arg("-n").arg(control.join(script))).unwrap();
        }
        for line in fs::read_to_string(control.join("conffiles")).unwrap().lines() {
            assert!(installed.join(line.trim_start_matches('/')).is_file(), "{line}");
        }
        let contents = fs::read_to_string(file(".contents.txt")).unwrap();
        assert!(
            contents.contains("./usr/bin/pilot-agent") && contents.contains("/share/man/man1/pilotctl.1.gz"),
            "{contents}"
        );
        let owners = output(Command::new("dpkg-deb").arg("--contents").arg(file(".deb"))).unwrap();
        assert!(owners.lines().all(|line| line.contains(" root/root ")), "{owners}");
    }

    const INSTALLED: &[&str] = &[
        "usr/bin/pilot-discovery",
        "usr/lib/systemd/system/pilot-discovery.service",
        "usr/lib/systemd/system/pilot-agent.service",
        "usr/lib/sysusers.d/pilotage.conf",
        "etc/default/pilot-agent",
        "etc/pilotage/config",
        "usr/share/man/man1/pilotctl.1.gz",
        "usr/share/bash-completion/completions/pilotctl",
        "usr/share/zsh/vendor-completions/_pilotctl",
        "usr/share/fish/vendor_completions.d/pilotctl.fish",
        "usr/share/doc/pilotage/copyright",
        "usr/share/doc/pilotage/docs/README.md",
        "usr/share/doc/pilotage/samples/shop/mesh.yaml",
        "usr/share/pilotage/monitoring/alerts.yaml",
    ];
    const UNPACKED: &[&str] = &[
        "pilot-discovery",
        "pilot-agent",
        "pilotctl",
        "share/man/man1/pilotctl.1.gz",
        "share/bash-completion/completions/pilotctl",
        "README.md",
        "LICENSE",
        "deploy/chart/Chart.yaml",
        "samples/shop/mesh.yaml",
    ];

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
