//! Runs the real kubectl.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::kubernetes::ApiServer;
use crate::servers;

/// kubectl for one API server.
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    /// Its cache of the server's kinds.
    home: TempDir,
}

impl Kubectl {
    pub fn new(server: &ApiServer) -> Kubectl {
        let home = tempfile::tempdir().unwrap_or_else(|e| panic!("could not make a folder: {e}"));
        Kubectl { program: servers::binary("kubectl"), kubeconfig: server.kubeconfig().to_owned(), home }
    }

    /// Runs kubectl and returns its output. Panics with its error output.
    pub async fn run(&self, args: &[&str]) -> String {
        self.run_with(args, "").await
    }

    /// `kubectl apply` of YAML or JSON documents.
    pub async fn apply(&self, documents: &str) -> String {
        self.run_with(&["apply", "-f", "-"], documents).await
    }

    /// Like `run`, with text on standard input.
    pub async fn run_with(&self, args: &[&str], input: &str) -> String {
        match self.try_run(args, input).await {
            Ok((output, _)) => output,
            Err(error) => panic!("kubectl {}: {error}", args.join(" ")),
        }
    }

    /// Output and error output, which has the warnings; or the error output of a command that failed.
    pub async fn try_run(&self, args: &[&str], input: &str) -> Result<(String, String), String> {
        let mut command = Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(args).env_clear().env("HOME", self.home.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let input = input.to_owned();
        let ran = tokio::task::spawn_blocking(move || output(command, &input)).await;
        let output = ran.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        let [text, errors] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        if output.status.success() { Ok((text, errors)) } else { Err(errors) }
    }
}

fn output(mut command: Command, input: &str) -> std::io::Result<Output> {
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    child.wait_with_output()
}
