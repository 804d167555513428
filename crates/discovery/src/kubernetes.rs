//! Kubernetes as a source: access to the API server, watch options, status writer.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use model::change::SourceId;
use model::settings::Settings;
use model::snapshot::gateway_api::ConvertedConfig;
use sources::kubernetes::access::Access;
use sources::kubernetes::definitions::{self, DefinedKinds};
use sources::kubernetes::join::ClusterOptions;
use sources::kubernetes::rate_limit::RateLimit;
use sources::kubernetes::session::WatchOptions;
use sources::kubernetes::source::Kubernetes;
use sources::source_set::SourceSet;
use sources::status::StatusWriter;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::args::DiscoveryFlags;
use crate::environment::{Environment, Instance};
use crate::serve::snapshot_writer::SnapshotWriter;
use crate::serve::{mesh, statuses};

/// The task that writes statuses, and what it writes.
pub(crate) struct RunningStatusWriter {
    pub(crate) task: JoinHandle<()>,
    /// Gateways and statuses of the newest snapshot, once all sources are synced.
    pub(crate) converted: watch::Receiver<Arc<ConvertedConfig>>,
}

/// Lease of the replica that writes statuses.
const STATUS_LEASE: &str = "istio-gateway-status-leader";
/// Name of the ConfigMap with the mesh config.
const MESH_CONFIG: &str = "istio";

/// Access to the API server by `--kubeconfig`, `$KUBECONFIG` or as a pod of the cluster. `None` if none of them is given.
pub(crate) fn access(args: &DiscoveryFlags, environment: Environment<'_>) -> Result<Option<Access>> {
    let rate_limit = RateLimit::of_flags(args.kubernetes.queries_per_second, args.kubernetes.burst);
    let flag = Some(args.kubeconfig.clone()).filter(|path| !path.is_empty());
    let Some(path) = flag.or_else(|| environment("KUBECONFIG").filter(|path| !path.is_empty())) else {
        return Ok(environment("KUBERNETES_SERVICE_HOST").map(|_| Access::in_cluster(rate_limit)));
    };
    std::fs::metadata(&path).with_context(|| format!("could not read kubeconfig {path}"))?;
    Ok(Some(Access::kubeconfig(path.into(), rate_limit)))
}

/// Installs the CustomResourceDefinitions of Istio's kinds.
pub(crate) async fn install_definitions(access: Option<Access>, kinds: DefinedKinds) -> Result<()> {
    let access = access
        .context("could not install CustomResourceDefinitions: no API server is configured, give --kubeconfig=FILE")?;
    let count = definitions::install(access, kinds).await.map_err(|reason| anyhow!(reason))?;
    info!(count, "installed CustomResourceDefinitions");
    Ok(())
}

/// Whether the mesh config is read from the cluster: there is no file of it.
pub(crate) fn holds_mesh_config(args: &DiscoveryFlags) -> bool {
    !args.mesh_config.exists()
}

/// Writes statuses to the cluster once all sources are synced. Earlier statuses would report objects as missing that are
/// only not loaded yet.
pub(crate) fn start_status_writer(
    instance: &Instance,
    environment: Environment<'_>,
    access: Access,
    writer: &SnapshotWriter,
    sources: SourceSet,
    end: CancellationToken,
) -> RunningStatusWriter {
    let knobs = writer.now().snapshot.settings.knobs.clone();
    let election = instance.election(STATUS_LEASE, environment);
    let status_writer = StatusWriter {
        access,
        controller: knobs.gateway_controller.to_string(),
        class: (knobs.gateway_api && knobs.make_gateway_classes).then(|| knobs.gateway_class.to_string()),
        election: knobs.leader_election.then_some(election),
        gateway_api: knobs.gateway_api_status,
    };
    let (sender, converted) = watch::channel(Arc::default());
    tokio::spawn(statuses::follow(writer.clone(), sources, sender));
    let task = tokio::spawn(status_writer.run(converted.clone(), end));
    RunningStatusWriter { task, converted }
}

/// The source for Kubernetes. It starts once the sources in `settings` are synced.
pub(crate) fn source(
    args: &DiscoveryFlags,
    instance: &Instance,
    environment: Environment<'_>,
    access: Access,
    writer: &SnapshotWriter,
    settings: BTreeSet<SourceId>,
) -> Kubernetes {
    let initial = Settings::clone(&writer.now().snapshot.settings);
    let revision = environment("REVISION").unwrap_or_default();
    let name = match revision.as_str() {
        "" | "default" => MESH_CONFIG.to_owned(),
        other => format!("{MESH_CONFIG}-{other}"),
    };
    let own = ClusterOptions::own(&initial);
    let options = ClusterOptions {
        system_namespace: instance.configured_namespace.clone().map_or(own.system_namespace, Into::into),
        revision: revision.into(),
        mesh_config: holds_mesh_config(args).then(|| name.into()),
        ..own
    };
    let (sender, mesh_settings) = watch::channel(None);
    tokio::spawn(mesh::follow(writer.clone(), settings, sender));
    Kubernetes::primary(access, watch_options(args), options, mesh_settings, initial)
}

fn watch_options(args: &DiscoveryFlags) -> WatchOptions {
    let flags = &args.kubernetes;
    let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    WatchOptions {
        resync: Some(flags.resync).filter(|period| !period.is_zero()),
        registries_namespace: given(&flags.registries_namespace),
        registries_config_map: given(&flags.registries_config_map),
        registries_folder: flags.registries_folder.clone(),
        namespaces: flags.namespaces.iter().filter(|namespace| !namespace.is_empty()).cloned().collect(),
    }
}
