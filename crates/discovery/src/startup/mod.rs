//! Start-up, read top to bottom: settings, world, sources, pilot, listeners; then the wait for a signal
//! and the way down in the opposite order.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use cli::version;
use model::change::{Batch, SourceId};
use model::conflict::ConflictSettings;
use model::fetch_requests::FetchRequests;
use model::names::{ClusterId, Str};
use model::service::Registry;
use model::settings::{Knobs, Settings};
use sources::fetch::jwks::Jwks;
use sources::http::AddressPolicy;
use sources::mesh;
use sources::registry;
use sources::registry::config::{RegistryConfig, RegistryEntry};
use sources::registry::config_file::{self, RegistryConfigFile};
use sources::registry::mock::MockRegistry;
use sources::source::{Source, SourceTask, spawn};
use sources::source_set::{SourceSet, StartupWait};
use sources::store::files::FileStore;
use sources::store::mcp::McpSink;
use sources::store::xds::XdsStore;
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};
use xds::Budget;

use crate::args::{DiscoveryFlags, KeepaliveFlags};
use crate::connections::Connections;
use crate::file_descriptors::ConnectionLimits;
use crate::grpc::ChargedRoutes;
use crate::http::{self, AllowedHosts, Pages};
use crate::listener::{BoundSocket, ConnectionOptions, PortProtocol};
use crate::registries::{self, Registries};
use crate::runtimes::Runtimes;
use crate::serve::housekeeping;
use crate::serve::session::ControlPlane;
use crate::serve::snapshot_writer::SnapshotWriter;
use crate::serve::wanted;
use crate::stores::{self, ConfigStore};
use crate::tls::Certificates;
use crate::{grpc, kubernetes};

/// Reads environment variables, so that no test touches the process environment.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// How long giving up the lease may take at least.
const FAREWELL: Duration = Duration::from_secs(2);

/// Where the server really listens; `None` where a port is switched off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoundAddresses {
    pub grpc: Option<SocketAddr>,
    pub secure_grpc: Option<SocketAddr>,
    pub http: Option<SocketAddr>,
    pub monitoring: Option<SocketAddr>,
}

/// A server at work.
pub struct Server {
    pub addresses: BoundAddresses,
    pub pilot: Arc<ControlPlane>,
    sources: Vec<SourceTask>,
    writing: Option<kubernetes::StatusWriterTask>,
    listeners: TaskTracker,
    stop: CancellationToken,
    /// Ends sources and the world, after the last stream.
    end: CancellationToken,
    _threads: Runtimes,
}

/// Serves until a signal asks to stop.
pub async fn run(args: &DiscoveryFlags, environment: Environment<'_>) -> Result<()> {
    let mut signals = StopSignals::new()?;
    let server = start(args, environment).await?;
    signals.next().await;
    info!(at_most = ?args.shutdown_duration, "stopping");
    tokio::select! {
        () = server.stop(args.shutdown_duration) => info!("stopped"),
        () = signals.next() => warn!("stopped at once by a second signal"),
    }
    Ok(())
}

/// The signals that ask to stop.
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

