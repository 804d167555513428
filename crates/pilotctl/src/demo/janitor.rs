//! Removes the demo's folder if the demo is killed. The janitor is a child that waits for the end of a pipe which only the
//! demo has open: a byte before the end means that the demo ended in order and needs no help.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Time for processes of a killed demo to end. They may write files until then.
const END: Duration = Duration::from_secs(5);

/// The janitor of a running demo.
pub(super) struct Janitor(Child);

impl Janitor {
    pub(super) fn start(folder: &Path) -> Result<Janitor> {
        let this = std::env::current_exe().context("could not find this program")?;
        let child = Command::new(this)
            .args(["demo", "janitor"])
            .arg(folder)
            .stdin(Stdio::piped())
            // The caller of `--detach` reads the demo's output to its end.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Signals of the terminal, and those to the demo's group, are not for it.
            .process_group(0)
            .spawn()
            .context("could not start the process that removes files of a killed demo")?;
        Ok(Janitor(child))
    }

    /// Ends it; the folder stays as it is.
    pub(super) fn dismiss(mut self) {
        if let Some(mut pipe) = self.0.stdin.take() {
            let _ = pipe.write_all(b".");
        }
        let _ = self.0.wait();
    }
}

/// Waits until the demo has ended, and removes its folder unless another demo has it.
pub(super) fn run(folder: &Path) -> Result<()> {
    let opened = File::open(folder).with_context(|| format!("could not open {}", folder.display()))?;
    let mut byte = [0];
    if std::io::stdin().read(&mut byte).context("could not wait for the demo")? > 0 {
        return Ok(());
    }
    let deadline = Instant::now() + END;
    while Instant::now() < deadline {
        if opened.try_lock().is_ok() && is_at(&opened, folder) && fs::remove_dir_all(folder).is_ok() {
            break;
        }
        if !is_at(&opened, folder) {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Whether the path still leads to the opened folder.
fn is_at(opened: &File, path: &Path) -> bool {
    let known = opened.metadata().map(|of| (of.dev(), of.ino()));
    fs::symlink_metadata(path).is_ok_and(|now| known.is_ok_and(|known| known == (now.dev(), now.ino())))
}
