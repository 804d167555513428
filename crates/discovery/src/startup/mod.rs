//! Start-up and shutdown. `start` is a list of stages: the parameters of a stage are what it reads, its result is what
//! later stages may use. `inputs` reads flags and files, `sources` starts sources, `ports` binds and serves ports,
//! `service_state` reports to systemd.

mod inputs;
mod ports;
mod service_state;
mod sources;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ::sources::kubernetes::definitions::DefinedKinds;
use ::sources::source::SourceTask;
use anyhow::{Context, Result};
use api::istio::mesh::v1alpha1::mesh_config::CertificateData;
use cli::levels::LogLevels;
use cli::systemd::ServiceManager;
use cli::version;
use model::change::SourceId;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};
use xds::Budget;

use crate::args::{DiscoveryFlags, RegisterCrds};
use crate::client_runtime::ClientRuntime;
use crate::config_api::{self, ConfigApi};
use crate::effective_settings;
use crate::environment::{Environment, Instance};
use crate::grpc::{self, ChargedRoutes};
use crate::http::{AllowedHosts, Pages};
use crate::injector_settings::{self, InjectorSettingsWatch};
use crate::kubernetes::{self, RunningStatusWriter};
use crate::managed_gateways::{self, ManagedGatewaysStart};
use crate::registration::{self, RegistrationStart};
use crate::serve::session::ControlPlane;
use crate::serve::snapshot_writer::{PublishedSnapshot, SnapshotWriter};
use crate::serve::{findings, housekeeping, waiting};
use crate::trust::{self, DiscoverySelectors, RunningTrust, TrustStart};
use crate::webhook::{self, WebhookStart, Webhooks};
use inputs::StartupInputs;
pub use ports::BoundAddresses;
use ports::{BoundPorts, PortServices};

/// Minimum time to release the leader lease.
const LEASE_RELEASE: Duration = Duration::from_secs(2);

/// A running server.
pub struct Server {
    /// The addresses really bound.
    pub addresses: BoundAddresses,
    pub pilot: Arc<ControlPlane>,
    sources: Vec<SourceTask>,
    /// Tasks that hold a lease.
    elected: Vec<JoinHandle<()>>,
    listeners: TaskTracker,
    stop: StopTokens,
    _clients: ClientRuntime,
}

/// Shutdown in two steps: clients first, so that the last stream still gets consistent answers.
#[derive(Clone, Debug, Default)]
struct StopTokens {
    /// Stops listeners and streams.
    clients: CancellationToken,
    /// Stops sources and the snapshot writer.
    sources: CancellationToken,
}

/// Serves until SIGTERM or SIGINT. ControlZ reads and sets these log levels.
pub async fn run(args: &DiscoveryFlags, environment: Environment<'_>, levels: LogLevels) -> Result<()> {
    let mut signals = StopSignals::new()?;
    let server = start(args, environment, Some(levels)).await?;
    let manager = ServiceManager::new(environment("NOTIFY_SOCKET").as_deref(), environment("WATCHDOG_USEC").as_deref());
    let manager = Arc::new(manager);
    if manager.is_connected() {
        tokio::spawn(service_state::report(manager.clone(), server.pilot.clone()));
    }
    signals.next().await;
    manager.stopping();
    info!(timeout = ?args.shutdown_duration, "stopping: waiting for clients to disconnect");
    tokio::select! {
        () = server.stop(args.shutdown_duration) => info!("stopped"),
        () = signals.next() => warn!("stopped immediately by a second signal"),
    }
    Ok(())
}

/// The signals that stop the server.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn new() -> Result<StopSignals> {
        let terminate = signal(SignalKind::terminate()).context("could not wait for SIGTERM")?;
        let interrupt = signal(SignalKind::interrupt()).context("could not wait for SIGINT")?;
        Ok(StopSignals { terminate, interrupt })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Starts the server. Returns once all ports are bound. ControlZ is served if there are log levels.
