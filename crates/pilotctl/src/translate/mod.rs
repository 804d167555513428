//! `pilotctl translate`: what a proxy would get from configuration files, without a server.

pub(crate) mod offline;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use explain::ProxyConfig;

use crate::output::{ListFormat, OutputOptions};
use crate::pc::tables;
use offline::{OfflineMesh, OfflineNode};

#[derive(Args)]
pub(crate) struct TranslateOptions {
    /// Files and folders with configuration: objects, Services, EndpointSlices, Pods; `-` reads standard input
    #[arg(required = true)]
    files: Vec<PathBuf>,

    #[command(flatten)]
    node: OfflineNode,

    /// Namespace of objects that do not name one
    #[arg(short, long, default_value = "default")]
    namespace: String,

    /// File with the mesh config
    #[arg(long)]
    mesh_config: Option<PathBuf>,

    #[command(flatten)]
    output: OutputOptions,
}

/// Prints the resources; returns the exit status.
pub(crate) async fn run(options: &TranslateOptions) -> Result<u8> {
    let mesh = OfflineMesh::read(&options.files, &options.namespace, options.mesh_config.as_deref())?;
    mesh.mistakes().iter().for_each(|mistake| eprintln!("{mistake}"));
    let dump = mesh.dump(&options.node)?;
    match options.output.output {
        ListFormat::Json | ListFormat::Yaml => _ = options.output.printed(&dump)?,
        ListFormat::Table | ListFormat::Wide => print!("{}", tables(&ProxyConfig::from_dump(&dump.to_string())?)),
    }
    Ok(u8::from(!mesh.mistakes().is_empty()))
}
