//! `pilot-agent keep`: the few lines between the agent's fork and Envoy's first instruction.
//! The kernel is told to kill this process when the agent dies, however it dies, and exec keeps that promise.
//! A program of our own because Rust allows no safe code between fork and exec.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Error, Result, bail};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};

use crate::args::ExecChildArgs;

/// Turns this process into the program. Returns only if it could not.
pub fn exec_child(args: &ExecChildArgs) -> Error {
    match exec(args) {
        Ok(never) => never,
        Err(error) => error,
    }
}

fn exec(args: &ExecChildArgs) -> Result<Error> {
    let Some((program, rest)) = args.program.split_first() else { bail!("no program given") };
    prctl::set_pdeathsig(Signal::SIGKILL).context("could not tie this process to its parent")?;
    // The agent may have died before the kernel was told.
    if getppid() != Pid::from_raw(args.parent) {
        bail!("the agent that asked for {} is gone", program.display());
    }
    let failure = Command::new(program).args(rest).exec();
    Ok(Error::new(failure).context(format!("could not start {}", program.display())))
}
