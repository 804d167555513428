//! pilotctl, the user's tool: one file or folder per command.

#![forbid(unsafe_code)]

mod demo;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "pilotctl", version, about = "Look into and try out a mesh run by Pilotage")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a small shop on this machine: pilot-discovery, four services, a real Envoy beside each
    Demo(demo::Options),
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Demo(options) => demo::run(options).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pilotctl: {error:#}");
            ExitCode::FAILURE
        }
    }
}
