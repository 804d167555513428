//! The root folder of an image: programs, the libraries they are linked to, CA certificates and a user.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{Image, envoy, output};

const PASSWD: &str = "root:x:0:0:root:/:/sbin/nologin\nistio-proxy:x:1337:1337:istio-proxy:/tmp:/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nistio-proxy:x:1337:\n";
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// The programs of iptables and their names. iptables chooses what to do by its name.
const IPTABLES: &[(&str, &[&str])] = &[
    (
        "/usr/sbin/xtables-nft-multi",
        &["iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"],
    ),
    (
        "/usr/sbin/xtables-legacy-multi",
        &[
            "iptables-legacy",
            "iptables-legacy-save",
            "iptables-legacy-restore",
            "ip6tables-legacy",
            "ip6tables-legacy-save",
            "ip6tables-legacy-restore",
        ],
    ),
];
/// `iptables-nft` and others are the same as the plain names.
const NFT: &[&str] = &["iptables-nft", "iptables-nft-save", "iptables-nft-restore", "ip6tables-nft"];

/// Fills `target` with the files of an image. `built` is the folder of our programs.
pub(super) fn assemble(image: &Image, built: &Path, target: &Path) -> Result<()> {
    let mut files = RootFolder { target, copied: BTreeSet::new() };
    for folder in ["etc/ssl/certs", "etc/istio/proxy", "etc/istio/config", "tmp", "var/lib/istio"] {
        fs::create_dir_all(target.join(folder))?;
    }
    for folder in ["tmp", "etc/istio/proxy", "var/lib/istio"] {
        fs::set_permissions(target.join(folder), fs::Permissions::from_mode(0o1777))?;
    }
    fs::write(target.join("etc/passwd"), PASSWD)?;
    fs::write(target.join("etc/group"), GROUP)?;
    fs::write(target.join("etc/hosts"), "127.0.0.1 localhost\n::1 localhost\n")?;
    files.copy(Path::new(CERTIFICATES), CERTIFICATES)?;
    for binary in image.binaries {
        files.program(&built.join(binary), &format!("/usr/local/bin/{binary}"))?;
    }
    if image.has_envoy {
        files.program(&envoy()?, "/usr/local/bin/envoy")?;
    }
    if image.has_iptables {
        files.iptables()?;
    }
    Ok(())
}

struct RootFolder<'a> {
    target: &'a Path,
    copied: BTreeSet<PathBuf>,
}

impl RootFolder<'_> {
    /// Copies a file, following links, with mode 0755 or 0644.
    fn copy(&mut self, from: &Path, to: &str) -> Result<()> {
        let target = self.target.join(to.trim_start_matches('/'));
        if !self.copied.insert(target.clone()) {
            return Ok(());
        }
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::copy(from, &target).with_context(|| format!("could not copy {}", from.display()))?;
        let is_program = fs::metadata(from)?.permissions().mode() & 0o111 != 0;
        fs::set_permissions(&target, fs::Permissions::from_mode(if is_program { 0o755 } else { 0o644 }))?;
        Ok(())
    }

    /// Copies a program and its libraries.
    fn program(&mut self, from: &Path, to: &str) -> Result<()> {
        self.copy(from, to)?;
        for library in libraries(from)? {
            self.copy(Path::new(&library), &library)?;
        }
        Ok(())
    }

    /// iptables with both backends and all extensions.
    fn iptables(&mut self) -> Result<()> {
        for (program, names) in IPTABLES {
            self.program(Path::new(program), program)?;
            for name in *names {
                self.link(program, name)?;
            }
        }
        for name in NFT {
            self.link(IPTABLES[0].0, name)?;
        }
        let folder = extensions()?;
        for entry in fs::read_dir(&folder).with_context(|| format!("could not read {}", folder.display()))? {
            let path = entry?.path();
            self.copy(&path, &path.to_string_lossy())?;
        }
        Ok(())
    }

    fn link(&self, program: &str, name: &str) -> Result<()> {
        let file = program.rsplit('/').next().unwrap_or(program);
        symlink(file, self.target.join("usr/sbin").join(name)).with_context(|| format!("could not link {name}"))
    }
}

/// Paths of the libraries that a program is linked to, with the loader.
fn libraries(program: &Path) -> Result<Vec<String>> {
    let printed = output(Command::new("ldd").arg(program))?;
    let missing: Vec<&str> = printed.lines().filter(|line| line.contains("not found")).collect();
    if !missing.is_empty() {
        bail!("{} needs libraries that are missing: {}", program.display(), missing.join(", "));
    }
    Ok(linked(&printed))
}

/// The paths in what `ldd` prints.
fn linked(printed: &str) -> Vec<String> {
    let path = |line: &str| {
        let target = line.split_once("=> ").map_or(line, |(_, target)| target);
        let path = target.split_whitespace().next()?;
        path.starts_with('/').then(|| path.to_owned())
    };
    printed.lines().filter_map(path).collect()
}

/// The folder of iptables' extensions.
fn extensions() -> Result<PathBuf> {
    let folders = [format!("/usr/lib/{}-linux-gnu/xtables", std::env::consts::ARCH), "/usr/lib/xtables".to_owned()];
    let found = folders.iter().map(PathBuf::from).find(|folder| folder.is_dir());
    found.with_context(|| format!("iptables has no extensions in {}", folders.join(" or ")))
}

#[cfg(test)]
mod tests {
    use super::linked;

    #[test]
    fn libraries_are_read_from_ldd() {
        let printed = "\tlinux-vdso.so.1 (0x1)\n\tlibm.so.6 => /lib/x/libm.so.6 (0x2)\n\t/lib64/ld.so.2 (0x3)\n";
        assert_eq!(linked(printed), ["/lib/x/libm.so.6", "/lib64/ld.so.2"]);
        assert!(linked("\tstatically linked\n").is_empty());
    }
}
