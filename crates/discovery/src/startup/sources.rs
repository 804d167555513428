//! Starts the sources, group by group. A group that waits for another takes its source ids as a parameter.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use model::change::{Batch, SourceId};
use model::fetch_requests::FetchRequests;
use model::names::ClusterId;
use model::settings::{Knobs, Settings};
use sources::fetch::jwks::Jwks;
use sources::http::AddressPolicy;
use sources::kubernetes::join::ClusterOptions;
use sources::mesh;
use sources::registry::config::{RegistryConfig, RegistryEntry};
use sources::registry::config_file::RegistryConfigFile;
use sources::source::{Source, SourceTask, spawn};
use sources::source_set::{SourceSet, StartupWait};
use sources::store::files::FileStore;
use sources::store::mcp::McpSink;
use sources::store::xds::XdsStore;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::inputs::StartupInputs;
use crate::args::DiscoveryFlags;
use crate::config_api::{ConfigApi, ConfigApiSource};
use crate::environment::{Environment, Instance};
use crate::kubernetes;
use crate::serve::snapshot_writer::SnapshotWriter;
use crate::serve::{fetch_requests, mesh as serve_mesh};
use crate::stores::ConfigStore;

/// All sources of the server.
pub(super) struct RunningSources {
    pub(super) tasks: Vec<SourceTask>,
    /// Their health, for pages, metrics and readiness.
    pub(super) set: SourceSet,
    /// Those with the mesh config.
    pub(super) settings: BTreeSet<SourceId>,
}

/// Starts every source that flags and files name.
pub(super) fn start(
    args: &DiscoveryFlags,
    instance: &Instance,
    environment: Environment<'_>,
    inputs: &StartupInputs,
    config_api: Option<&ConfigApi>,
    writer: &SnapshotWriter,
    stop: &CancellationToken,
) -> Result<RunningSources> {
    let spawner = Spawner { changes: writer.changes(), stop: stop.clone(), set: SourceSet::default() };
    let (cluster, knobs) = (&inputs.settings.cluster, &inputs.settings.knobs);
    let (request_sender, fetch_requests) = watch::channel(None);

    let settings = settings_files(&spawner, args, inputs.watches_kubernetes());
    let stores = stores(&spawner, &inputs.stores, args.state_dir.as_deref());
    let kubernetes = match inputs.watches_kubernetes() {
        true => {
            let access = inputs.api_server.clone();
            let access = access.context("could not find an API server: give --kubeconfig=FILE")?;
            let source = kubernetes::source(args, instance, environment, access, writer, settings.ids());
            let source = source.holding(fetch_requests.clone()).listing_remotes_in(spawner.set.clone());
            spawner.one(source.sharing_remotes_in(inputs.remote_access.clone()))
        }
        false => SourceGroup::default(),
    };
    let config_api = match config_api {
        Some(api) => {
            let settings = settings.ids();
            spawner.one(config_api_source(instance, environment, api, writer, settings, fetch_requests.clone()))
        }
        None => SourceGroup::default(),
    };
    let flag_registries = flag_registries(&spawner, &inputs.flag_registries, cluster);
    let of_settings = if settings.ids().is_empty() { kubernetes.ids() } else { settings.ids() };
    let first = SourceGroup::merge([settings, stores, kubernetes, config_api, flag_registries]);
    let registry_file = match &inputs.registry_file {
        Some((file, config)) => {
            let config = config.clone();
            registry_file(&spawner, file, config, cluster, &inputs.settings.conflicts.stores, first.ids())
        }
        None => SourceGroup::default(),
    };
    let config = SourceGroup::merge([first, registry_file]);
    // Key sets are named by configuration. Registries that the registry file starts are not waited for.
    tokio::spawn(fetch_requests::follow(writer.clone(), config.ids(), request_sender));
    let keys = key_sets(&spawner, knobs, fetch_requests);
    Ok(RunningSources { tasks: SourceGroup::merge([config, keys]).tasks, set: spawner.set, settings: of_settings })
}

/// Mesh config and mesh networks, unless they come from the cluster.
fn settings_files(spawner: &Spawner, args: &DiscoveryFlags, watches_kubernetes: bool) -> SourceGroup {
    if watches_kubernetes && kubernetes::holds_mesh_config(args) {
        return SourceGroup::default();
    }
    let (mesh, networks) = (mesh::mesh_config(&args.mesh_config), mesh::networks(&args.networks_config));
    SourceGroup::merge([spawner.one(mesh), spawner.one(networks)])
}

