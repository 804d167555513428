//! `pilotctl version`: of this program and of the server.

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use crate::control_plane::{ControlPlaneOptions, UNREACHABLE, is_unreachable};
use crate::output::OutputOptions;

#[derive(Args)]
pub(crate) struct VersionOptions {
    /// Only of this program
    #[arg(long)]
    client: bool,

    #[command(flatten)]
    server: ControlPlaneOptions,

    #[command(flatten)]
    output: OutputOptions,
}

/// Prints versions; returns the exit status.
pub(crate) async fn run(options: &VersionOptions) -> Result<u8> {
    let own = env!("CARGO_PKG_VERSION");
    let (server, status) = match options.client {
        true => (Value::Null, 0),
        false => match options.server.page("/api/v1/status").await {
            Ok(page) => (page["version"].clone(), 0),
            Err(error) if is_unreachable(&error) => {
                eprintln!("pilotctl: {error:#}");
                (Value::Null, UNREACHABLE)
            }
            Err(error) => return Err(error),
        },
    };
    if !options.output.printed(&json!({"client": own, "server": server}))? {
        println!("client {}", cli::version::line());
        if let Some(server) = server.as_str() {
            let note = if server == own { "" } else { " (another version: some commands may not work)" };
            println!("server {server}{note}");
        }
    }
    Ok(status)
}