/// Starts everything.
pub async fn start(args: &DiscoveryFlags, environment: Environment<'_>) -> Result<Server> {
    info!(version = version::line(), "starting");
    args.ignored_flags.log();
    let access = kubernetes::access(args, environment)?;
    if args.register_crds {
        kubernetes::install_definitions(access.clone()).await?;
    }
    let stores = stores::read(args, environment)?;
    let registries = registries(args, access.is_some(), !stores.is_empty())?;
    let Registries { entries, file, conflicts } = registries::read(args, &registries)?;
    let order: Vec<Str> = stores.iter().enumerate().map(|(number, store)| store.id(number).0).collect();
    let conflicts = ConflictSettings { stores: order.clone(), ..conflicts };
    let settings = Settings { conflicts, ..settings(args, environment) };
    let certificates = Certificates::load(&args.tls)?;

    let (stop, end) = (CancellationToken::new(), CancellationToken::new());
    let (cluster, knobs) = (settings.cluster.clone(), settings.knobs.clone());
    let world = SnapshotWriter::start(settings, Arc::default(), end.clone());
    let mut watching = SourceStarter {
        changes: world.changes(),
        end: end.clone(),
        ids: BTreeSet::new(),
        running: vec![],
        source_set: SourceSet::default(),
    };
    let watches_kubernetes = registries.contains(&Registry::Kubernetes);
    let by_cluster = watches_kubernetes && kubernetes::holds_mesh_config(args);
    if !by_cluster {
        watching.start(mesh::mesh_config(&args.mesh_config));
        watching.start(mesh::networks(&args.networks_config));
    }
    let of_settings = watching.ids.clone();
    let (tell_wanted, wanted) = watch::channel(None);
    for (number, store) in stores.into_iter().enumerate() {
        watching.start_store(store, number);
    }
    for registry in registries {
        match registry {
            Registry::Mock => watching.start(MockRegistry::new(args.domain.as_str(), cluster.clone())),
            Registry::Kubernetes => {
                let access = access.clone().context("could not find an API server: give --kubeconfig=FILE")?;
                let source = kubernetes::source(args, environment, access, &world, of_settings.clone());
                watching.start(source.holding(wanted.clone()));
            }
            Registry::Consul | Registry::Eureka | Registry::CloudFoundry | Registry::Dns => {} // described by an entry
            Registry::Mcp if args.registry_flags.mcp_servers.is_empty() => {
                bail!("could not watch MCP: give --mcpServerAddrs=mcp://HOST:PORT")
            }
            Registry::Mcp => {} // a store, whose ServiceEntries are services
            other => bail!("could not start the registry {}", other.as_str()),
        }
    }
    for entry in entries {
        watching.start_registry(&entry, &cluster)?;
    }
    if let Some((file, config)) = file {
        watching.start_directory(&file, config, &cluster, order);
    }
    let of_config = watching.ids.clone();
    watching.start_fetching(&knobs, wanted);
    // What names things that must be fetched comes from config stores: the registries of a file are not waited for.
    tokio::spawn(wanted::follow(world.clone(), of_config, tell_wanted));
    let SourceStarter { running: sources, source_set, .. } = watching;
    let writing = access
        .filter(|_| watches_kubernetes)
        .map(|access| kubernetes::write_back(args, environment, access, &world, source_set.clone(), end.clone()));
    let pilot = housekeeping::started(ControlPlane::new(world, source_set));

    let instance = environment("POD_NAME").or_else(|| environment("HOSTNAME")).unwrap_or_default();
    let threads = Runtimes::start()?;
    let budget = Budget::new(args.clients.allowance());
    let routes = grpc::routes(pilot.clone(), identifier(&instance), budget, threads.streams(), stop.clone());
    let hosts = AllowedHosts::new(&namespace(args, environment), &args.domain, &args.debug_hosts);
    let pages = Pages::new(pilot.clone(), hosts, stop.clone());
    pages.serve_over_xds();
    let ports = BoundPorts::bind(args, certificates.is_some()).await?;
    let addresses = ports.addresses();
    let listeners = ports.serve(&args.keepalive, routes, &pages, certificates, &threads.connections(), &stop);
    Ok(Server { addresses, pilot, sources, writing, listeners, stop, end, _threads: threads })
}

impl Server {
    /// Stops accepting, ends streams so that clients go elsewhere, and waits for them, but not for ever.
    pub async fn stop(self, at_most: Duration) {
        self.stop.cancel();
        if timeout(at_most, self.listeners.wait()).await.is_err() {
            warn!("some clients did not go in time");
        }
        self.end.cancel();
        for source in self.sources {
            source.stopped().await;
        }
        // A lease that is given up need not be waited for by the next replica. It takes two requests, for which there
        // is time even where there is none for clients.
        if let Some(writing) = self.writing {
            let _ = timeout(at_most.max(FAREWELL), writing).await;
        }
    }
}

/// How the server calls itself in xDS responses: upstream's JSON, which istioctl parses.
fn identifier(instance: &str) -> String {
    serde_json::json!({"Component": "istiod", "ID": instance, "Info": version::info()}).to_string()
}

