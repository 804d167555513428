//! Computes the agent's plan before anything starts: the proxy's identity, its bootstrap, how Envoy is launched and
//! drained, and which services run. Reads files and the environment; opens no port.

mod ca;
mod control_plane;
mod peers;
mod statsd;
mod upstream;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use api::istio::mesh::v1alpha1::ProxyConfig;
use model::proxy::{NO_CERTIFICATES, REQUEST_METRICS};
use net::watch::FilePolling;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tracing::{info, warn};

use crate::args::ProxyArgs;
use crate::bootstrap::{AdsApiType, BootstrapInput, BootstrapSource, FeatureFlags, StaticPorts, Xds, XdsSecurity};
use crate::certificates::files::CertificateFiles;
use crate::certificates::issued::CaSettings;
use crate::environment::Environment;
use crate::file_secrets::access::FileAccess;
use crate::identity::metadata::{NodeInput, ProxyNode, node};
use crate::identity::{NodeType, ProxyIdentity, addresses, downward_api, proxy_identity};
use crate::process::command::{EnvoyFlags, Launch, Takeover};
use crate::process::drain::Drain;
use crate::relay::Upstream;
use crate::requests::WorkloadLabels;
use crate::settings::{ProxyConfigSources, proxy_config};
use crate::socket::AllowedPeers;
use crate::status::NO_CERTIFICATES_NOTE;
use crate::status::health::HealthPlan;

/// Directory for SDS sockets in an injected pod.
const SDS_FOLDER: &str = "./var/run/secrets/workload-spiffe-uds";
/// Directory of the SDS socket for files in an injected pod, if another SDS server has the workload's certificates.
const FILES_FOLDER: &str = "./var/run/secrets/credential-uds";
/// Node metadata with which Envoy is configured to get certificates in files from that socket.
const FILE_CREDENTIAL: &str = "file-credential";
const INGRESS_CERTIFICATES: &str = "/etc/istio/ingress-certs";
const EXCLUDED_INTERFACES: &str = "traffic.sidecar.istio.io/excludeInterfaces";

/// The complete configuration of one run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Plan {
    pub identity: ProxyIdentity,
    pub bootstrap_source: BootstrapSource,
    pub bootstrap_input: BootstrapInput,
    pub launch: Launch,
    pub drain: Drain,
    /// The control plane; `None` if Envoy connects to it directly.
    pub upstream: Option<Upstream>,
    /// The workload's certificate files, if there are any.
    pub certificates: Option<CertificateFiles>,
    /// The certificate authority, if there are no files and no other SDS server.
    pub ca: Option<CaSettings>,
    /// Another SDS server, such as SPIRE, has the workload's certificates: the agent serves those in files only.
    pub other_sds: bool,
    /// Subscribe to the trust bundle of the mesh (PROXY_CONFIG_XDS_AGENT).
    pub trust_bundle: bool,
    /// There is no source of certificates: the control plane is asked for plain text.
    pub no_certificates: bool,
    pub polling: FilePolling,
    /// Files whose change triggers a hot restart. Empty if certificates are pushed over SDS.
    pub restart_on: Vec<PathBuf>,
    /// Do not run Envoy (DISABLE_ENVOY): the workload is a proxyless gRPC application.
    pub without_envoy: bool,
    /// Restarts of a failed Envoy before the agent exits.
    pub restarts: u32,
    pub status: StatusPlan,
    /// The probe whose results are reported to the control plane.
    pub health: Option<HealthPlan>,
    pub dns: DnsPlan,
    /// Path of the bootstrap file for proxyless gRPC applications.
    pub grpc_bootstrap: Option<PathBuf>,
    /// Users allowed to connect to the Unix sockets.
    pub peers: SocketPeers,
    /// Files that SDS may serve.
    pub access: FileAccess,
    /// Metrics made from Envoy's access log, if they are enabled.
    pub requests: Option<RequestMetricsPlan>,
}

impl Plan {
    /// Whether the control plane learns of certificates that are found while Envoy runs: from the relay, or from a new
    /// epoch. Otherwise they are used after a restart.
    pub fn reports_late_certificates(&self) -> bool {
        self.upstream.is_some() || !self.restart_on.is_empty()
    }