pub async fn start(args: &DiscoveryFlags, environment: Environment<'_>, levels: Option<LogLevels>) -> Result<Server> {
    info!(version = version::line(), "starting");
    args.ignored_flags.log();
    let instance = Instance::new(&args.namespace, environment);
    let api_server = kubernetes::access(args, environment)?;
    match args.register_crds {
        RegisterCrds::False => {}
        RegisterCrds::True => kubernetes::install_definitions(api_server.clone(), DefinedKinds::Current).await?,
        RegisterCrds::Legacy => kubernetes::install_definitions(api_server.clone(), DefinedKinds::WithLegacy).await?,
    }
    let inputs = StartupInputs::read(args, &instance, environment, api_server)?;
    let stop = StopTokens::default();
    let config_api = config_api::open(&args.config_api, &instance, &stop.clients).await?;
    let writer = SnapshotWriter::start(inputs.settings.clone(), Arc::default(), stop.sources.clone());
    let sources = sources::start(args, &instance, environment, &inputs, config_api.as_ref(), &writer, &stop.sources)?;
    let status_access = inputs.kubernetes_registry().or_else(|| config_api.as_ref().map(ConfigApi::access));
    let status_writer = status_access.map(|access| {
        let (sources, stop) = (sources.set.clone(), stop.sources.clone());
        kubernetes::start_status_writer(&instance, environment, access, &writer, sources, stop)
    });
    if environment("PILOTAGE_ANALYSIS").is_none_or(|value| value != "false") {
        tokio::spawn(findings::follow(writer.clone(), sources.set.clone()));
    }
    let selectors = discovery_selectors(&writer, sources.settings);
    let trust = start_trust(args, &instance, environment, &inputs, &writer, selectors, &stop.sources)?;
    let mut pilot = ControlPlane::new(writer, sources.set);
    pilot.trust = trust.as_ref().map(|running| running.trust.clone());
    pilot.bundle = trust.as_ref().and_then(|running| running.bundle.clone());
    pilot.authentication = trust.as_ref().and_then(|running| running.authentication.clone());
    let snapshots = pilot.world().snapshots();
    let registration = RegistrationStart {
        api_server: inputs.kubernetes_registry(),
        config_api: config_api.as_ref().map(ConfigApi::access),
        changes: pilot.world().changes(),
        snapshot: Box::new(move || Arc::clone(&snapshots.borrow().snapshot)),
        controller: instance.name.clone().unwrap_or_else(|| instance.namespace().to_owned()),
        knobs: inputs.settings.knobs.clone(),
    };
    pilot.registrar = Some(registration::start(registration, &stop.sources));
    let injector = injector_settings(args, &instance, environment, &inputs, &stop.sources);
    let elected = match status_writer {
        Some(running) => {
            let gateways =
                start_gateways(&instance, environment, &inputs, &pilot, &running, injector.clone(), &stop.sources);
            [Some(running.task), gateways].into_iter().flatten().collect()
        }
        None => Vec::new(),
    };
    let webhooks = start_webhooks(args, &instance, environment, &inputs, &pilot, injector, &stop.sources);
    pilot.webhook_metrics = webhooks.as_ref().map(|webhooks| webhooks.metrics.clone());
    let pilot = housekeeping::started(pilot);
    tokio::spawn(waiting::follow(pilot.clone(), stop.sources.clone()));
    let clients = ClientRuntime::start()?;
    let routes = grpc_routes(args, &instance, &pilot, &stop.clients);
    let pages = pages(args, &instance, environment, &pilot, &stop.clients);
    let (certificates, service) = match trust {
        Some(running) => (running.certificates, running.service),
        None => (None, None),
    };
    let ports = BoundPorts::bind(args, certificates.is_some(), webhooks.is_some()).await?;
    let ports = if levels.is_some() { ports.with_controlz(args).await } else { ports };
    let addresses = ports.addresses();
    let secure_routes = routes.clone().with_certificates(service);
    let services = PortServices { routes, secure_routes, pages: &pages, webhooks, certificates, levels, config_api };
    let (keepalive, runtime) = (&args.keepalive, clients.handle());
    let listeners = ports.serve(keepalive, services, &runtime, &stop.clients);
    Ok(Server { addresses, pilot, sources: sources.tasks, elected, listeners, stop, _clients: clients })
}

/// Starts the certificate authority and authentication. `None` if no port uses them.
fn start_trust(
    args: &DiscoveryFlags,
    instance: &Instance,
    environment: Environment<'_>,
    inputs: &StartupInputs,
    writer: &SnapshotWriter,
    selectors: DiscoverySelectors,
    stop: &CancellationToken,
) -> Result<Option<RunningTrust>> {
    let is_used =
        !args.secure_grpc_addr.is_empty() || inputs.settings.knobs.xds_auth_plaintext || has_webhooks(args, inputs);
    if !is_used {
        return Ok(None);
    }
    let (snapshots, newest) = (writer.snapshots(), writer.snapshots());
    let options = TrustStart {
        settings: &inputs.settings,
        ca_folder: args.ca_folder.clone(),
        api_server: inputs.api_server.clone(),
        remotes: inputs.remote_access.clone(),
        namespace: instance.namespace(),
        revision: &environment("REVISION").unwrap_or_default(),
        cluster_aliases: args.cluster_aliases.clone(),
        trust_domain: Arc::new(move || snapshots.borrow().snapshot.settings.mesh.trust_domain.clone()),
        changes: writer.changes(),
        ca_certificates: inputs.settings.knobs.multi_root_mesh.then(|| ca_certificates(writer)),
        selectors,
        signer_roots: Arc::new(move || newest.borrow().snapshot.settings.mesh.ca_certificates.clone()),
        given: inputs.certificates.clone(),
    };
    trust::start(options, stop).map(Some)
}

/// Follows `caCertificates` of the mesh config.
fn ca_certificates(writer: &SnapshotWriter) -> watch::Receiver<Vec<CertificateData>> {
    followed(writer, |published| published.snapshot.settings.mesh.ca_certificates.clone())
}

/// Follows `discoverySelectors` of the mesh config once these sources have read it.
fn discovery_selectors(writer: &SnapshotWriter, settings: BTreeSet<SourceId>) -> DiscoverySelectors {
    followed(writer, move |published| {
        let is_read = settings.is_subset(&published.snapshot.synced);
        is_read.then(|| published.snapshot.settings.mesh.discovery_selectors.clone())
    })
}