fn stores(spawner: &Spawner, stores: &[ConfigStore], state: Option<&Path>) -> SourceGroup {
    let group = |(number, store): (usize, &ConfigStore)| match store.clone() {
        ConfigStore::Folder(folder) => {
            let files = FileStore::new(&folder).named(store.id(number));
            spawner.one(match state {
                Some(state) => files.saving_in(state),
                None => files,
            })
        }
        ConfigStore::Xds(options) => spawner.one(XdsStore::new(options)),
        ConfigStore::Mcp(options) => spawner.one(McpSink::new(options)),
        // Sources of their own read configuration and services.
        ConfigStore::Kubernetes | ConfigStore::ConfigApi => SourceGroup::default(),
    };
    SourceGroup::merge(stores.iter().enumerate().map(group))
}

/// The source of the configuration API. It starts once the sources in `settings` are synced.
fn config_api_source(
    instance: &Instance,
    environment: Environment<'_>,
    api: &ConfigApi,
    writer: &SnapshotWriter,
    settings: BTreeSet<SourceId>,
    requests: watch::Receiver<Option<FetchRequests>>,
) -> ConfigApiSource {
    let initial = Settings::clone(&writer.now().snapshot.settings);
    let options = ClusterOptions {
        system_namespace: instance.namespace().into(),
        revision: environment("REVISION").unwrap_or_default().into(),
        ..ClusterOptions::own(&initial)
    };
    let (sender, mesh_settings) = watch::channel(None);
    tokio::spawn(serve_mesh::follow(writer.clone(), settings, sender));
    ConfigApiSource::new(api.storage.clone(), options, mesh_settings, requests, initial)
}

/// Registries that flags describe.
fn flag_registries(spawner: &Spawner, entries: &[RegistryEntry], cluster: &ClusterId) -> SourceGroup {
    SourceGroup::merge(entries.iter().map(|entry| {
        let task = entry.options.start(entry.place(cluster), spawner.changes.clone(), spawner.stop.clone());
        spawner.register(entry.id(), task)
    }))
}

/// The source that follows the registry file and runs its registries. They must not use the names of `others`.
fn registry_file(
    spawner: &Spawner,
    file: &Path,
    config: RegistryConfig,
    cluster: &ClusterId,
    stores: &[model::names::Str],
    others: BTreeSet<SourceId>,
) -> SourceGroup {
    let source = RegistryConfigFile::new(file, config, cluster.clone(), spawner.set.clone());
    spawner.one(source.with_reserved(others).with_stores(stores.to_vec()))
}

/// Fetches the JSON Web Key Sets that configuration names.
fn key_sets(spawner: &Spawner, knobs: &Knobs, requests: watch::Receiver<Option<FetchRequests>>) -> SourceGroup {
    let (allowed, blocked) = (knobs.allowed_key_blocks.clone(), knobs.blocked_key_blocks.clone());
    let refresh = Duration::from_millis(knobs.key_refresh.0);
    spawner.one(Jwks::new(requests, refresh, AddressPolicy::Except { allowed, blocked }))
}

/// What every source is started with.
struct Spawner {
    changes: mpsc::Sender<Batch>,
    stop: CancellationToken,
    set: SourceSet,
}

impl Spawner {
    fn one(&self, source: impl Source) -> SourceGroup {
        let id = source.id();
        let task = spawn(source, self.changes.clone(), self.stop.clone());
        self.register(id, task)
    }

    fn register(&self, id: SourceId, task: SourceTask) -> SourceGroup {
        self.set.insert(id.clone(), task.health.clone(), StartupWait::Always);
        SourceGroup { ids: BTreeSet::from([id]), tasks: vec![task] }
    }
}

/// Sources that one stage started.
#[derive(Default)]
struct SourceGroup {
    ids: BTreeSet<SourceId>,
    tasks: Vec<SourceTask>,
}

impl SourceGroup {
    fn ids(&self) -> BTreeSet<SourceId> {
        self.ids.clone()
    }

    fn merge(groups: impl IntoIterator<Item = SourceGroup>) -> SourceGroup {
        let mut all = SourceGroup::default();
        for group in groups {
            all.ids.extend(group.ids);
            all.tasks.extend(group.tasks);
        }
        all
    }
}
