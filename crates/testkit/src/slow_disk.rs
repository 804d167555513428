//! Processes whose disk is slow at times, by a library that replaces functions of the C library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/disk.c");

/// A disk that becomes slow while processes run.
pub struct SlowDisk {
    library: PathBuf,
    file: PathBuf,
    /// Opening files below it waits too.
    read: PathBuf,
}

impl SlowDisk {
    /// A fast disk. Its files are in `folder`; programs read theirs in `read`. Building this project needs a C compiler too.
    pub fn new(folder: &Path, read: &Path) -> SlowDisk {
        let library = folder.join("disk.so");
        let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(SOURCE).status();
        assert!(built.is_ok_and(|status| status.success()), "could not compile {SOURCE}");
        let disk = SlowDisk { library, file: folder.join("disk-delay"), read: read.to_owned() };
        disk.delay(Duration::ZERO);
        disk
    }

    /// The environment of a process that uses it, given that without it.
    pub fn env(&self, mut env: Vec<(String, String)>) -> Vec<(String, String)> {
        let library = self.library.display().to_string();
        match env.iter_mut().find(|(name, _)| name == "LD_PRELOAD") {
            Some((_, libraries)) => *libraries = format!("{libraries}:{library}"),
            None => env.push(("LD_PRELOAD".to_owned(), library)),
        }
        let pair = |name: &str, path: &Path| (name.to_owned(), path.display().to_string());
        env.extend([pair("SLOW_FILE", &self.file), pair("SLOW_FOLDER", &self.read)]);
        env
    }

    /// Delays each access to a file by this time from now on.
    pub fn delay(&self, delay: Duration) {
        // Replaced at once: a process may read it at any time.
        let part = self.file.with_extension("part");
        let written = fs::write(&part, delay.as_millis().to_string()).and_then(|()| fs::rename(&part, &self.file));
        written.unwrap_or_else(|e| panic!("could not set the delay of the disk: {e}"));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_slow_disk_delays_reads_and_writes_of_files_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = SlowDisk::new(folder.path(), &folder.path().join("read"));
        fs::create_dir(folder.path().join("read")).expect("a folder");
        fs::write(folder.path().join("read/input"), "text").expect("a file");
        // The shell opens both files with `open`, and `printf` of the shell writes with `write`.
        let took = |script: &str| {
            let begun = Instant::now();
            let mut command = Command::new("sh");
            command.args(["-c", script]).current_dir(folder.path()).envs(disk.env(Vec::new()));
            let input = folder.path().join("read/input");
            let output = command.env("INPUT", input).output().expect("a shell");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            (begun.elapsed(), String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let delay = Duration::from_millis(400);
        disk.delay(delay);
        assert!(took("read -r line < \"$INPUT\" || printf %s \"$line\"").0 >= delay);
        assert!(took("printf text > output").0 >= delay);
        assert_eq!(fs::read_to_string(folder.path().join("output")).expect("a file"), "text");
        disk.delay(Duration::ZERO);
        assert_eq!(took("read -r line < \"$INPUT\" || printf %s \"$line\"").1, "text");
    }
}
