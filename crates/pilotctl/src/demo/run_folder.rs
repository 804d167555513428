//! The demo's folder: logs, sockets and the id of its process. One per user, so that a second demo finds the first one.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::unistd::getuid;

use super::janitor::Janitor;

const PROCESS: &str = "pid";

/// The folder of a demo that runs. It is locked as long as the demo's process lives.
pub(super) struct RunFolder {
    path: PathBuf,
    lock: File,
    janitor: Option<Janitor>,
}

impl RunFolder {
    /// Takes the folder, empty. Fails if another demo has it.
    pub(super) fn take() -> Result<RunFolder> {
        let path = path();
        let make = || DirBuilder::new().mode(0o700).recursive(true).create(&path);
        loop {
            make().with_context(|| format!("could not make {}", path.display()))?;
            let lock = open(&path)?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let of = process(&path).map_or_else(String::new, |id| format!(" (process {id})"));
                    bail!("another demo is running{of}; `pilotctl demo stop` ends it");
                }
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("could not lock {}", path.display()));
                }
            }
            // The demo that had it may have removed it since.
            if fs::metadata(&path).is_ok_and(|now| lock.metadata().is_ok_and(|of| of.ino() == now.ino())) {
                let mut folder = RunFolder { path, lock, janitor: None };
                folder.empty()?;
                folder.janitor = Some(Janitor::start(&folder.path)?);
                return Ok(folder);
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes what an earlier demo left, and notes the process.
    fn empty(&self) -> Result<()> {
        let clear = || {
            for entry in fs::read_dir(&self.path)? {
                let path = entry?.path();
                if path.is_dir() && !path.is_symlink() { fs::remove_dir_all(&path)? } else { fs::remove_file(&path)? }
            }
            fs::write(self.path.join(PROCESS), std::process::id().to_string())
        };
        clear().with_context(|| format!("could not write to {}", self.path.display()))
    }

    /// Leaves the folder as it is when this process ends.
    pub(super) fn dismiss_janitor(&mut self) {
        if let Some(janitor) = self.janitor.take() {
            janitor.dismiss();
        }
    }

    pub(super) fn remove(mut self) {
        self.dismiss_janitor();
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("pilotctl: could not remove {}: {error}", self.path.display());
        }
        drop(self.lock);
    }
}

/// The process of the demo that runs now, if any.
pub(super) fn running() -> Option<i32> {
    let path = path();
    match open(&path).ok()?.try_lock() {
        Err(TryLockError::WouldBlock) => process(&path),
        _ => None,
    }
}

fn path() -> PathBuf {
    std::env::temp_dir().join(format!("pilotage-demo-{}", getuid()))
}

/// Opens the folder, which must be the user's own: others may write to the folder of temporary files.
fn open(path: &Path) -> Result<File> {
    let folder = File::open(path).with_context(|| format!("could not open {}", path.display()))?;
    let metadata = fs::symlink_metadata(path).with_context(|| format!("could not open {}", path.display()))?;
    if !metadata.is_dir() || metadata.uid() != getuid().as_raw() {
        bail!("could not use {}: it is not a folder of this user", path.display());
    }
    Ok(folder)
}

fn process(path: &Path) -> Option<i32> {
    fs::read_to_string(path.join(PROCESS)).ok()?.trim().parse().ok()
}
