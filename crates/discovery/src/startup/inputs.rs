//! The first stage of start-up: reads flags, environment variables and files, and decides what is watched.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use model::conflict::ConflictSettings;
use model::names::Str;
use model::service::Registry;
use model::settings::{Knobs, Settings};
use sources::kubernetes::access::Access;
use sources::kubernetes::remote_access::RemoteAccess;
use sources::registry::config::{RegistryConfig, RegistryEntry};
use sources::registry::table::{self, RegistryChoice};
use tracing::{info, warn};

use crate::args::DiscoveryFlags;
use crate::environment::{Environment, Instance};
use crate::registries::{self, Registries};
use crate::stores::{self, ConfigStore};
use crate::tls::Certificates;

/// Everything that is read before anything starts.
pub(super) struct StartupInputs {
    /// The API server, if one is known.
    pub(super) api_server: Option<Access>,
    /// Remote clusters; the Kubernetes source adds them as they become known.
    pub(super) remote_access: RemoteAccess,
    pub(super) stores: Vec<ConfigStore>,
    /// Registries of `--registries`.
    pub(super) registries: Vec<RegistryChoice>,
    /// Those of them that other flags describe.
    pub(super) flag_registries: Vec<RegistryEntry>,
    /// The file of `--registryConfig` with its content.
    pub(super) registry_file: Option<(PathBuf, RegistryConfig)>,
    pub(super) settings: Settings,
    /// Certificates of the TLS port; `None` without `--tlsCertFile`.
    pub(super) certificates: Option<Arc<Certificates>>,
}

impl StartupInputs {
    pub(super) fn read(
        args: &DiscoveryFlags,
        instance: &Instance,
        environment: Environment<'_>,
        api_server: Option<Access>,
    ) -> Result<StartupInputs> {
        let stores = stores::read(args, instance)?;
        let registries = registries(args, api_server.is_some(), !stores.is_empty())?;
        let Registries { entries, file, conflicts } = registries::read(args, &registries)?;
        let conflicts = ConflictSettings { stores: store_order(&stores), ..conflicts };
        let settings = Settings { conflicts, ..settings(args, environment) };
        let certificates = Certificates::load(&args.tls)?;
        Ok(StartupInputs {
            api_server,
            remote_access: RemoteAccess::default(),
            stores,
            registries,
            flag_registries: entries,
            registry_file: file,
            settings,
            certificates,
        })
    }

    pub(super) fn watches_kubernetes(&self) -> bool {
        self.registries.iter().any(|choice| matches!(choice, RegistryChoice::Kubernetes))
    }

    /// The API server if Kubernetes is one of the registries.
    pub(super) fn kubernetes_registry(&self) -> Option<Access> {
        self.api_server.clone().filter(|_| self.watches_kubernetes())
    }
}

/// Source ids of the stores in order of precedence.
fn store_order(stores: &[ConfigStore]) -> Vec<Str> {
    stores.iter().enumerate().map(|(number, store)| store.id(number).0).collect()
}

/// Settings that do not come from a watched file.
fn settings(args: &DiscoveryFlags, environment: Environment<'_>) -> Settings {
    let (knobs, unreadable) = Knobs::read(environment);
    for name in unreadable {
        warn!(name, value = environment(name), "ignoring environment variable: could not parse its value");
    }
    if knobs.quic_listeners {
        let name = "PILOT_ENABLE_QUIC_LISTENERS";
        warn!(name, "ignoring environment variable: HTTP/3 listeners are not supported");
    }
    let cluster = Some(args.cluster_id.clone()).filter(|id| !id.is_empty()).or_else(|| environment("CLUSTER_ID"));
    let settings = Settings { knobs, domain: args.domain.as_str().into(), ..Settings::default() };
    match cluster {
        Some(cluster) => Settings { cluster: cluster.into(), ..settings },
        None => settings,
    }
}

/// The registries of `--registries`. Kubernetes is upstream's default, so without an API server it is dropped if there is
/// another source.
fn registries(args: &DiscoveryFlags, has_api_server: bool, has_stores: bool) -> Result<Vec<RegistryChoice>> {
    let is_default = args.registries == [Registry::Kubernetes.as_str()] && !has_api_server;
    let has_other = has_stores || args.registry_flags.config.is_some();
    if is_default && has_other {
        info!("no API server is configured; not watching Kubernetes");
        return Ok(Vec::new());
    }
    let chosen = table::chosen(args.registries.iter().map(String::as_str)).map_err(|error| {
        let names: Vec<&str> = table::choices().map(|choice| choice.name()).collect();
        anyhow!(
            "could not use --registries={}: {error}; known registries: {}; for services and configuration from files \
             use --registries= with --configDir=FOLDER",
            args.registries.join(","),
            names.join(", "),
        )
    })?;
    if is_default || chosen.is_empty() && !has_other {
        bail!("could not find anything to serve: give --kubeconfig=FILE, --configDir=FOLDER or --registries=NAME");
    }
    Ok(chosen)
}
