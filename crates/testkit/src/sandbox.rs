//! Shell scripts in network and process namespaces of their own: fixed ports are free there, and no process outlives the
//! script. Needs root, or a kernel that lets users make namespaces, and iproute2.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A folder for scripts, which sees programs of this workspace and the real servers on its PATH.
pub struct Sandbox {
    folder: TempDir,
    path: String,
}

/// What a script did.
#[derive(Debug)]
pub struct SandboxRun {
    pub status: ExitStatus,
    /// Lines of both output streams in order.
    pub output: String,
    pub took: Duration,
}

impl SandboxRun {
    /// The output of a script that must succeed.
    pub fn good(self) -> String {
        assert!(self.status.success(), "{} after {:?}:\n{}", self.status, self.took, self.output);
        self.output
    }
}

impl Sandbox {
    /// `programs` are folders that come first on the PATH.
    pub fn new(programs: &[PathBuf]) -> Sandbox {
        let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("could not make a folder: {e}"));
        for name in ["work", "tmp"] {
            fs::create_dir(folder.path().join(name)).unwrap_or_else(|e| panic!("could not make a folder: {e}"));
        }
        let own = env::var_os("PATH").unwrap_or_default();
        let all = programs.iter().cloned().chain(env::split_paths(&own));
        let path = env::join_paths(all).unwrap_or_else(|e| panic!("could not make a PATH: {e}"));
        Sandbox { folder, path: path.to_string_lossy().into_owned() }
    }

    /// The folder in which scripts run.
    pub fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    /// The folder of temporary files.
    pub fn temporary(&self) -> PathBuf {
        self.folder.path().join("tmp")
    }

    /// Copies a folder into the folder in which scripts run.
    pub fn copy(&self, from: &Path, name: &str) {
        copy(from, &self.work().join(name)).unwrap_or_else(|e| panic!("could not copy {}: {e}", from.display()));
    }

    /// Runs a bash script until it ends or the limit has passed, which kills it. The first command that fails ends it.
    pub fn run(&self, script: &str, environment: &[(&str, &str)], limit: Duration) -> SandboxRun {
        let at = |name: &str| self.folder.path().join(name);
        let (file, log) = (at("script.sh"), at("output.log"));
        let script = format!("set -e\nip link set lo up\n{script}\n");
        fs::write(&file, script).unwrap_or_else(|e| panic!("could not write the script: {e}"));
        let output = File::create(&log).unwrap_or_else(|e| panic!("could not make the log: {e}"));
        let errors = output.try_clone().unwrap_or_else(|e| panic!("could not make the log: {e}"));
        let mut command = Command::new("unshare");
        command.args(if is_root() { &[][..] } else { &["--user", "--map-root-user"] });
        command
            .args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash"])
            .arg(&file)
            .current_dir(self.work())
            .env("PATH", &self.path)
            .env("TMPDIR", self.temporary())
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors);
        let begun = Instant::now();
        let mut child = command.spawn().unwrap_or_else(|e| panic!("could not run unshare: {e}"));
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if begun.elapsed() < limit => thread::sleep(Duration::from_millis(5)),
                _ => {
                    let _ = child.kill();
                    let _ = child.wait();
                    panic!("the script did not end within {limit:?}:\n{}", read(&log));
                }
            }
        };
        SandboxRun { status, output: read(&log), took: begun.elapsed() }
    }
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() { copy(&path, &target)? } else { fs::copy(&path, &target).map(drop)? }
    }
    Ok(())
}

fn read(log: &Path) -> String {
    String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned()
}

fn is_root() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|text| text.lines().any(|line| line.starts_with("Uid:\t0\t")))
}
