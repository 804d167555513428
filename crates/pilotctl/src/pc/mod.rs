//! `pilotctl pc`: the clusters, listeners, routes and endpoints that a proxy is served, with istioctl's columns.

mod rows;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use explain::ProxyConfig;
use serde_json::Value;

use crate::control_plane::{ControlPlaneOptions, UNREACHABLE, escaped, is_unreachable};
use crate::table::table;

#[derive(Args)]
pub(crate) struct PcOptions {
    /// What to print
    #[arg(value_enum)]
    part: ConfigPart,

    /// A connected proxy, NAME.NAMESPACE
    #[arg(required_unless_present = "dump")]
    proxy: Option<String>,

    #[command(flatten)]
    server: ControlPlaneOptions,

    /// File with a config dump of the proxy, used instead of the server
    #[arg(long, conflicts_with = "proxy")]
    dump: Option<PathBuf>,

    /// How to print it
    #[arg(short, long, value_enum, default_value_t = PcFormat::Table)]
    output: PcFormat,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ConfigPart {
    #[value(alias = "clusters")]
    Cluster,
    #[value(alias = "listeners")]
    Listener,
    #[value(alias = "routes")]
    Route,
    #[value(alias = "endpoints")]
    Endpoint,
    All,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PcFormat {
    Table,
    /// The dump itself
    Json,
}

/// Prints the configuration; returns the exit status.
pub(crate) async fn run(options: &PcOptions) -> Result<u8> {
    let dump = match dump(options).await {
        Err(error) if is_unreachable(&error) => {
            eprintln!("pilotctl: {error:#}");
            return Ok(UNREACHABLE);
        }
        dump => dump?,
    };
    if options.output == PcFormat::Json {
        let value: Value = serde_json::from_str(&dump).context("could not read the dump as JSON")?;
        println!("{}", serde_json::to_string_pretty(&part_of(options.part, value))?);
        return Ok(0);
    }
    let config = ProxyConfig::from_dump(&dump)?;
    let parts = match options.part {
        ConfigPart::All => vec![ConfigPart::Cluster, ConfigPart::Listener, ConfigPart::Route, ConfigPart::Endpoint],
        part => vec![part],
    };
    let tables: Vec<String> = parts.into_iter().map(|part| printed(part, &config)).collect();
    print!("{}", tables.join("\n"));
    Ok(0)
}

async fn dump(options: &PcOptions) -> Result<String> {
    if let Some(file) = &options.dump {
        return fs::read_to_string(file).with_context(|| format!("could not read {}", file.display()));
    }
    let proxy = options.proxy.as_deref().unwrap_or_default();
    options.server.text(&format!("/debug/config_dump?include_eds&proxyID={}", escaped(proxy))).await
}

fn printed(part: ConfigPart, config: &ProxyConfig) -> String {
    match part {
        ConfigPart::Cluster => table(&rows::CLUSTER, &rows::clusters(config)),
        ConfigPart::Listener => table(&rows::LISTENER, &rows::listeners(config)),
        ConfigPart::Route => table(&rows::ROUTE, &rows::routes(config)),
        ConfigPart::Endpoint | ConfigPart::All => table(&rows::ENDPOINT, &rows::endpoints(config)),
    }
}

/// The sections of a dump for one part.
fn part_of(part: ConfigPart, mut dump: Value) -> Value {
    let section = match part {
        ConfigPart::Cluster => "ClustersConfigDump",
        ConfigPart::Listener => "ListenersConfigDump",
        ConfigPart::Route => "RoutesConfigDump",
        ConfigPart::Endpoint => "EndpointsConfigDump",
        ConfigPart::All => return dump,
    };
    if let Some(sections) = dump["configs"].as_array_mut() {
        sections.retain(|of| of["@type"].as_str().is_some_and(|kind| kind.ends_with(section)));
    }
    dump
}
