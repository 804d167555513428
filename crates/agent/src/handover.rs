//! Hands the plan to a fresh image of this program by exec. Planning needs megabytes (flags, YAML, a descriptor pool) that
//! the allocator would not return: an idle agent would have 4.8 MB of anonymous memory instead of 1.7 MB (debug build).
//! The process id stays the same.

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

/// First argument of a process that reads its plan from standard input. The original arguments follow, so that `ps` shows
/// them.
pub const COMMAND: &str = "planned";

/// The content of the handover.
#[derive(Debug, Serialize, Deserialize)]
pub struct Handover {
    pub plan: Plan,
    pub logging: Logging,
}

impl Handover {
    /// Replaces this process image by one that runs the plan. Returns only on failure.
    pub fn exec(&self) -> Error {
        match self.try_exec() {
            Ok(error) | Err(error) => error,
        }
    }

    fn try_exec(&self) -> Result<Error> {
        let mut file = File::from(memfd_create("plan", MFdFlags::MFD_CLOEXEC).context("could not create a memfd")?);
        file.write_all(&serde_json::to_vec(self)?)?;
        file.rewind()?;
        let mut words = env::args_os();
        let mut command = Command::new(&self.plan.launch.agent);
        if let Some(name) = words.next() {
            command.arg0(name);
        }
        // A backtrace for every failed probe would load unwind tables into memory.
        command.env("RUST_LIB_BACKTRACE", "0");
        Ok(command.arg(COMMAND).args(words).stdin(file).exec().into())
    }

    /// Reads the plan from standard input.
    pub fn receive() -> Result<Handover> {
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
    fn plan_survives_serialization() {
        let line = "pilot-agent proxy router --ip 10.0.0.1 --id gate.shop --hotRestart --discoveryAddress pilot:15012";
        let Ok(Cli { command: AgentCommand::Proxy(args) }) = Cli::read(line.split(' ').map(str::to_owned)) else {
            panic!("not a proxy command");
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
