//! The registries to watch other than Kubernetes: those that flags describe, and those of `--registryConfig`, which may
//! change while the server runs.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use model::conflict::ConflictSettings;
use model::service::Registry;
use sources::disk;
use sources::registry::config::{RegistryConfig, RegistryEntry};
use sources::registry::flags::FlagValues;
use sources::registry::table::RegistryChoice;

use crate::args::DiscoveryFlags;

/// Registries with their options, and how conflicts between them are settled.
#[derive(Debug, Default)]
pub(crate) struct Registries {
    /// Those that flags describe.
    pub(crate) entries: Vec<RegistryEntry>,
    /// The file of `--registryConfig` and its content at startup.
    pub(crate) file: Option<(PathBuf, RegistryConfig)>,
    pub(crate) conflicts: ConflictSettings,
}

/// Reads the file and the flags. Registries that the file describes are watched even if `--registries` does not name
/// them. A registry that is named and not in the file is described by its flags.
pub(crate) fn read(args: &DiscoveryFlags, chosen: &[RegistryChoice]) -> Result<Registries> {
    let config = config(args)?;
    let described: BTreeSet<Registry> = config.registries.iter().map(|entry| entry.options.registry()).collect();
    let flags = FlagValues { domain: args.domain.clone(), values: args.registry_flags.adapters.0.clone() };
    let mut entries = Vec::new();
    for choice in chosen {
        let row = match choice {
            RegistryChoice::Adapter(row) => row,
            RegistryChoice::Mcp if args.registry_flags.mcp_servers.is_empty() => {
                bail!("could not watch MCP: give --mcpServerAddrs=mcp://HOST:PORT")
            }
            // The stages of Kubernetes and of config stores start them.
            RegistryChoice::Kubernetes | RegistryChoice::Mcp => continue,
        };
        if described.contains(&row.registry) {
            continue;
        }
        let options = row.from_flags(&flags).map_err(|error| anyhow!("could not watch {}: {error}", choice.name()))?;
        entries.push(RegistryEntry::of(options));
    }
    let conflicts = config.conflicts();
    let file = args.registry_flags.config.clone().map(|file| (file, config));
    Ok(Registries { entries, file, conflicts })
}

fn config(args: &DiscoveryFlags) -> Result<RegistryConfig> {
    let Some(file) = &args.registry_flags.config else { return Ok(RegistryConfig::default()) };
    let text = disk::text(file).with_context(|| format!("could not read {}", file.display()))?;
    RegistryConfig::parse(&text).map_err(|error| anyhow!("could not use {}: {error}", file.display()))
}