/// Follows a part of the snapshot.
fn followed<T: Clone + PartialEq + Send + Sync + 'static>(
    writer: &SnapshotWriter,
    of: impl Fn(&PublishedSnapshot) -> T + Send + 'static,
) -> watch::Receiver<T> {
    let mut snapshots = writer.snapshots();
    let (sender, receiver) = watch::channel(of(&snapshots.borrow()));
    tokio::spawn(async move {
        while snapshots.changed().await.is_ok() {
            let now = of(&snapshots.borrow_and_update());
            sender.send_if_modified(|known| {
                let is_new = *known != now;
                *known = now;
                is_new
            });
        }
    });
    receiver
}

/// Whether webhooks are served: they need an API server, which calls them.
fn has_webhooks(args: &DiscoveryFlags, inputs: &StartupInputs) -> bool {
    !args.https_addr.is_empty() && inputs.kubernetes_registry().is_some()
}

/// Whether proxies of Gateways are deployed.
fn deploys_gateways(inputs: &StartupInputs) -> bool {
    let knobs = &inputs.settings.knobs;
    knobs.gateway_api && knobs.deploy_gateways && inputs.kubernetes_registry().is_some()
}

/// Follows the settings of injection if webhooks are served.
fn injector_settings(
    args: &DiscoveryFlags,
    instance: &Instance,
    environment: Environment<'_>,
    inputs: &StartupInputs,
    stop: &CancellationToken,
) -> Option<InjectorSettingsWatch> {
    let access = inputs.kubernetes_registry().filter(|_| has_webhooks(args, inputs))?;
    let revision = environment("REVISION").unwrap_or_default();
    Some(injector_settings::follow(access, instance.namespace(), &revision, stop))
}

/// Starts the deployment of gateways, unless it is off.
fn start_gateways(
    instance: &Instance,
    environment: Environment<'_>,
    inputs: &StartupInputs,
    pilot: &ControlPlane,
    statuses: &RunningStatusWriter,
    injector: Option<InjectorSettingsWatch>,
    stop: &CancellationToken,
) -> Option<JoinHandle<()>> {
    let access = inputs.kubernetes_registry().filter(|_| deploys_gateways(inputs))?;
    let options = ManagedGatewaysStart {
        access,
        instance,
        environment,
        injector,
        snapshots: pilot.world().snapshots(),
        converted: statuses.converted.clone(),
        changes: pilot.world().changes(),
    };
    Some(managed_gateways::start(options, stop))
}

fn start_webhooks(
    args: &DiscoveryFlags,
    instance: &Instance,
    environment: Environment<'_>,
    inputs: &StartupInputs,
    pilot: &ControlPlane,
    injector: Option<InjectorSettingsWatch>,
    stop: &CancellationToken,
) -> Option<Arc<Webhooks>> {
    let access = inputs.kubernetes_registry().filter(|_| has_webhooks(args, inputs))?;
    let injector = injector?;
    let snapshots = pilot.world().snapshots();
    let options = WebhookStart {
        access,
        namespace: instance.namespace(),
        environment,
        injector,
        snapshot: Arc::new(move || Arc::clone(&snapshots.borrow().snapshot)),
        // Certificates from files have another CA, which the operator knows.
        trust: pilot.trust.clone().filter(|_| inputs.certificates.is_none()),
    };
    Some(webhook::start(options, stop))
}

fn grpc_routes(
    args: &DiscoveryFlags,
    instance: &Instance,
    pilot: &Arc<ControlPlane>,
    stop: &CancellationToken,
) -> ChargedRoutes {
    let name = instance.name.as_deref().unwrap_or_default();
    // Upstream's JSON, which istioctl parses.
    let identifier = serde_json::json!({"Component": "istiod", "ID": name, "Info": version::info()}).to_string();
    let budget = Budget::new(args.clients.allowance());
    grpc::routes(pilot.clone(), identifier, budget, stop.clone())
}

fn pages(
    args: &DiscoveryFlags,
    instance: &Instance,
    environment: Environment<'_>,
    pilot: &Arc<ControlPlane>,
    stop: &CancellationToken,
) -> Pages {
    let hosts = AllowedHosts::new(instance.namespace(), &args.domain, &args.debug_hosts);
    let settings = effective_settings::settings(args, environment);
    let pages = Pages::new(pilot.clone(), hosts, settings, stop.clone());
    pages.serve_over_xds();
    pages.sample();
    pages
}

impl Server {
    /// Stops accepting connections, ends streams so that clients reconnect elsewhere, and waits for them at most this
    /// long.
    pub async fn stop(self, limit: Duration) {
        self.stop.clients.cancel();
        if timeout(limit, self.listeners.wait()).await.is_err() {
            warn!(timeout = ?limit, "shutdown timeout reached with clients still connected");
        }
        self.stop.sources.cancel();
        for source in self.sources {
            source.stopped().await;
        }
        // Releasing the lease lets the next replica lead at once. It takes two requests.
        for task in self.elected {
            let _ = timeout(limit.max(LEASE_RELEASE), task).await;
        }
    }
}