    /// The input of the next bootstrap: it says that there are no certificates only as long as that holds.
    pub fn current_bootstrap_input(&self) -> Cow<'_, BootstrapInput> {
        if self.no_certificates && CertificateFiles::find_in_folders().is_some_and(|files| files.read().is_ok()) {
            let mut input = self.bootstrap_input.clone();
            input.node.metadata.remove(NO_CERTIFICATES);
            return Cow::Owned(input);
        }
        Cow::Borrowed(&self.bootstrap_input)
    }
}

/// Metrics made from Envoy's access log.
#[derive(Debug, Serialize, Deserialize)]
pub struct RequestMetricsPlan {
    pub socket: PathBuf,
    pub own: WorkloadLabels,
    /// Limit on label sets.
    pub most_series: usize,
}

/// Users allowed to connect to each Unix socket.
#[derive(Debug, Serialize, Deserialize)]
pub struct SocketPeers {
    pub sds: AllowedPeers,
    pub xds: AllowedPeers,
}

/// The status port.
#[derive(Debug, Serialize, Deserialize)]
pub struct StatusPlan {
    /// `None` disables the status port.
    pub address: Option<SocketAddr>,
    /// `ISTIO_KUBE_APP_PROBERS`: the application's probes as JSON, or empty.
    pub probers: String,
    /// `ISTIO_PROMETHEUS_ANNOTATIONS`: the application's metrics endpoints as JSON. Only for sidecars: a gateway's
    /// status port may be public.
    pub prometheus_annotations: Option<String>,
}

/// The DNS proxy.
#[derive(Debug, Serialize, Deserialize)]
pub struct DnsPlan {
    /// `None` disables the DNS proxy.
    pub address: Option<SocketAddr>,
    /// Timeout of a forwarded query, for each server.
    pub server_timeout: Duration,
    /// Query all servers at once.
    pub parallel: bool,
}

/// Builds the plan from flags, environment and files.
pub fn plan(args: &ProxyArgs, environment: &Environment) -> Result<Plan> {
    let annotations = downward_api::read(Path::new(downward_api::ANNOTATIONS));
    let settings = settings(args, environment, annotations.as_ref())?;
    let excluded = annotations.as_ref().and_then(|all| all.get(EXCLUDED_INTERFACES)).map_or("", String::as_str);
    let excluded: BTreeSet<&str> = excluded.split(',').filter(|name| !name.is_empty()).collect();
    let own = own_addresses(args, environment, &excluded)?;
    let identity = proxy_identity(args.kind, &args.identity, environment, &own)?;
    let ports = StaticPorts {
        status: environment.number("ENVOY_STATUS_PORT", 15021)?,
        prometheus: environment.number("ENVOY_PROMETHEUS_PORT", 15090)?,
        secure_metrics: environment.number("ENVOY_SECURE_METRICS_PORT", 0)?,
        secure_merged_metrics: environment.number("ENVOY_SECURE_MERGED_METRICS_PORT", 0)?,
    };
    let features = features(environment)?;
    let node = node(NodeInput {
        identity: &identity,
        config: &settings,
        environment,
        labels: downward_api::read(Path::new(downward_api::LABELS)),
        annotations,
        locality: &args.identity.availability_zone,
        own: own_metadata(ports, features, args),
    });
    let bootstrap_source = BootstrapSource::choose(&settings, &args.template_file, environment.get("ISTIO_BOOTSTRAP"));
    let mut bootstrap_input = bootstrap_input(args, environment, &identity, node, settings, ports, features)?;
    let requests = requests(args, environment, &mut bootstrap_input)?;
    let certificates = CertificateFiles::find(|name| text(&bootstrap_input.node, name));
    let upstream = args.xds_relay.then(|| upstream::upstream(&bootstrap_input, environment, certificates.as_ref()));
    let upstream = upstream.transpose()?;
    let without_envoy = environment.flag("DISABLE_ENVOY", false)?;
    let other_sds = follow_other_sds(&mut bootstrap_input);
    // An application without Envoy reads its certificates from files.
    let ca = match other_sds && !without_envoy {
        true => None,
        false => ca::settings(&bootstrap_input, &identity, certificates.as_ref(), environment)?,
    };
    let has_certificates = other_sds || ca.is_some() || certificates.is_some();
    let no_certificates = !has_certificates && !names_certificates(&bootstrap_input, environment)?;
    if no_certificates {
        warn!("no certificate files and no CA: {NO_CERTIFICATES_NOTE}");
        bootstrap_input.node.metadata.insert(NO_CERTIFICATES.to_owned(), "true".into());
    }
    Ok(Plan {
        ca,
        other_sds,
        trust_bundle: environment.flag("PROXY_CONFIG_XDS_AGENT", false)?,
        no_certificates,
        launch: launch(args, environment, &identity, &bootstrap_source, &bootstrap_input)?,
        drain: drain(environment, &identity, &bootstrap_input)?,
        peers: peers::peers(environment)?,
        access: peers::access(environment, certificates.as_ref(), upstream.as_ref(), &bootstrap_input.node),
        upstream,
        restart_on: match args.hot_restart {
            true => watched(certificates.as_ref(), no_certificates, environment),
            false => Vec::new(),
        },
        certificates,
        polling: FilePolling {
            period: Duration::from_secs(1),
            settle: environment.duration("FILE_DEBOUNCE_DURATION", Duration::from_millis(100))?,
        },
        without_envoy,
        restarts: environment.number("PILOTAGE_ENVOY_RESTARTS", 10)?,
        status: status(&bootstrap_input.config, &identity, environment)?,
        health: health(&bootstrap_input.config, &identity)?,
        dns: DnsPlan {
            address: dns_address(&bootstrap_input.node, &identity, environment)?,
            server_timeout: environment.duration("DNS_FORWARD_TIMEOUT", Duration::from_secs(5))?,
            parallel: environment.flag("DNS_FORWARD_PARALLEL", false)?,
        },
        grpc_bootstrap: environment.get("GRPC_XDS_BOOTSTRAP").map(PathBuf::from),
        requests,
        identity,
        bootstrap_source,
        bootstrap_input,
    })
}

