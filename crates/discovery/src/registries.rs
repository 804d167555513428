//! Registries other than Kubernetes: those that flags describe, and those of `--registryConfig`, which may change while
//! the server runs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use model::conflict::ConflictSettings;
use model::service::Registry;
use sources::disk;
use sources::registry::config::{Adapter, RegistryConfig, RegistryEntry};
use sources::registry::{cloudfoundry, consul, eureka};

use crate::args::DiscoveryFlags;

/// Descriptions of the registries to watch.
#[derive(Debug, Default)]
pub(crate) struct Registries {
    /// Registries described by flags.
    pub(crate) entries: Vec<RegistryEntry>,
    /// The file of `--registryConfig` with its content.
    pub(crate) file: Option<(PathBuf, RegistryConfig)>,
    pub(crate) conflicts: ConflictSettings,
}

/// Reads the file and the flags. A registry in the file is watched even if `--registries` does not name its kind. A kind
/// in `--registries` that the file does not describe must be described by flags.
pub(crate) fn read(args: &DiscoveryFlags, named: &[Registry]) -> Result<Registries> {
    let config = config(args)?;
    let of_kind = |entry: &RegistryEntry| Some(entry.adapter().ok()?.registry());
    let described: BTreeSet<Registry> = config.registries.iter().filter_map(of_kind).collect();
    let mut found = Registries { conflicts: config.conflicts(), ..Registries::default() };
    found.file = args.registry_flags.config.clone().map(|file| (file, config));
    for registry in named.iter().filter(|registry| !described.contains(registry)) {
        let flags = &args.registry_flags;
        let adapter = match registry {
            Registry::Consul if flags.consul_url.is_empty() => bail!(missing("Consul", "consulserverURL")),
            Registry::Consul => {
                Adapter::Consul(consul::ConsulOptions::of_flags(&flags.consul_url, flags.consul_interval))
            }
            Registry::Eureka if flags.eureka_url.is_empty() => bail!(missing("Eureka", "eurekaserverURL")),
            Registry::Eureka => {
                Adapter::Eureka(eureka::EurekaOptions::of_flags(&flags.eureka_url, flags.eureka_interval))
            }
            Registry::CloudFoundry => match &flags.cloud_foundry_config {
                Some(file) => Adapter::CloudFoundry(cloud_foundry(file)?),
                None => bail!(
                    "could not watch CloudFoundry: give --cfConfig=FILE, or describe it in the file of --registryConfig"
                ),
            },
            Registry::Dns => bail!("could not watch DNS: describe its names in the file of --registryConfig"),
            _ => continue,
        };
        found.entries.push(RegistryEntry::of(adapter));
    }
    Ok(found)
}

fn config(args: &DiscoveryFlags) -> Result<RegistryConfig> {
    let Some(file) = &args.registry_flags.config else { return Ok(RegistryConfig::default()) };
    let text = disk::text(file).with_context(|| format!("could not read {}", file.display()))?;
    RegistryConfig::parse(&text).map_err(|reason| anyhow!("could not use {}: {reason}", file.display()))
}

fn cloud_foundry(file: &Path) -> Result<cloudfoundry::CloudFoundryOptions> {
    let text = disk::text(file).with_context(|| format!("could not read {}", file.display()))?;
    cloudfoundry::CloudFoundryOptions::of_file(&text)
        .map_err(|reason| anyhow!("could not use {}: {reason}", file.display()))
}

fn missing(registry: &str, flag: &str) -> String {
    format!("could not watch {registry}: give --{flag}=URL, or describe it in the file of --registryConfig")
}
