//! `pilotctl completion` and `pilotctl man`: made from the same definition as the command line.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_complete::Shell;

#[derive(Args)]
pub(crate) struct CompletionOptions {
    shell: Shell,
}

#[derive(Args)]
pub(crate) struct ManOptions {
    /// Folder to write one page for each command to
    folder: PathBuf,
}

/// Prints the completions of a shell.
pub(crate) fn completion(options: &CompletionOptions, mut command: Command) -> Result<u8> {
    let mut text = Vec::new();
    clap_complete::generate(options.shell, &mut command, "pilotctl", &mut text);
    // A reader such as `head` may stop early.
    let _ = std::io::stdout().write_all(&text);
    Ok(0)
}

/// Writes the man pages.
pub(crate) fn man(options: &ManOptions, command: Command) -> Result<u8> {
    let folder = options.folder.display();
    fs::create_dir_all(&options.folder)
        .and_then(|()| clap_mangen::generate_to(command, &options.folder))
        .with_context(|| format!("could not write man pages to {folder}"))?;
    Ok(0)
}