/// Enables metrics from the access log: the control plane configures the log for nodes with this metadata.
fn requests(
    args: &ProxyArgs,
    environment: &Environment,
    input: &mut BootstrapInput,
) -> Result<Option<RequestMetricsPlan>> {
    let by_environment = environment.flag("PILOTAGE_REQUEST_METRICS", false)?;
    if !args.request_metrics.unwrap_or(by_environment) {
        return Ok(None);
    }
    input.node.metadata.insert(REQUEST_METRICS.to_owned(), "true".into());
    let socket = Path::new(&input.config.config_path).join("ALS");
    input.access_log_socket = Some(socket.to_string_lossy().into_owned());
    let own = WorkloadLabels::of_node(&input.node.metadata);
    let most_series = environment.number("PILOTAGE_REQUEST_SERIES", 500)?;
    Ok(Some(RequestMetricsPlan { socket, own, most_series }))
}

/// Addresses of this machine; waited for only if no address is configured.
fn own_addresses(args: &ProxyArgs, environment: &Environment, excluded: &BTreeSet<&str>) -> Result<Vec<IpAddr>> {
    if !args.identity.ip.is_empty() || environment.get("INSTANCE_IP").is_some() {
        return Ok(addresses::own(excluded));
    }
    let limit = environment.duration("PILOTAGE_NETWORK_TIMEOUT", Duration::from_secs(10))?;
    Ok(addresses::wait_for(limit, || addresses::own(excluded)))
}

/// The workload's certificates, or where they may be mounted later, and those of a Pilot 0.8 ingress gateway.
fn watched(certificates: Option<&CertificateFiles>, may_come: bool, environment: &Environment) -> Vec<PathBuf> {
    let later = CertificateFiles::in_folders().filter(|_| may_come);
    let own = certificates.cloned().into_iter().chain(later).flat_map(|files| files.paths());
    own.chain(ingress_certificates(environment)).collect()
}

/// Certificate and key of a Pilot 0.8 ingress gateway, which Gateways name by their paths.
fn ingress_certificates(environment: &Environment) -> [PathBuf; 2] {
    let folder = Path::new(environment.get("PILOTAGE_INGRESS_CERTIFICATES").unwrap_or(INGRESS_CERTIFICATES));
    ["tls.crt", "tls.key"].map(|name| folder.join(name))
}

