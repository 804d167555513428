//! One Envoy process from start to exit. It is killed on drop, so it never outlives the agent.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use http::Method;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::exit::EnvoyExit;
use crate::http_client;

/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(1);
/// Interval of polling an Envoy that starts.
const POLL: Duration = Duration::from_millis(50);
/// Timeout of one request to the admin port.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Everything that the task of one epoch needs.
pub(super) struct EpochTask {
    pub number: u32,
    /// The agent's binary, which executes Envoy.
    pub agent: PathBuf,
    /// Arguments of a run that only checks the bootstrap, before the process that takes over is started.
    pub check: Option<Vec<OsString>>,
    pub line: Vec<OsString>,
    /// File in which Envoy writes the address of its admin port; `None` if the bootstrap has no admin port.
    pub admin_file: Option<PathBuf>,
    /// Time until the admin port must be open.
    pub start_timeout: Duration,
    pub control: EpochControl,
}

/// Connects the supervisor with the task of an epoch; clones share it.
#[derive(Clone, Default)]
pub(super) struct EpochControl {
    /// Ends the process with SIGTERM, then SIGKILL.
    pub terminate: CancellationToken,
    /// Ends the process with SIGKILL: it cannot serve any more.
    pub kill: CancellationToken,
    live: Arc<AtomicBool>,
}

impl EpochControl {
    /// True once Envoy has its configuration and has taken over from the previous epoch. The port of an Envoy without
    /// admin port is not known, so it counts as live.
    pub(super) fn is_live(&self) -> bool {
        self.live.load(Ordering::Relaxed)
    }

    fn set_live(&self) {
        self.live.store(true, Ordering::Relaxed);
    }
}

impl EpochTask {
    /// Runs the process until it exits, is ended, or has not opened its admin port in time.
    pub(super) async fn run(self) -> EnvoyExit {
        match self.start_and_wait().await {
            Ok(exit) => exit,
            Err(error) => EnvoyExit::NotStarted(format!("{error:#}")),
        }
    }

    async fn start_and_wait(&self) -> Result<EnvoyExit> {
        if let Some(line) = &self.check
            && let Some(exit) = self.rejected(line).await?
        {
            return Ok(exit);
        }
        if let Some(file) = &self.admin_file {
            // An agent that was killed leaves the file.
            let _ = std::fs::remove_file(file);
        }
        let mut child = start(&self.agent, &self.line)?;
        info!(epoch = self.number, pid = child.id(), "started Envoy with {:?}", &self.line[4..]);
        Ok(tokio::select! {
            status = child.wait() => match status {
                Ok(status) => EnvoyExit::from_status(status),
                Err(error) => EnvoyExit::NotStarted(format!("could not be waited for: {error}")),
            },
            () = self.watch_start() => {
                killed(child).await;
                EnvoyExit::NoAdminPort(self.start_timeout)
            }
            () = self.control.terminate.cancelled() => terminated(child).await,
            () = self.control.kill.cancelled() => {
                killed(child).await;
                EnvoyExit::Aborted
            }
        })
    }

    /// Checks the bootstrap; returns why Envoy must not be started. A check that hangs proves nothing.
    async fn rejected(&self, line: &[OsString]) -> Result<Option<EnvoyExit>> {
        let mut child = start(&self.agent, line)?;
        tokio::select! {
            checked = timeout(self.start_timeout, child.wait()) => {
                let is_rejected = checked.is_ok_and(|status| !status.is_ok_and(|status| status.success()));
                Ok(is_rejected.then_some(EnvoyExit::InvalidBootstrap))
            }
            () = self.control.terminate.cancelled() => Ok(Some(EnvoyExit::Aborted)),
            () = self.control.kill.cancelled() => Ok(Some(EnvoyExit::Aborted)),
        }
    }

    /// Marks the epoch live when Envoy is. Returns only if the admin port was not opened in time.
    async fn watch_start(&self) {
        let Some(file) = &self.admin_file else {
            self.control.set_live();
            return std::future::pending().await;
        };
        let Ok(address) = timeout(self.start_timeout, admin_address(file)).await else { return };
        // The time until Envoy is live depends on the control plane and is not limited.
        while !is_live(&address).await {
            sleep(POLL).await;
        }
        self.control.set_live();
        std::future::pending().await
    }
}

/// The address that Envoy wrote when it opened its admin port.
async fn admin_address(file: &Path) -> String {
    loop {
        match tokio::fs::read_to_string(file).await {
            Ok(address) if !address.is_empty() => return address,
            _ => sleep(POLL).await,
        }
    }
}

async fn is_live(admin: &str) -> bool {
    let answer = http_client::send(ADMIN_TIMEOUT, Method::GET, admin, "/ready", String::new()).await;
    answer.is_ok_and(|body| body.starts_with(b"LIVE"))
}

/// Starts the agent's binary with arguments that make it execute Envoy.
fn start(agent: &Path, line: &[OsString]) -> Result<Child> {
    let mut command = Command::new(agent);
    // Own process group: signals from the terminal go to the agent only. Output is inherited.
    command.args(line).stdin(Stdio::null()).process_group(0).kill_on_drop(true);
    command.spawn().with_context(|| format!("could not start {}", agent.display()))
}

async fn terminated(mut child: Child) -> EnvoyExit {
    if let Some(id) = child.id().and_then(|id| i32::try_from(id).ok()) {
        let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
    }
    if timeout(GRACE, child.wait()).await.is_err() {
        killed(child).await;
    }
    EnvoyExit::Aborted
}

async fn killed(mut child: Child) {
    if let Err(error) = child.kill().await {
        warn!("could not kill Envoy: {error}");
    }
}

/// The bootstrap file of an epoch; removed on drop if it was generated.
#[derive(Debug)]
pub struct EpochBootstrap {
    pub path: PathBuf,
    pub remove: bool,
    /// File in which Envoy writes the address of its admin port; `None` if the bootstrap has none.
    pub admin_file: Option<PathBuf>,
}

impl Drop for EpochBootstrap {
    fn drop(&mut self) {
        if self.remove
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            warn!("could not remove {}: {error}", self.path.display());
        }
        if let Some(file) = &self.admin_file {
            let _ = std::fs::remove_file(file);
        }
    }
}
