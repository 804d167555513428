//! Obtains istiod and an API server, and runs the live comparison (`crates/discovery/examples/compare`).

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::setup;

const PARTS: &[&str] = &["etcd", "kube-apiserver", "istiod"];

/// Compares on a generated mesh; an error where anything differs. `$PILOTAGE_ISTIOD` names an istiod that is there.
pub(crate) fn run(root: &Path, options: &[&str]) -> Result<()> {
    let given = std::env::var_os("PILOTAGE_ISTIOD").is_some();
    let wanted: Vec<&str> = PARTS.iter().copied().filter(|part| !(given && *part == "istiod")).collect();
    let missing = setup::run(root, &wanted)?;
    if !missing.is_empty() {
        bail!("could not obtain {}", missing.join(", "));
    }
    let status = Command::new(env!("CARGO"))
        .current_dir(root)
        .args(["run", "--quiet", "--package", "discovery", "--example", "compare", "--"])
        .args(options)
        .status()
        .context("could not run cargo")?;
    if status.success() { Ok(()) } else { bail!("the two servers answer otherwise") }
}
