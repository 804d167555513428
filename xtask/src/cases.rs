//! Imports recorded cases into `tests/cases`, with `crates/testkit/examples/import_cases.rs`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Copies the cases of the named topics, or all, from the recorder's folder `from`.
pub(crate) fn import(root: &Path, from: &Path, topics: &[&str]) -> Result<()> {
    let status = Command::new(env!("CARGO"))
        .current_dir(root)
        .args(["run", "--quiet", "--package", "testkit", "--example", "import_cases", "--"])
        .arg(std::path::absolute(from)?)
        .args(topics)
        .status()
        .context("could not run cargo")?;
    if status.success() { Ok(()) } else { bail!("could not import the cases") }
}