/// Whether another SDS server listens on the socket for the workload's certificates. Certificates in files then have a socket
/// of their own, as in upstream.
fn follow_other_sds(input: &mut BootstrapInput) -> bool {
    if UnixStream::connect(&input.sds_socket).is_err() {
        return false;
    }
    let pod = Path::new(FILES_FOLDER);
    let socket = match pod.is_dir() {
        true => pod.join("files-socket"),
        false => Path::new(&input.config.config_path).join("SDS-files"),
    };
    info!(socket = input.sds_socket, "another SDS server listens on the socket; serving certificates in files only");
    input.sds_files_socket = Some(socket.to_string_lossy().into_owned());
    input.node.metadata.insert(FILE_CREDENTIAL.to_owned(), "true".into());
    true
}

/// Whether the control plane is asked to use certificate files of the proxy, which may be mounted later.
fn names_certificates(input: &BootstrapInput, environment: &Environment) -> Result<bool> {
    Ok(environment.flag("FILE_MOUNTED_CERTS", false)? || text(&input.node, "TLS_SERVER_CERT_CHAIN").is_some())
}

fn settings(
    args: &ProxyArgs,
    environment: &Environment,
    annotations: Option<&BTreeMap<String, String>>,
) -> Result<ProxyConfig> {
    let path = &args.mesh_config;
    let mesh = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("could not read {}", path.display())),
    };
    let sources = ProxyConfigSources {
        mesh: (&path.to_string_lossy(), &mesh),
        environment: environment.get("PROXY_CONFIG").unwrap_or_default(),
        cpu_limit: environment.number("ISTIO_CPU_LIMIT", 0)?,
    };
    proxy_config(&sources, annotations.unwrap_or(&BTreeMap::new()), &args.settings)
}

/// The probe of ProxyConfig, which virtual machines have instead of kubelet's.
fn health(config: &ProxyConfig, identity: &ProxyIdentity) -> Result<Option<HealthPlan>> {
    match (&config.readiness_probe, identity.ips.first()) {
        (Some(probe), Some(address)) => HealthPlan::read(probe, *address).map(Some),
        _ => Ok(None),
    }
}

fn features(environment: &Environment) -> Result<FeatureFlags> {
    let strips = environment.flag("HTTP_STRIP_FRAGMENT_FROM_PATH_UNSAFE_IF_DISABLED", true)?;
    Ok(FeatureFlags {
        dual_stack: environment.flag("ISTIO_DUAL_STACK", false)?,
        exit_on_zero_active_connections: environment.flag("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", false)?,
        status_proxy_protocol: environment.flag("ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL", false)?,
        self_discovery: environment.flag("ISTIO_META_ENABLE_SELF_DISCOVERY", false)?,
        metadata_discovery: environment.flag("PEER_METADATA_DISCOVERY", false)?,
        keep_path_fragment: !strips,
    })
}

/// Node metadata that describes the agent, such as its ports.
fn own_metadata(ports: StaticPorts, features: FeatureFlags, args: &ProxyArgs) -> Map<String, Value> {
    let numbers = [
        ("ENVOY_STATUS_PORT", ports.status),
        ("ENVOY_PROMETHEUS_PORT", ports.prometheus),
        ("ENVOY_SECURE_METRICS_PORT", ports.secure_metrics),
        ("ENVOY_SECURE_MERGED_METRICS_PORT", ports.secure_merged_metrics),
    ];
    let given = numbers.into_iter().filter(|(_, port)| *port != 0);
    let mut own: Map<String, Value> = given.map(|(name, port)| (name.to_owned(), port.into())).collect();
    if features.exit_on_zero_active_connections {
        own.insert("EXIT_ON_ZERO_ACTIVE_CONNECTIONS".to_owned(), "true".into());
    }
    if !args.outlier_log_path.is_empty() {
        own.insert("OUTLIER_LOG_PATH".to_owned(), args.outlier_log_path.as_str().into());
    }
    own
}

