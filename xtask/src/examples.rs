//! `cargo xtask compare`, `chaos` and `soak`: obtains real servers and runs an example of `crates/discovery/examples` on them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::setup;

/// Compares istiod and ours on a generated mesh; any difference is an error. `$PILOTAGE_ISTIOD` names an existing istiod.
pub(crate) fn compare(root: &Path, options: &[&str]) -> Result<()> {
    let has_istiod = std::env::var_os("PILOTAGE_ISTIOD").is_some();
    let parts: &[&str] = if has_istiod { &["etcd", "kube-apiserver"] } else { &["etcd", "kube-apiserver", "istiod"] };
    run(root, "compare", parts, options).context("the two servers differ")
}

/// Injects faults and checks the promises; a broken one is an error, and so is a round after which a proxy lacks something.
pub(crate) fn chaos(root: &Path, options: &[&str]) -> Result<()> {
    run(root, "chaos", &["envoy", "etcd", "kube-apiserver", "consul"], options).context("a promise was broken")
}

/// Runs a mixed load for a long time; growth of memory or a failed request is an error.
pub(crate) fn soak(root: &Path, options: &[&str]) -> Result<()> {
    run(root, "soak", &["envoy"], options).context("the goals were missed")
}

fn run(root: &Path, example: &str, parts: &[&str], options: &[&str]) -> Result<()> {
    let missing = setup::run(root, parts)?;
    if !missing.is_empty() {
        bail!("could not obtain {}", missing.join(", "));
    }
    let status = Command::new(env!("CARGO"))
        .current_dir(root)
        .args(["run", "--quiet", "--package", "discovery", "--example", example, "--"])
        .args(options)
        .status()
        .context("could not run cargo")?;
    if status.success() { Ok(()) } else { bail!("{example} failed") }
}
