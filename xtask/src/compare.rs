//! Obtains istiod and an API server, and runs the live comparison in `crates/discovery/examples/compare`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::setup;

const PARTS: &[&str] = &["etcd", "kube-apiserver", "istiod"];

/// Compares both servers on a generated mesh; any difference is an error. `$PILOTAGE_ISTIOD` names an existing istiod.
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
    if status.success() { Ok(()) } else { bail!("the two servers differ") }
}
