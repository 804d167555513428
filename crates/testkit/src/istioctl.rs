//! Runs the real istioctl. `cargo xtask setup istioctl` builds it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::timeout;

use crate::kubernetes::ApiServer;
use crate::servers;

/// A command that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// istioctl for one API server.
pub struct Istioctl {
    program: PathBuf,
    kubeconfig: PathBuf,
    home: TempDir,
}

/// What one run printed.
#[derive(Clone, Debug)]
pub struct IstioctlRun {
    pub command: String,
    pub succeeded: bool,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

impl Istioctl {
    pub fn new(server: &ApiServer) -> Istioctl {
        let home = tempfile::tempdir().unwrap_or_else(|e| panic!("could not make a folder: {e}"));
        Istioctl { program: servers::binary("istioctl"), kubeconfig: server.kubeconfig().to_owned(), home }
    }

    /// A folder for its files, which is also where it runs.
    pub fn folder(&self) -> &Path {
        self.home.path()
    }

    /// Runs a command line, split at spaces.
    pub async fn run(&self, line: &str) -> IstioctlRun {
        let mut command = Command::new(&self.program);
        command.args(line.split(' ')).arg("--kubeconfig").arg(&self.kubeconfig).env_clear();
        // `bug-report` runs kubectl, and reads the kubeconfig from here too.
        command.env("PATH", servers::binary("kubectl").parent().unwrap_or(Path::new("")));
        command
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", self.home.path())
            .env("TMPDIR", self.home.path())
            .current_dir(self.home.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let start = Instant::now();
        let output = match timeout(PATIENCE, command.kill_on_drop(true).output()).await {
            Ok(Ok(output)) => output,
            Ok(Err(error)) => panic!("could not run istioctl: {error}"),
            Err(_) => panic!("istioctl {line} did not end within {PATIENCE:?}"),
        };
        IstioctlRun {
            command: line.to_owned(),
            succeeded: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            took: start.elapsed(),
        }
    }
}

impl IstioctlRun {
    /// Its output as rows of cells: cells are separated by two spaces or more, or by tabs.
    pub fn table(&self) -> Vec<Vec<String>> {
        let cells = |line: &str| {
            line.split("  ")
                .flat_map(|part| part.split('\t'))
                .map(str::trim)
                .filter(|c| !c.is_empty())
                .map(str::to_owned)
                .collect()
        };
        self.stdout.lines().map(cells).collect()
    }

    /// Its output, if it succeeded.
    pub fn expect(&self) -> &str {
        assert!(self.succeeded, "istioctl {}: {}\n{}", self.command, self.stderr, self.stdout);
        &self.stdout
    }
}