fn bootstrap_input(
    args: &ProxyArgs,
    environment: &Environment,
    identity: &ProxyIdentity,
    node: ProxyNode,
    config: ProxyConfig,
    ports: StaticPorts,
    features: FeatureFlags,
) -> Result<BootstrapInput> {
    let statsd_udp_address = statsd::resolved(&config.statsd_udp_address, identity.is_ipv6_only());
    let config = ProxyConfig { statsd_udp_address, ..config };
    let folder = Path::new(&config.config_path);
    let xds = match args.xds_relay {
        true => Xds::Relay(folder.join("XDS").to_string_lossy().into_owned()),
        false if upstream::is_plain(&config) => Xds::Direct(XdsSecurity::Plain),
        false => Xds::Direct(XdsSecurity::MutualTls),
    };
    // Waypoints support delta xDS only.
    let is_delta = environment.flag("ISTIO_DELTA_XDS", true)? || identity.kind == NodeType::Waypoint;
    Ok(BootstrapInput {
        control_plane_names: match upstream::is_plain(&config) {
            true => Vec::new(),
            false => control_plane::names(args, environment, identity, &config),
        },
        ips: identity.ips.clone(),
        ports,
        xds,
        api_type: if is_delta { AdsApiType::Delta } else { AdsApiType::Sotw },
        sds_socket: sds_socket(folder, environment).to_string_lossy().into_owned(),
        sds_files_socket: None,
        access_log_socket: None,
        log_as_json: args.logging.as_json,
        outlier_log_path: args.outlier_log_path.clone(),
        connect_timeout: args.settings.connect_timeout,
        refresh_delay: args.settings.discovery_refresh_delay,
        host_ip: environment.get("HOST_IP").map(str::to_owned),
        features,
        node,
        config,
    })
}

/// In an injected pod the socket is in the pod's SDS volume. Elsewhere it is below the config path: the agent writes
/// nothing outside of it.
fn sds_socket(folder: &Path, environment: &Environment) -> PathBuf {
    match Path::new(SDS_FOLDER).is_dir() {
        true => Path::new(SDS_FOLDER).join(environment.get("WORKLOAD_IDENTITY_SOCKET_FILE").unwrap_or("socket")),
        false => folder.join("SDS"),
    }
}

fn launch(
    args: &ProxyArgs,
    environment: &Environment,
    identity: &ProxyIdentity,
    bootstrap_source: &BootstrapSource,
    bootstrap_input: &BootstrapInput,
) -> Result<Launch> {
    let config = &bootstrap_input.config;
    let flags = EnvoyFlags {
        ipv6_only: identity.is_ipv6_only(),
        flush_interval_ms: config.file_flush_interval.and_then(|it| Duration::try_from(it).ok()).map(milliseconds),
        flush_min_size_kb: config.file_flush_min_size_kb,
        log_level: args.proxy_log_level.clone(),
        component_log_level: args.proxy_component_log_level.clone(),
        skip_deprecated_logs: environment.flag("ENVOY_SKIP_DEPRECATED_LOGS", true)?,
        core_dump: environment.flag("ISTIO_ENVOY_ENABLE_CORE_DUMP", false)?,
        override_yaml: environment
            .get("ISTIO_BOOTSTRAP_OVERRIDE")
            .map(|path| overriding(path, environment))
            .transpose()?,
        concurrency: config.concurrency.unwrap_or_default(),
        node: needs_node(bootstrap_source)?
            .then(|| (bootstrap_input.node.cluster.clone(), bootstrap_input.node.id.clone())),
    };
    let drain = seconds(config.drain_duration);
    let takeover = match args.hot_restart {
        false => Takeover::None,
        true => Takeover::HotRestart {
            // Pilot 0.8's default: slightly more than the drain time.
            parent_shutdown: args.settings.parent_shutdown_duration.unwrap_or(drain + Duration::from_secs(1)),
            base_id: Path::new(&config.config_path).join("envoy-base-id"),
        },
    };
    Ok(Launch {
        agent: own_program(),
        binary: PathBuf::from(&config.binary_path),
        drain,
        fixed: flags.arguments(),
        takeover,
        start_timeout: environment.duration("PILOTAGE_ENVOY_START_TIMEOUT", Duration::from_secs(30))?,
    })
}

