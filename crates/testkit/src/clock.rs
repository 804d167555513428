//! Processes whose wall clock is wrong or jumps, by a library that replaces `clock_gettime`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/clock.c");

/// A library in the folder that moves the clock of a process. Building this project needs a C compiler too.
fn library(folder: &Path) -> PathBuf {
    let path = folder.join("clock.so");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&path).arg(SOURCE).status();
    assert!(built.is_ok_and(|status| status.success()), "could not compile {SOURCE}");
    path
}

/// Environment that moves the clock of a process by some seconds.
pub fn skewed(folder: &Path, seconds: i64) -> Vec<(String, String)> {
    if seconds == 0 {
        return Vec::new();
    }
    let library = library(folder).display().to_string();
    vec![("LD_PRELOAD".to_owned(), library), ("SKEW_SECONDS".to_owned(), seconds.to_string())]
}

/// A clock that jumps while processes run.
pub struct JumpingClock {
    library: PathBuf,
    file: PathBuf,
}

impl JumpingClock {
    /// A right clock, whose files are in this folder.
    pub fn new(folder: &Path) -> JumpingClock {
        let clock = JumpingClock { library: library(folder), file: folder.join("skew") };
        clock.set(0);
        clock
    }

    /// Environment of the processes that use it.
    pub fn env(&self) -> Vec<(String, String)> {
        let pair = |name: &str, path: &Path| (name.to_owned(), path.display().to_string());
        vec![pair("LD_PRELOAD", &self.library), pair("SKEW_FILE", &self.file)]
    }

    /// Moves the clock to this many seconds after the right time.
    pub fn set(&self, seconds: i64) {
        fs::write(&self.file, seconds.to_string()).unwrap_or_else(|e| panic!("could not move the clock: {e}"));
    }
}
