//! How Kubernetes is watched: which API server, as whom, and where settings of the mesh come from.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use model::change::SourceId;
use model::settings::Settings;
use sources::kubernetes::access::Access;
use sources::kubernetes::definitions;
use sources::kubernetes::join::ClusterOptions;
use sources::kubernetes::rate_limit::RateLimit;
use sources::kubernetes::source::{Kubernetes, WatchOptions};
use sources::source_set::SourceSet;
use sources::status::{Election, StatusWriter};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::args::DiscoveryFlags;
use crate::serve::snapshot_writer::SnapshotWriter;
use crate::serve::{mesh, statuses};

type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The task that writes statuses.
pub(crate) type StatusWriterTask = JoinHandle<()>;

/// The ConfigMap that holds settings of the mesh where no file does.
const MESH_CONFIG: &str = "istio";

/// How the API server is reached: by the flag, by the environment, or as a pod of the cluster.
pub(crate) fn access(args: &DiscoveryFlags, environment: Environment<'_>) -> Result<Option<Access>> {
    let rate_limit = RateLimit::of_flags(args.kubernetes.queries_per_second, args.kubernetes.burst);
    let told = Some(args.kubeconfig.clone()).filter(|path| !path.is_empty());
    let Some(path) = told.or_else(|| environment("KUBECONFIG").filter(|path| !path.is_empty())) else {
        return Ok(environment("KUBERNETES_SERVICE_HOST").map(|_| Access::in_cluster(rate_limit)));
    };
    std::fs::metadata(&path).with_context(|| format!("could not read the kubeconfig {path}"))?;
    Ok(Some(Access::kubeconfig(path.into(), rate_limit)))
}

/// Installs the definitions of our kinds.
pub(crate) async fn install_definitions(access: Option<Access>) -> Result<()> {
    let access = access.context("could not install definitions: no API server is known, give --kubeconfig=FILE")?;
    let count = definitions::install(access).await.map_err(|reason| anyhow!(reason))?;
    info!(count, "installed the definitions of Istio's kinds");
    Ok(())
}

/// Whether settings of the mesh are the cluster's: then there is no file of them.
pub(crate) fn holds_mesh_config(args: &DiscoveryFlags) -> bool {
    !args.mesh_config.exists()
}

/// Writes what the model has to say to authors back to the cluster, once no source is waited for: half of the world would say that the other half is missing.
pub(crate) fn write_back(
    args: &DiscoveryFlags,
    environment: Environment<'_>,
    access: Access,
    world: &SnapshotWriter,
    sources: SourceSet,
    end: CancellationToken,
) -> StatusWriterTask {
    let knobs = world.now().snapshot.settings.knobs.clone();
    let namespace = Some(args.namespace.clone()).filter(|n| !n.is_empty()).or_else(|| environment("POD_NAMESPACE"));
    let pod = environment("POD_NAME").or_else(|| environment("HOSTNAME")).unwrap_or_default();
    let election = Election {
        namespace: namespace.unwrap_or_else(|| "istio-system".to_owned()),
        name: "istio-gateway-status-leader".to_owned(),
        identity: format!("{pod}-{}", std::process::id()),
    };
    let writer = StatusWriter {
        access,
        controller: knobs.gateway_controller.to_string(),
        class: (knobs.gateway_api && knobs.make_gateway_classes).then(|| knobs.gateway_class.to_string()),
        election: knobs.leader_election.then_some(election),
        gateway_api: knobs.gateway_api_status,
    };
    let (tell, wanted) = watch::channel(Arc::default());
    tokio::spawn(statuses::follow(world.clone(), sources, tell));
    tokio::spawn(writer.run(wanted, end))
}

/// The source. `settings` are the sources of settings that it waits for.
pub(crate) fn source(
    args: &DiscoveryFlags,
    environment: Environment<'_>,
    access: Access,
    world: &SnapshotWriter,
    settings: BTreeSet<SourceId>,
) -> Kubernetes {
    let initial = Settings::clone(&world.now().snapshot.settings);
    let namespace = Some(args.namespace.clone()).filter(|n| !n.is_empty()).or_else(|| environment("POD_NAMESPACE"));
    let revision = environment("REVISION").unwrap_or_default();
    let name = match revision.as_str() {
        "" | "default" => MESH_CONFIG.to_owned(),
        other => format!("{MESH_CONFIG}-{other}"),
    };
    let own = ClusterOptions::own(&initial);
    let options = ClusterOptions {
        system_namespace: namespace.map_or(own.system_namespace, Into::into),
        revision: revision.into(),
        mesh_config: holds_mesh_config(args).then(|| name.into()),
        ..own
    };
    let (tell, told) = watch::channel(None);
    tokio::spawn(mesh::follow(world.clone(), settings, tell));
    Kubernetes::primary(access, watch_options(args), options, told, initial)
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
