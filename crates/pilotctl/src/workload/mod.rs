//! `pilotctl workload`: prepares workloads outside Kubernetes, with the flags of `istioctl x workload`. `group` prints a
//! WorkloadGroup, `entry` fetches what a machine needs from the cluster, `files` makes its files.

mod entry;
mod files;
mod group;

use anyhow::Result;
use clap::Subcommand;

#[derive(Subcommand)]
pub(crate) enum WorkloadCommand {
    /// WorkloadGroups
    #[command(subcommand)]
    Group(GroupCommand),
    /// Workloads of a group
    #[command(subcommand)]
    Entry(EntryCommand),
}

#[derive(Subcommand)]
pub(crate) enum GroupCommand {
    /// Print a WorkloadGroup
    Create(group::GroupOptions),
}

#[derive(Subcommand)]
pub(crate) enum EntryCommand {
    /// Write the files that a workload of a group needs
    Configure(entry::EntryOptions),
}

pub(crate) async fn run(command: &WorkloadCommand) -> Result<u8> {
    match command {
        WorkloadCommand::Group(GroupCommand::Create(options)) => group::run(options)?,
        WorkloadCommand::Entry(EntryCommand::Configure(options)) => entry::run(options).await?,
    }
    Ok(0)
}
