//! `pilotctl demo --detach` and `pilotctl demo stop`. The detached demo is a new process in a separate session; its
//! output goes to the caller's terminal until the shop is open, then to a log.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, dup2_stderr, dup2_stdout, setsid};

use super::run_folder;

/// Time for a demo to end.
const END: Duration = Duration::from_secs(10);

/// Starts the demo as another process, and returns when the shop is open.
pub(super) async fn start() -> Result<u8> {
    let this = std::env::current_exe().context("could not find this program")?;
    let given = std::env::args_os().skip(1).filter(|argument| argument != "--detach");
    let (reader, writer) = std::io::pipe().context("could not open a pipe")?;
    let errors = writer.try_clone().context("could not open a pipe")?;
    let mut child = Command::new(this)
        .args(given)
        .arg("--detached")
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(errors)
        .spawn()
        .context("could not start the demo")?;
    let copied = tokio::task::spawn_blocking(move || {
        // Ends when the demo closes it: because the shop is open, or because it failed.
        BufReader::new(reader).lines().map_while(Result::ok).for_each(|line| println!("{line}"));
    });
    copied.await.context("could not read the output of the demo")?;
    let deadline = Instant::now() + Duration::from_millis(200);
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().context("could not wait for the demo")? {
            return Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    println!("The demo runs as process {}; `pilotctl demo stop` ends it.", child.id());
    Ok(0)
}

/// Makes the demo independent of the terminal's signals.
pub(super) fn leave_session() -> Result<()> {
    setsid().map(drop).context("could not start a session")
}

/// Writes further output to a log, which ends the caller of `--detach`.
pub(super) fn leave_terminal(folder: &Path) -> Result<()> {
    let path = folder.join("demo.log");
    let log = File::create(&path).with_context(|| format!("could not write {}", path.display()))?;
    dup2_stdout(&log).and_then(|()| dup2_stderr(&log)).context("could not redirect the output")
}

/// Ends the demo that runs, and waits until everything is gone.
pub(super) async fn stop() -> Result<u8> {
    let Some(process) = run_folder::running() else {
        println!("no demo is running");
        return Ok(0);
    };
    kill(Pid::from_raw(process), Signal::SIGTERM).with_context(|| format!("could not end process {process}"))?;
    let deadline = Instant::now() + END;
    while run_folder::running().is_some() {
        if Instant::now() > deadline {
            bail!("the demo (process {process}) did not end within {} s", END.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("the demo has ended");
    Ok(0)
}