/// Where this instance is.
fn namespace(args: &DiscoveryFlags, environment: Environment<'_>) -> String {
    let given = Some(args.namespace.clone()).filter(|name| !name.is_empty()).or_else(|| environment("POD_NAMESPACE"));
    given.unwrap_or_else(|| "istio-system".to_owned())
}

/// Settings that do not come from a watched file.
fn settings(args: &DiscoveryFlags, environment: Environment<'_>) -> Settings {
    let (knobs, unreadable) = Knobs::read(environment);
    for name in unreadable {
        warn!(name, value = environment(name), "ignoring a variable that could not be read");
    }
    if knobs.quic_listeners {
        warn!(name = "PILOT_ENABLE_QUIC_LISTENERS", "ignoring a variable: gateways are not served HTTP/3");
    }
    let cluster = Some(args.cluster_id.clone()).filter(|id| !id.is_empty()).or_else(|| environment("CLUSTER_ID"));
    let settings = Settings { knobs, domain: args.domain.as_str().into(), ..Settings::default() };
    match cluster {
        Some(cluster) => Settings { cluster: cluster.into(), ..settings },
        None => settings,
    }
}

/// The registries to watch. One that is asked for and cannot be watched is an error that says what can be;
/// but Kubernetes is upstream's default, so where no API server is known other things are served without it.
fn registries(args: &DiscoveryFlags, has_api_server: bool, has_stores: bool) -> Result<Vec<Registry>> {
    let is_default = args.registries == [Registry::Kubernetes.as_str()] && !has_api_server;
    let has_other = has_stores || args.registry_flags.config.is_some();
    if is_default && has_other {
        info!("no API server is known: configuration and services come from elsewhere alone");
        return Ok(Vec::new());
    }
    let (chosen, problems) = registry::chosen(args.registries.iter().map(String::as_str));
    if let Some(problem) = problems.first() {
        let names: Vec<&str> = registry::ALL.iter().map(|registry| registry.as_str()).collect();
        bail!(
            "could not use --registries={}: {}; there are: {}, and --registries= with --configDir=FOLDER for \
             services and configuration from files",
            args.registries.join(","),
            problem.message,
            names.join(", "),
        );
    }
    if is_default || chosen.is_empty() && !has_other {
        bail!("could not find anything to serve: give --kubeconfig=FILE, --configDir=FOLDER or --registries=NAME");
    }
    Ok(chosen)
}

/// Sources as they are started.
struct SourceStarter {
    changes: mpsc::Sender<Batch>,
    end: CancellationToken,
    ids: BTreeSet<SourceId>,
    running: Vec<SourceTask>,
    source_set: SourceSet,
}

impl SourceStarter {
    /// A registry that flags describe is required.
    fn start_registry(&mut self, entry: &RegistryEntry, cluster: &ClusterId) -> Result<()> {
        let failed = |reason| anyhow!("could not watch a registry: {reason}");
        let id = entry.id().map_err(failed)?;
        let running = config_file::watch(entry, cluster, self.changes.clone(), self.end.clone()).map_err(failed)?;
        self.started(id, running);
        Ok(())
    }

    /// Registries that a file describes, as long as it does. Each is waited for as it says itself.
    fn start_directory(&mut self, file: &Path, config: RegistryConfig, cluster: &ClusterId, stores: Vec<Str>) {
        let config_file = RegistryConfigFile::new(file, config, cluster.clone(), self.source_set.clone());
        self.start(config_file.beside(self.ids.clone()).with_stores(stores));
    }

    fn start_store(&mut self, store: ConfigStore, number: usize) {
        let id = store.id(number);
        match store {
            ConfigStore::Folder(folder) => self.start(FileStore::new(&folder).named(id)),
            ConfigStore::Xds(options) => self.start(XdsStore::new(options)),
            ConfigStore::Mcp(options) => self.start(McpSink::new(options)),
            ConfigStore::Kubernetes => {} // comes with its registry
        }
    }

