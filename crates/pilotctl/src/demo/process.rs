//! A child process of the demo. Its output goes to a file. It is killed when the demo ends, by the kernel if the demo
//! is killed: `pilot-agent exec-child` asks for that and then becomes the program.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

/// Lines of a log that are printed when its process ends.
const SHOWN_LINES: usize = 8;
/// Time for killed processes to end.
const END: Duration = Duration::from_secs(2);

/// Starts processes. Its thread must live as long as the demo: the kernel kills children when it ends.
pub(super) struct ProcessStarter<'a> {
    pub(super) agent: &'a Path,
    pub(super) logs: &'a Path,
}

impl ProcessStarter<'_> {
    /// Starts a program in a folder.
    pub(super) fn start(
        &self,
        name: &str,
        binary: &Path,
        args: &[String],
        env: &[(&str, &str)],
        folder: &Path,
    ) -> Result<DemoProcess> {
        let log = self.logs.join(format!("{name}.log"));
        let out = File::create(&log).with_context(|| format!("could not write {}", log.display()))?;
        let errors = out.try_clone().with_context(|| format!("could not write {}", log.display()))?;
        let child = dying_with_us(self.agent, binary)
            .args(args)
            .envs(env.iter().copied())
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("could not start {}", self.agent.display()))?;
        Ok(DemoProcess { name: name.to_owned(), child, log })
    }
}

/// A command whose process the kernel kills when this thread ends.
pub(super) fn dying_with_us(agent: &Path, binary: &Path) -> Command {
    let mut command = Command::new(agent);
    command.args(["exec-child", "--parent", &std::process::id().to_string(), "--"]).arg(binary);
    command
}

/// A running process; killed on drop.
pub(super) struct DemoProcess {
    name: String,
    child: Child,
    log: PathBuf,
}

impl DemoProcess {
    /// Returns an error with the last lines of output if the process has exited.
    pub(super) fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait().context("could not read the status of a process")? {
            let output = std::fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<&str> = output.lines().collect();
            let last = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n  ");
            bail!("{} ended with {status}:\n  {last}", self.name);
        }
        Ok(())
    }
}

impl Drop for DemoProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes this process the parent of processes whose parent died, such as the Envoy of a killed agent.
pub(super) fn adopt_orphans() -> Result<()> {
    prctl::set_child_subreaper(true).context("could not become the parent of orphaned processes")
}

/// Waits until no child is left, after all were killed.
pub(super) fn wait_for_all() {
    let deadline = Instant::now() + END;
    while Instant::now() < deadline {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Err(Errno::ECHILD) => return,
            Ok(WaitStatus::StillAlive) => std::thread::sleep(Duration::from_millis(5)),
            _ => {}
        }
    }
    eprintln!("pilotctl: processes of the demo are still ending");
}
