//! The command line of `get`, and where it reads from.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde_json::Value;

use super::server::ServerOptions;
use crate::control_plane::ControlPlaneOptions;

/// As for all commands that ask a running pilot-discovery.
const ADDRESS: &str = "127.0.0.1:15014";

#[derive(Args)]
pub(crate) struct GetOptions {
    /// Kind: plural, singular or short name, with a group or without
    pub(super) kind: String,

    /// Name of an object; default: all
    #[arg(default_value = "")]
    pub(super) name: String,

    /// Objects of all namespaces
    #[arg(short = 'A', long)]
    pub(super) all_namespaces: bool,

    /// Only objects whose labels match
    #[arg(short = 'l', long, default_value = "")]
    pub(super) selector: String,

    /// Resource version to read instead of the current one; the configuration API keeps the last ones
    #[arg(long, default_value = "")]
    pub(super) at: String,

    /// How to print objects
    #[arg(short, long, value_enum, default_value_t = ObjectFormat::Table)]
    pub(super) output: ObjectFormat,

    #[command(flatten)]
    pub(super) server: ServerOptions,

    /// Monitoring address of a running pilot-discovery, HOST:PORT, to read from instead of a cluster or the configuration
    /// API. Without any of them that of PILOTCTL_SERVER, or 127.0.0.1:15014
    #[arg(long = "server", value_name = "SERVER", conflicts_with_all = ["kubeconfig", "context"])]
    address: Option<String>,

    /// File that `pilotctl bundle` wrote, used instead of a server
    #[arg(long, conflicts_with_all = ["address", "kubeconfig", "context"])]
    bundle: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ObjectFormat {
    Table,
    /// A table with more columns
    Wide,
    Yaml,
    Json,
    Name,
}

impl ObjectFormat {
    /// Prints a value for programs.
    pub(super) fn print(self, value: &Value) -> Result<()> {
        match self {
            ObjectFormat::Yaml => print!("{}", serde_saphyr::to_string(value).context("could not write YAML")?),
            _ => println!("{value:#}"),
        }
        Ok(())
    }
}

impl GetOptions {
    /// The running pilot-discovery to ask; `None` if there is a cluster or a configuration API.
    pub(super) async fn running(&self) -> Option<ControlPlaneOptions> {
        let is_given = self.address.is_some() || self.bundle.is_some();
        if !is_given && self.server.is_configured().await {
            return None;
        }
        let from_environment = || env::var("PILOTCTL_SERVER").ok().filter(|address| !address.is_empty());
        let server = self.address.clone().or_else(from_environment).unwrap_or_else(|| ADDRESS.to_owned());
        Some(ControlPlaneOptions { server, bundle: self.bundle.clone() })
    }
}
