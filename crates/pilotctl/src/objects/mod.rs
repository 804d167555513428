//! `pilotctl apply`, `create`, `replace`, `delete`, `get`, `edit`, `diff` and `export`: objects of the configuration API or of a
//! cluster. Files are validated before anything is sent, with the line of each mistake.

mod documents;
mod edit;
mod export;
mod get;
mod server;
mod write;

use std::path::PathBuf;

use clap::Args;

pub(crate) use documents::texts;
pub(crate) use edit::{EditOptions, edit};
pub(crate) use export::{ExportOptions, export};
pub(crate) use get::{GetOptions, get};
pub(crate) use server::{ObjectServer, ServerOptions};
pub(crate) use write::{WriteCommand, write};

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
