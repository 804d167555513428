//! One Envoy process from start to exit. It is killed on drop, so it never outlives the agent.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::exit::EnvoyExit;

/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(1);

/// Starts the agent's binary with arguments that make it execute Envoy.
pub(super) fn start(agent: &Path, line: &[OsString]) -> Result<Child> {
    let mut command = Command::new(agent);
    // Own process group: signals from the terminal go to the agent only. Output is inherited.
    command.args(line).stdin(Stdio::null()).process_group(0).kill_on_drop(true);
    command.spawn().with_context(|| format!("could not start {}", agent.display()))
}

/// Waits for the process to exit, or ends it when aborted.
pub(super) async fn wait(mut child: Child, abort: CancellationToken) -> EnvoyExit {
    tokio::select! {
        status = child.wait() => match status {
            Ok(status) => EnvoyExit::from_status(status),
            Err(error) => EnvoyExit::NotStarted(format!("could not be waited for: {error}")),
        },
        () = abort.cancelled() => end(child).await,
    }
}

async fn end(mut child: Child) -> EnvoyExit {
    if let Some(id) = child.id().and_then(|id| i32::try_from(id).ok()) {
        let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
    }
    if timeout(GRACE, child.wait()).await.is_err()
        && let Err(error) = child.kill().await
    {
        warn!("could not kill Envoy: {error}");
    }
    EnvoyExit::Aborted
}

/// The bootstrap file of an epoch; removed on drop if it was generated.
#[derive(Debug)]
pub struct EpochBootstrap {
    pub path: PathBuf,
    pub remove: bool,
}

impl Drop for EpochBootstrap {
    fn drop(&mut self) {
        if self.remove
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            warn!("could not remove {}: {error}", self.path.display());
        }
    }
}