/// Path of this program. `/proc/self/exe` works even if the file was removed after start.
fn own_program() -> PathBuf {
    env::current_exe().ok().filter(|path| path.is_file()).unwrap_or_else(|| "/proc/self/exe".into())
}

/// Bootstraps written for Pilot 0.8 have no `node`; Envoy then needs it on the command line.
fn needs_node(bootstrap_source: &BootstrapSource) -> Result<bool> {
    let (BootstrapSource::Custom(path) | BootstrapSource::Template(path)) = bootstrap_source else { return Ok(false) };
    let text = fs::read_to_string(path).with_context(|| format!("could not read the bootstrap {}", path.display()))?;
    let has_node = text.contains("\"node\"") || text.lines().any(|line| line.starts_with("node:"));
    Ok(!has_node)
}

/// The `--config-yaml` that Envoy merges into its bootstrap.
fn overriding(path: &str, environment: &Environment) -> Result<String> {
    let text = fs::read_to_string(path).with_context(|| format!("could not read $ISTIO_BOOTSTRAP_OVERRIDE {path}"))?;
    let ip = environment.get("HOST_IP").unwrap_or_default();
    let bracketed = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
    Ok(text.replace("[$(HOST_IP)]", &bracketed).replace("$(HOST_IP)", &bracketed))
}

fn drain(environment: &Environment, identity: &ProxyIdentity, bootstrap_input: &BootstrapInput) -> Result<Drain> {
    let config = &bootstrap_input.config;
    let minimum = environment.duration("MINIMUM_DRAIN_DURATION", Duration::from_secs(5))?;
    let localhost: IpAddr =
        if identity.is_ipv6_only() { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    let ports = bootstrap_input.ports;
    Ok(Drain {
        admin: SocketAddr::new(
            localhost,
            u16::try_from(config.proxy_admin_port).context("could not use proxyAdminPort as a port number")?,
        ),
        inbound_only: identity.kind == NodeType::Sidecar,
        time: seconds(config.termination_drain_duration),
        until_idle: bootstrap_input.features.exit_on_zero_active_connections.then_some(minimum),
        own_ports: [ports.status, ports.prometheus, ports.secure_metrics, ports.secure_merged_metrics].into(),
    })
}

fn status(config: &ProxyConfig, identity: &ProxyIdentity, environment: &Environment) -> Result<StatusPlan> {
    let wildcard: IpAddr =
        if identity.is_ipv6_only() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    let port = u16::try_from(config.status_port).context("could not use statusPort as a port number")?;
    let annotations = environment.get("ISTIO_PROMETHEUS_ANNOTATIONS").filter(|_| identity.kind == NodeType::Sidecar);
    Ok(StatusPlan {
        address: (port != 0).then(|| SocketAddr::new(wildcard, port)),
        probers: environment.get("ISTIO_KUBE_APP_PROBERS").unwrap_or_default().to_owned(),
        prometheus_annotations: annotations.map(str::to_owned),
    })
}

/// The DNS proxy runs where DNS is captured, and at gateways with ENABLE_DNS_SERVER.
fn dns_address(node: &ProxyNode, identity: &ProxyIdentity, environment: &Environment) -> Result<Option<SocketAddr>> {
    let is_on = |name: &str| text(node, name).is_some_and(|value| value == "true" || value == "1");
    let is_wanted = is_on("DNS_CAPTURE") || (identity.kind == NodeType::Router && is_on("ENABLE_DNS_SERVER"));
    if !is_wanted {
        return Ok(None);
    }
    let address = environment.get("DNS_PROXY_ADDR").unwrap_or("localhost:15053").replace("localhost", "127.0.0.1");
    Ok(Some(address.parse().with_context(|| format!("could not parse $DNS_PROXY_ADDR={address:?}"))?))
}

fn text(node: &ProxyNode, name: &str) -> Option<String> {
    node.metadata.get(name).and_then(Value::as_str).map(str::to_owned)
}

fn seconds(duration: Option<api::Duration>) -> Duration {
    duration.and_then(|duration| Duration::try_from(duration).ok()).unwrap_or_default()
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
