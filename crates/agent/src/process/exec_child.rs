//! `pilot-agent exec-child`: executes Envoy such that the kernel kills it when the agent dies (PR_SET_PDEATHSIG, which
//! survives exec). It is a separate command because Rust allows no safe code between fork and exec.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Error, Result, bail};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};

use crate::args::ExecChildArgs;

/// Executes the program in this process. Returns only on failure.
pub fn exec_child(args: &ExecChildArgs) -> Error {
    match exec(args) {
        Ok(never) => never,
        Err(error) => error,
    }
}

fn exec(args: &ExecChildArgs) -> Result<Error> {
    let Some((program, rest)) = args.program.split_first() else { bail!("no program given") };
    prctl::set_pdeathsig(Signal::SIGKILL).context("could not set the parent death signal")?;
    // The agent may have died before the signal was set.
    if getppid() != Pid::from_raw(args.parent) {
        bail!("could not start {}: the agent has exited", program.display());
    }
    let failure = Command::new(program).args(rest).exec();
    Ok(Error::new(failure).context(format!("could not start {}", program.display())))
}
