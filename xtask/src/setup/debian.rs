//! Tools from Debian packages, installed if they are missing and the user may do so.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::tool;

/// A tool and the packages that contain it and what it needs.
pub(super) struct Tool {
    pub(super) program: &'static str,
    pub(super) packages: &'static [&'static str],
    /// Succeeds if the tool can be used: an installed tool may lack permissions.
    pub(super) trial: &'static [&'static str],
}

/// iptables, and iproute2 for network namespaces to test it in.
pub(super) const IPTABLES: Tool = Tool {
    program: "iptables",
    packages: &["iptables", "iproute2"],
    trial: &["unshare", "--net", "iptables", "--table", "nat", "--list"],
};

/// Address translation of Services in a cluster.
pub(super) const NFTABLES: Tool = Tool {
    program: "nft",
    packages: &["nftables", "iproute2"],
    trial: &["unshare", "--net", "nft", "add", "table", "ip", "trial"],
};

/// Counts instructions.
pub(super) const VALGRIND: Tool =
    Tool { program: "valgrind", packages: &["valgrind"], trial: &["valgrind", "--version"] };

/// A browser for the tests of the console.
pub(super) const CHROMIUM: Tool =
    Tool { program: "chromium", packages: &["chromium"], trial: &["chromium", "--version"] };

/// Drives the browser.
pub(super) const CHROMEDRIVER: Tool =
    Tool { program: "chromedriver", packages: &["chromium-driver"], trial: &["chromedriver", "--version"] };

/// Builds servers in Java.
pub(super) const MAVEN: Tool = Tool { program: "mvn", packages: &["maven"], trial: &["mvn", "--version"] };

/// The path of the program.
pub(super) fn get(wanted: &Tool) -> Result<PathBuf> {
    let found = match find(wanted.program) {
        Some(found) => found,
        None => {
            install(wanted)?;
            find(wanted.program).with_context(|| format!("no {} after installing it", wanted.program))?
        }
    };
    let (program, arguments) =
        wanted.trial.split_first().with_context(|| format!("{} has no trial command", wanted.program))?;
    tool(Command::new(program).args(arguments)).with_context(|| format!("{} cannot be used here", wanted.program))?;
    Ok(found)
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|folder| folder.join(program)).find(|file| file.is_file())
}

fn install(wanted: &Tool) -> Result<()> {
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!("not installed, and no apt-get to install {} with", wanted.packages.join(" "));
    }
    let mut install = Command::new("apt-get");
    install.args(["install", "--yes", "--no-install-recommends"]).args(wanted.packages);
    install.env("DEBIAN_FRONTEND", "noninteractive");
    if tool(&mut install).is_err() {
        // The package list may be missing or out of date.
        tool(Command::new("apt-get").args(["update"]))?;
        tool(&mut install)?;
    }
    Ok(())
}
