//! A child process of the demo. Its output goes to a file; it is killed when the demo ends.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tokio::process::{Child, Command};

/// A running process; killed on drop.
pub(super) struct DemoProcess {
    name: String,
    child: Child,
    log: PathBuf,
}

impl DemoProcess {
    pub(super) fn start(
        name: &str,
        binary: &Path,
        args: &[String],
        env: &[(&str, &str)],
        folder: &Path,
        logs: &Path,
    ) -> Result<DemoProcess> {
        let log = logs.join(format!("{name}.log"));
        let out = File::create(&log).with_context(|| format!("could not write {}", log.display()))?;
        let errors = out.try_clone().with_context(|| format!("could not write {}", log.display()))?;
        let child = Command::new(binary)
            .args(args)
            .envs(env.iter().copied())
            .current_dir(folder)
            .stdin(std::process::Stdio::null())
            .stdout(out)
            .stderr(errors)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("could not start {}", binary.display()))?;
        Ok(DemoProcess { name: name.to_owned(), child, log })
    }

    /// Returns an error with the last lines of output if the process has exited.
    pub(super) fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait().context("could not read the status of a process")? {
            let output = std::fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<&str> = output.lines().collect();
            bail!("{} ended with {status}:\n{}", self.name, lines[lines.len().saturating_sub(10)..].join("\n"));
        }
        Ok(())
    }
}
