//! The Debian package: programs, units with their settings, the user of the proxy, man pages, completions and documents. Nothing is started by
//! installing it, because it has no configuration yet; removing it stops what runs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use super::{copy_into, output};

/// Files of the project and where the package has them.
const FILES: &[(&str, &str)] = &[
    ("deploy/systemd/pilot-discovery.service", "usr/lib/systemd/system/pilot-discovery.service"),
    ("deploy/systemd/pilot-agent.service", "usr/lib/systemd/system/pilot-agent.service"),
    ("deploy/systemd/pilot-discovery.default", "etc/default/pilot-discovery"),
    ("deploy/systemd/pilot-agent.default", "etc/default/pilot-agent"),
    ("deploy/systemd/pilotage.sysusers", "usr/lib/sysusers.d/pilotage.conf"),
    ("LICENSE", "usr/share/doc/pilotage/copyright"),
    ("README.md", "usr/share/doc/pilotage/README.md"),
    ("CHANGELOG.md", "usr/share/doc/pilotage/changelog"),
    ("SECURITY.md", "usr/share/doc/pilotage/SECURITY.md"),
];
/// Folders of the project and where the package has them.
const FOLDERS: &[(&str, &str)] = &[
    ("docs", "usr/share/doc/pilotage/docs"),
    ("samples", "usr/share/doc/pilotage/samples"),
    ("deploy/monitoring", "usr/share/pilotage/monitoring"),
];
/// Files that users edit.
const SETTINGS: &str = "/etc/default/pilot-discovery\n/etc/default/pilot-agent\n";

const AFTER_INSTALL: &str = "#!/bin/sh
set -e
if [ \"$1\" = configure ]; then
    if command -v systemd-sysusers >/dev/null; then systemd-sysusers pilotage.conf; fi
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        # Services that run get the new version; none is started.
        systemctl try-restart pilot-discovery.service pilot-agent.service
    fi
fi
";
const BEFORE_REMOVAL: &str = "#!/bin/sh
set -e
if [ \"$1\" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now pilot-agent.service pilot-discovery.service
fi
";
const AFTER_REMOVAL: &str = "#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
if [ \"$1\" = purge ]; then rm -rf /var/lib/pilotage /var/lib/private/pilotage /var/lib/pilotage-agent; fi
";

/// Builds the package; returns its name.
pub(super) fn package(root: &Path, dist: &Path, version: &str, programs: &[PathBuf], time: &str) -> Result<String> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => bail!("no Debian architecture for {other}"),
    };
    let stage = dist.join("debian");
    copy_into(programs, &stage.join("usr/bin"))?;
    for (from, to) in FILES {
        let to = stage.join(to);
        fs::create_dir_all(to.parent().unwrap_or(&stage))?;
        fs::copy(root.join(from), &to)?;
    }
    for (from, to) in FOLDERS {
        let to = stage.join(to);
        fs::create_dir_all(to.parent().unwrap_or(&stage))?;
        output(Command::new("cp").arg("--recursive").arg(root.join(from)).arg(&to))?;
    }
    output(Command::new("cp").arg("--recursive").arg(dist.join("share")).arg(stage.join("usr")))?;
    fs::create_dir_all(stage.join("etc/pilotage/config"))?;
    output(Command::new("chmod").args(["--recursive", "u=rwX,go=rX"]).arg(&stage))?;
    let scripts = stage.join("DEBIAN");
    fs::create_dir(&scripts)?;
    let size = output(Command::new("du").args(["--summarize", "--apparent-size", "--block-size=1K"]).arg(&stage))?;
    let size = size.split_whitespace().next().unwrap_or("0").to_owned();
    fs::write(scripts.join("control"), control(version, architecture, &size))?;
    fs::write(scripts.join("conffiles"), SETTINGS)?;
    for (name, text) in [("postinst", AFTER_INSTALL), ("prerm", BEFORE_REMOVAL), ("postrm", AFTER_REMOVAL)] {
        fs::write(scripts.join(name), text)?;
        fs::set_permissions(scripts.join(name), fs::Permissions::from_mode(0o755))?;
    }
    let name = format!("pilotage_{version}_{architecture}.deb");
    let mut build = Command::new("dpkg-deb");
    build.current_dir(dist).env("SOURCE_DATE_EPOCH", time).args([
        "--root-owner-group",
        "-Zxz",
        "--build",
        "debian",
        &name,
    ]);
    output(&mut build)?;
    fs::remove_dir_all(&stage)?;
    Ok(name)
}

fn control(version: &str, architecture: &str, size: &str) -> String {
    format!(
        "Package: pilotage\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: The Pilotage authors <pilotage@localhost>\n\
         Installed-Size: {size}\nDepends: libc6 (>= 2.34), libgcc-s1\nRecommends: iptables\nSection: net\nPriority: optional\n\
         Description: Control plane for Envoy\n \
         pilot-discovery serves Envoys over xDS, from files, Consul, Eureka, Kubernetes and\n other registries. \
         pilot-agent runs one Envoy. pilotctl shows and checks both.\n"
    )
}