    fn start(&mut self, source: impl Source) {
        let id = source.id();
        let running = spawn(source, self.changes.clone(), self.end.clone());
        self.started(id, running);
    }

    fn started(&mut self, id: SourceId, running: SourceTask) {
        self.source_set.insert(id.clone(), running.health.clone(), StartupWait::Always);
        self.ids.insert(id);
        self.running.push(running);
    }

    /// Starts what fetches things that the other sources' objects name.
    fn start_fetching(&mut self, knobs: &Knobs, wanted: watch::Receiver<Option<FetchRequests>>) {
        let reach = AddressPolicy::Except {
            allowed: knobs.allowed_key_blocks.clone(),
            blocked: knobs.blocked_key_blocks.clone(),
        };
        let refresh = Duration::from_millis(knobs.key_refresh.0);
        self.start(Jwks::new(wanted, refresh, reach));
    }
}

/// The bound ports; `None` where one is switched off.
struct BoundPorts {
    grpc: Option<BoundSocket>,
    secure_grpc: Option<BoundSocket>,
    http: Option<BoundSocket>,
    monitoring: Option<BoundSocket>,
}

impl BoundPorts {
    /// Binds them all before the first is served: a server with half of its ports is no server.
    async fn bind(args: &DiscoveryFlags, has_certificates: bool) -> Result<BoundPorts> {
        if !has_certificates && !args.secure_grpc_addr.is_empty() {
            info!("the secure gRPC port is off: neither --tlsCertFile nor --tlsKeyFile is given");
        }
        let secure = if has_certificates { &*args.secure_grpc_addr } else { "" };
        Ok(BoundPorts {
            grpc: bind("grpc", &args.grpc_addr).await?,
            secure_grpc: bind("secureGRPC", secure).await?,
            http: bind("http", &args.http_addr).await?,
            monitoring: bind("monitoring", &args.monitoring_addr).await?,
        })
    }

    fn addresses(&self) -> BoundAddresses {
        let address = |listener: &Option<BoundSocket>| listener.as_ref().map(BoundSocket::address);
        BoundAddresses {
            grpc: address(&self.grpc),
            secure_grpc: address(&self.secure_grpc),
            http: address(&self.http),
            monitoring: address(&self.monitoring),
        }
    }

    fn serve(
        self,
        keepalive: &KeepaliveFlags,
        routes: ChargedRoutes,
        pages: &Pages,
        certificates: Option<Arc<Certificates>>,
        threads: &Handle,
        stop: &CancellationToken,
    ) -> TaskTracker {
        let shares = ConnectionLimits::now();
        let ping = Some((keepalive.interval, keepalive.timeout));
        let connections = Connections::of_streams("xds", shares.xds);
        let terms =
            ConnectionOptions { protocol: PortProtocol::Grpc, ping, age: keepalive.max_connection_age, connections };
        let pages_on = |name: &'static str| ConnectionOptions::pages(Connections::of_pages(name, shares.pages));
        let tasks = TaskTracker::new();
        if let Some(listener) = self.grpc {
            tasks.spawn_on(listener.serve(routes.clone(), terms.clone(), None, stop.clone()), threads);
        }
        if let (Some(listener), Some(certificates)) = (self.secure_grpc, certificates) {
            tokio::spawn(certificates.clone().watch(stop.clone()));
            tasks.spawn_on(listener.serve(routes, terms, Some(certificates), stop.clone()), threads);
        }
        if let Some(listener) = self.http {
            let router = http::discovery_router(pages);
            tasks.spawn_on(listener.serve(router, pages_on("http"), None, stop.clone()), threads);
        }
        if let Some(listener) = self.monitoring {
            let router = http::monitoring_router(pages);
            tasks.spawn_on(listener.serve(router, pages_on("monitoring"), None, stop.clone()), threads);
        }
        tasks.close();
        tasks
    }
}

/// Binds one port; an empty address switches it off.
async fn bind(name: &'static str, address: &str) -> Result<Option<BoundSocket>> {
    if address.is_empty() {
        return Ok(None);
    }
    BoundSocket::bind(name, address).await.map(Some)
}
