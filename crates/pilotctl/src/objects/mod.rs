//! `pilotctl apply`, `create`, `replace`, `delete`, `get`, `edit`, `diff` and `export`: objects of the configuration API or of a
//! cluster. Files are validated before anything is sent, with the line of each mistake.

mod documents;
mod edit;
mod export;
mod get;
mod get_options;
mod running;
mod server;
mod write;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::control_plane::ControlPlaneOptions;
use crate::history::{self, Moment};
use crate::output::ListFormat;
pub(crate) use documents::{joined_texts, mistakes_of, texts};
pub(crate) use edit::{EditOptions, edit};
pub(crate) use export::{ExportOptions, export};
pub(crate) use get::get;
pub(crate) use get_options::GetOptions;
pub(crate) use server::{ObjectServer, ServerOptions};
pub(crate) use write::{WriteCommand, write};

/// What to compare: files with the server, or two moments of a running pilot-discovery.
#[derive(Args)]
pub(crate) struct DiffOptions {
    /// Moment to compare with: RFC 3339, a duration such as 10m for ten minutes ago, or the number of a snapshot
    #[arg(conflicts_with = "files", required_unless_present = "files")]
    from: Option<Moment>,

    /// Second moment; now if missing
    to: Option<Moment>,

    /// Files and folders with objects; `-` reads standard input
    #[arg(short = 'f', long = "filename", value_delimiter = ',', conflicts_with = "bundle")]
    files: Vec<PathBuf>,

    #[command(flatten)]
    objects: ServerOptions,

    #[command(flatten)]
    server: ControlPlaneOptions,

    /// Name under which fields are managed
    #[arg(long, default_value = "pilotctl")]
    field_manager: String,

    /// Compare objects that validation rejects
    #[arg(long)]
    no_validate: bool,

    /// How to print what changed between two moments; files are compared as text
    #[arg(short, long, value_enum, default_value_t = ListFormat::Table, conflicts_with = "files")]
    output: ListFormat,
}

/// Shows what applying files would change, or what changed between two moments; exit status 1 if anything.
pub(crate) async fn diff(options: DiffOptions) -> Result<u8> {
    if let Some(from) = &options.from {
        return history::diff(&options.server, (from, options.to.as_ref()), options.output).await;
    }
    let DiffOptions { files, objects, field_manager, no_validate, .. } = options;
    let files =
        FileOptions { files, server: objects, dry_run: false, force_conflicts: false, field_manager, no_validate };
    write(WriteCommand::Diff, &files).await
}

/// Files with objects, and the server.
#[derive(Args)]
pub(crate) struct FileOptions {
    /// Files and folders with objects; `-` reads standard input
    #[arg(short = 'f', long = "filename", required = true, value_delimiter = ',')]
    files: Vec<PathBuf>,

    #[command(flatten)]
    server: ServerOptions,

    /// Check the request on the server without storing anything
    #[arg(long)]
    dry_run: bool,

    /// Take fields over from other managers
    #[arg(long)]
    force_conflicts: bool,

    /// Name under which fields are managed
    #[arg(long, default_value = "pilotctl")]
    field_manager: String,

    /// Send objects that validation rejects, and fields that their kind does not have
    #[arg(long)]
    no_validate: bool,
}
