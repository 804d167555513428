//! From planning to keeping. What makes a plan (flags, YAML, descriptors) is megabytes that no later moment needs,
//! so the planner hands its plan to a fresh image of this program, by exec: the process stays the same to everybody.

use std::env;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Error, Result};
use cli::args::Logging;
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use crate::plan::Plan;

/// The first word on the command line of a process that finds its plan on standard input. The words of the planner
/// follow, for those who look at lists of processes.
pub const COMMAND: &str = "planned";

/// All that the keeper is told.
#[derive(Debug, Serialize, Deserialize)]
pub struct Handover {
    pub plan: Plan,
    pub logging: Logging,
}

impl Handover {
    /// Turns this process into one that keeps the plan. Returns only if it could not.
    pub fn give(&self) -> Error {
        match self.exec() {
            Ok(never) => never,
            Err(error) => error,
        }
    }

    fn exec(&self) -> Result<Error> {
        let mut file = File::from(memfd_create("plan", MFdFlags::MFD_CLOEXEC).context("could not make a file")?);
        file.write_all(&serde_json::to_vec(self)?)?;
        file.rewind()?;
        let mut words = env::args_os();
        let mut command = Command::new(&self.plan.launch.agent);
        if let Some(name) = words.next() {
            command.arg0(name);
        }
        // Errors are told by their causes. A trace of every failed probe would only bring unwind tables into memory.
        command.env("RUST_LIB_BACKTRACE", "0");
        Ok(command.arg(COMMAND).args(words).stdin(file).exec().into())
    }

    /// Takes what the planner gave.
    pub fn take() -> Result<Handover> {
        let mut text = Vec::new();
        io::stdin().read_to_end(&mut text).context("could not read the plan")?;
        serde_json::from_slice(&text).context("could not read the plan")
    }
}

#[cfg(test)]
mod tests {
    use super::Handover;
    use cli::args::Logging;

    use crate::args::{AgentCommand, Cli};
    use crate::environment::Environment;
    use crate::plan::plan;

    #[test]
    fn what_is_given_is_what_is_taken() {
        let line = "pilot-agent proxy router --ip 10.0.0.1 --id gate.shop --hotRestart --discoveryAddress pilot:15012";
        let Ok(Cli { command: AgentCommand::Proxy(args) }) = Cli::read(line.split(' ').map(str::to_owned)) else {
            panic!("a line that clap knows");
        };
        let environment: Environment = [
            ("XDS_HEADER_X-TOKEN", "caf\u{e9}"),
            ("PROXY_CONFIG", "{tracing: {zipkin: {address: 'zipkin:9411'}}, proxyMetadata: {DNS_CAPTURE: 'true'}}"),
        ]
        .into_iter()
        .collect();
        let logging = Logging { output_level: Some("debug".to_owned()), as_json: true };
        let given = Handover { plan: plan(&args, &environment).unwrap(), logging };
        let taken: Handover = serde_json::from_slice(&serde_json::to_vec(&given).unwrap()).unwrap();
        assert_eq!(format!("{taken:?}"), format!("{given:?}"));
    }
}
